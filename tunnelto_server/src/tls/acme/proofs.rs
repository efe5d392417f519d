//! What validations are shown that a host is ours: over TLS (RFC 8737), over HTTP (RFC 8555 section 8.3).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rcgen::{CertificateParams, CustomExtension, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::{ServerConfig, pki_types::PrivatePkcs8KeyDer, sign::CertifiedKey};

use super::order::OrderError;
use crate::tls::{Terms, hello::PROOF};

/// No token of an ACME server is longer.
const MAX_TOKEN: usize = 256;

pub struct Proofs {
    terms: Terms,
    /// Of the account's key.
    thumbprint: String,
    /// Hosts whose proof over TLS is awaited.
    awaited: Mutex<HashMap<String, Arc<ServerConfig>>>,
}

/// A host that is proved over TLS as long as this is kept.
pub struct Shown<'p> {
    host: String,
    proofs: &'p Proofs,
}

impl Proofs {
    pub fn new(terms: Terms, thumbprint: String) -> Self {
        Self { terms, thumbprint, awaited: Mutex::default() }
    }

    fn awaited(&self) -> MutexGuard<'_, HashMap<String, Arc<ServerConfig>>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a validation is shown that asks for `host`.
    pub fn of(&self, host: &str) -> Option<Arc<ServerConfig>> {
        self.awaited().get(host).cloned()
    }

    /// The key authorization (RFC 8555 section 8.1). It follows from the token and the account, which all instances share: each can
    /// answer what any of them has asked for, and nothing has to be kept.
    pub fn answer(&self, token: &str) -> Option<String> {
        let is_token = (1..=MAX_TOKEN).contains(&token.len())
            && token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        is_token.then(|| format!("{token}.{}", self.thumbprint))
    }

    /// By a certificate that bears the digest of what was asked for (RFC 8737 section 3).
    pub fn by_tls(&self, host: &str, digest: &[u8]) -> Result<Shown<'_>, OrderError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::new(vec![host.to_owned()])?;
        params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
        let certificate = params.self_signed(&key)?;
        let pair = PrivatePkcs8KeyDer::from(key.serialize_der());
        let key = self.terms.provider.key_provider.load_private_key(pair.into())?;
        // Not looked into: its critical extension is for nobody but authorities.
        let key = CertifiedKey::new(vec![certificate.der().clone()], key);
        self.awaited().insert(host.to_owned(), self.terms.speak(key, &[PROOF])?);
        Ok(Shown { host: host.to_owned(), proofs: self })
    }
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        self.proofs.awaited().remove(&self.host);
    }
}
