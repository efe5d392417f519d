//! One certificate's way (RFC 8555 section 7.4): the order, proof for each of its names, the request, the certificate.

use std::time::Duration;

use instant_acme::{
    Account, AuthorizationStatus, ChallengeType, Identifier, NewOrder, Order, OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256};

use tokio::time::timeout;

use super::{
    hook::{self, Hook, Record},
    proofs::{Proofs, Shown},
};

/// How often the server is asked how far it is.
const POLL: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(250))
    .backoff(1.5)
    .timeout(Duration::from_secs(90));

/// One step of an order, beside what a hook takes.
const LIMIT: Duration = Duration::from_secs(120);

/// How it is proved that a name is ours.
#[derive(Clone, Copy, Debug)]
pub enum Way<'h> {
    Tls,
    Http,
    Dns(&'h Hook),
}

#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    #[error(transparent)]
    Acme(#[from] instant_acme::Error),
    #[error("the ACME server was not convinced: {0}")]
    Refused(String),
    #[error("the ACME server does not offer this way of proof: {0}")]
    NotOffered(&'static str),
    #[error("ACME_DNS_HOOK {hook} failed: {why}")]
    Hook { hook: String, why: String },
    #[error(transparent)]
    Rcgen(#[from] rcgen::Error),
    #[error(transparent)]
    Tls(#[from] rustls::Error),
    #[error("{0}: {1}")]
    Io(String, std::io::Error),
    #[error("the ACME server gave a certificate that cannot be used")]
    Unusable,
    #[error("as many new names as ACME_WEEKLY allows have been asked for in the last seven days")]
    Weekly,
    #[error("the ACME server does not answer")]
    Away,
    #[error("another instance has failed, and waits for {0:?}")]
    FailedElsewhere(Duration),
    #[error("it took longer than {0:?}")]
    TooLong(Duration),
}

/// The certificate with what stands behind it, and its key, as one PEM file.
pub async fn order(
    account: &Account,
    names: &[String],
    way: Way<'_>,
    proofs: &Proofs,
) -> Result<String, OrderError> {
    let identifiers: Vec<_> = names.iter().cloned().map(Identifier::Dns).collect();
    let ordered = timeout(LIMIT, account.new_order(&NewOrder::new(&identifiers))).await;
    let mut order = ordered.map_err(|_| OrderError::Away)??;
    let mut given = Given::default();
    let limit = way.limit(names.len());
    let proved = timeout(limit, prove(&mut order, way, proofs, &mut given)).await;
    if let Way::Dns(hook) = way {
        for record in &given.records {
            hook.unset(record).await;
        }
    }
    proved.map_err(|_| OrderError::TooLong(limit))??;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(&key)?;
    let finishing = async {
        order.finalize_csr(request.der()).await?;
        order.poll_certificate(&POLL).await
    };
    let finished = timeout(LIMIT, finishing).await;
    let chain = finished.map_err(|_| OrderError::TooLong(LIMIT))??;
    Ok(format!("{}\n{}", chain.trim_end(), key.serialize_pem()))
}

/// What is shown until the order is decided.
#[derive(Default)]
struct Given<'p> {
    shown: Vec<Shown<'p>>,
    records: Vec<Record>,
}

async fn prove<'p>(
    order: &mut Order,
    way: Way<'_>,
    proofs: &'p Proofs,
    given: &mut Given<'p>,
) -> Result<(), OrderError> {
    let kind = way.kind();
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        if authorization.status == AuthorizationStatus::Valid {
            continue;
        }
        let mut challenge =
            authorization.challenge(kind.clone()).ok_or(OrderError::NotOffered(way.name()))?;
        let Identifier::Dns(host) = challenge.identifier().identifier else {
            return Err(OrderError::Unusable);
        };
        let host = host.clone();
        let expected = challenge.key_authorization();
        match way {
            Way::Tls => given.shown.push(proofs.by_tls(&host, expected.digest().as_ref())?),
            // Every instance knows the answer.
            Way::Http => {}
            Way::Dns(hook) => {
                let record = Record { name: format!("_acme-challenge.{host}"), value: expected.dns_value() };
                let set = hook.set(&record).await;
                given.records.push(record);
                set?;
            }
        }
        challenge.set_ready().await?;
    }
    match order.poll_ready(&POLL).await {
        Ok(OrderStatus::Invalid) => Err(OrderError::Refused(reason(order).await)),
        Err(instant_acme::Error::Api(problem)) => Err(OrderError::Refused(problem.to_string())),
        polled => polled.map(drop).map_err(OrderError::from),
    }
}

/// What the server says of the names it did not believe.
async fn reason(order: &mut Order) -> String {
    let mut reasons = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        if let Ok(state) = authorization.refresh().await {
            reasons.extend(
                state.challenges.iter().filter_map(|challenge| Some(challenge.error.as_ref()?.to_string())),
            );
        }
    }
    if reasons.is_empty() { "it gives no reason".into() } else { reasons.join("; ") }
}

impl Way<'_> {
    /// How long the proof of so many names may take.
    fn limit(self, names: usize) -> Duration {
        match self {
            Self::Tls | Self::Http => LIMIT,
            Self::Dns(_) => LIMIT + hook::LIMIT * names as u32,
        }
    }

    fn kind(self) -> ChallengeType {
        match self {
            Self::Tls => ChallengeType::TlsAlpn01,
            Self::Http => ChallengeType::Http01,
            Self::Dns(_) => ChallengeType::Dns01,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Tls => "tls-alpn-01",
            Self::Http => "http-01",
            Self::Dns(_) => "dns-01",
        }
    }
}
