//! TLS=self-signed: an authority of this server's own, which signs a certificate for every host that a visitor asks for. Its key
//! follows from the master key, so that whoever trusts one instance trusts them all, for as long as that key is used.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, date_time_ymd,
};
use rustls::pki_types::PrivatePkcs8KeyDer;

use super::{
    Terms,
    certificate::{Certificate, CertificateError},
    files,
};
use crate::sign::SigningKey;

/// What one certificate is valid for. Browsers refuse more than 398 days.
const VALID: Duration = Duration::from_secs(90 * 86_400);

/// Clocks differ.
const BEFORE: Duration = Duration::from_secs(86_400);

/// Certificates that are kept; names are the visitors' choice.
const MAX_KEPT: usize = 1000;

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// One for all certificates.
    key: KeyPair,
    terms: Terms,
    made: Mutex<HashMap<String, Arc<Certificate>>>,
}

#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Rcgen(#[from] rcgen::Error),
}

#[derive(Debug, thiserror::Error)]
enum MakeError {
    #[error(transparent)]
    Rcgen(#[from] rcgen::Error),
    #[error(transparent)]
    Certificate(#[from] CertificateError),
}

impl Authority {
    /// Writes the authority's certificate to `path`, for those who shall trust it.
    pub fn open(key: &SigningKey, terms: Terms, path: &Path) -> Result<Self, AuthorityError> {
        let pair = KeyPair::from_pkcs8_der_and_sign_algo(&key.to_pkcs8(), &PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        // Browsers mix up authorities of one name.
        let name = format!("tunnelto self-signed {}", &key.thumbprint()[..8]);
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2120, 1, 1));
        let own = params.self_signed(&pair)?.pem();
        // Its signature is another each time; what counts is its key.
        files::put(path, &own).map_err(|source| AuthorityError::Io { path: path.to_owned(), source })?;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        Ok(Self { issuer: Issuer::new(params, pair), key, terms, made: Mutex::default() })
    }

    /// The certificate for `host`.
    pub fn certificate(&self, host: &str) -> Option<Arc<Certificate>> {
        let now = SystemTime::now();
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(certificate) = made.get(host)
            && !certificate.validity.wants_renewal(now, 0.0)
        {
            return Some(certificate.clone());
        }
        match self.make(host, now) {
            Ok(certificate) => {
                if made.len() >= MAX_KEPT {
                    made.clear();
                }
                let certificate = Arc::new(certificate);
                made.insert(host.to_owned(), certificate.clone());
                Some(certificate)
            }
            Err(error) => {
                tracing::warn!(host, %error, "no certificate can be made");
                None
            }
        }
    }

    fn make(&self, host: &str, now: SystemTime) -> Result<Certificate, MakeError> {
        let mut params = CertificateParams::new(vec![host.to_owned()])?;
        params.distinguished_name = DistinguishedName::new();
        params.use_authority_key_identifier_extension = true;
        // Browsers refuse two certificates of one authority with one number.
        params.serial_number = Some(rand::random::<u64>().to_be_bytes().to_vec().into());
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        (params.not_before, params.not_after) = ((now - BEFORE).into(), (now + VALID).into());
        let certificate = params.signed_by(&self.key, &self.issuer)?;
        let key = PrivatePkcs8KeyDer::from(self.key.serialize_der());
        Ok(Certificate::new(vec![certificate.der().clone()], key.into(), &self.terms)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::TlsMin,
        sign::{MasterKeys, Purpose},
    };

    #[test]
    fn every_host_gets_its_own_and_keeps_it() {
        let folder = tempfile::tempdir().unwrap();
        let keys = MasterKeys::new([1; 32], None);
        let terms = Terms::new(TlsMin::Tls12, keys.clone());
        let path = folder.path().join("made/ca.pem");
        let authority = Authority::open(&keys.derive_signing_key(Purpose::SelfSigned), terms, &path).unwrap();
        let web = authority.certificate("web.localhost").unwrap();
        assert!(web.names.cover("web.localhost") && !web.names.cover("bob.localhost"));
        assert!(Arc::ptr_eq(&web, &authority.certificate("web.localhost").unwrap()));
        assert!(authority.certificate("bob.localhost").unwrap().names.cover("bob.localhost"));
        assert!(std::fs::read_to_string(path).unwrap().starts_with("-----BEGIN CERTIFICATE-----"));
    }
}
