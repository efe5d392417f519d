//! Certificates by the names they are for.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustls::{
    ServerConfig,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
    sign::CertifiedKey,
};
use webpki::EndEntityCert;
use x509_parser::parse_x509_certificate;

use super::Terms;

/// One certificate, ready to be used.
pub struct Certificate {
    pub config: Arc<ServerConfig>,
    pub names: Arc<Names>,
    pub validity: Validity,
}

/// When a certificate is valid (RFC 5280 section 4.1.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    pub from: SystemTime,
    pub until: SystemTime,
}

/// What a certificate is for (RFC 6125 section 6.4: a wildcard stands for one label).
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Names {
    exact: Vec<String>,
    /// What stands behind `*.`.
    parents: Vec<String>,
}

/// All there are. A visitor's name finds the certificate for exactly that name before a wildcard.
#[derive(Default)]
pub struct Certificates {
    exact: HashMap<String, Arc<Certificate>>,
    parents: HashMap<String, Arc<Certificate>>,
    /// For visitors that name nobody.
    default: Option<Arc<Certificate>>,
}

#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("it holds no certificate")]
    Empty,
    #[error("it names no host: the certificate has no subjectAltName")]
    Nameless,
    #[error(transparent)]
    Tls(#[from] rustls::Error),
    #[error(transparent)]
    Pem(#[from] pem::Error),
    #[error("not a certificate: {0}")]
    Malformed(webpki::Error),
    #[error("it does not say when it is valid")]
    Timeless,
}

impl Certificate {
    /// From PEM files, which may be one.
    pub fn from_pem(chain: &[u8], key: &[u8], terms: &Terms) -> Result<Self, CertificateError> {
        let chain = CertificateDer::pem_slice_iter(chain).collect::<Result<Vec<_>, _>>()?;
        Self::new(chain, PrivateKeyDer::from_pem_slice(key)?, terms)
    }

    /// `chain` begins with the certificate itself. Refuses a key that is another certificate's.
    pub fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        terms: &Terms,
    ) -> Result<Self, CertificateError> {
        let leaf = chain.first().ok_or(CertificateError::Empty)?;
        let names = Names::of(leaf)?;
        let validity = Validity::of(leaf)?;
        let key = CertifiedKey::from_der(chain, key, &terms.provider)?;
        Ok(Self { config: terms.serve(key)?, names: Arc::new(names), validity })
    }
}

impl Validity {
    fn of(leaf: &CertificateDer<'_>) -> Result<Self, CertificateError> {
        let (_, leaf) = parse_x509_certificate(leaf).map_err(|_| CertificateError::Timeless)?;
        let time = |seconds: i64| UNIX_EPOCH + Duration::from_secs(seconds.try_into().unwrap_or(0));
        let validity = leaf.validity();
        Ok(Self { from: time(validity.not_before.timestamp()), until: time(validity.not_after.timestamp()) })
    }

    pub fn is_over(&self) -> bool {
        self.until <= SystemTime::now()
    }

    /// Whether less than a third is left, or than a `part` more of it.
    pub fn wants_renewal(&self, now: SystemTime, part: f64) -> bool {
        let whole = self.until.duration_since(self.from).unwrap_or_default();
        let left = self.until.duration_since(now).unwrap_or_default();
        left < whole.mul_f64(1.0 / 3.0 + part)
    }
}

impl Names {
    fn of(leaf: &CertificateDer<'_>) -> Result<Self, CertificateError> {
        let leaf = EndEntityCert::try_from(leaf).map_err(CertificateError::Malformed)?;
        let mut names = Self::default();
        for name in leaf.valid_dns_names() {
            names.add(name);
        }
        if names == Self::default() { Err(CertificateError::Nameless) } else { Ok(names) }
    }

    fn add(&mut self, name: &str) {
        let name = name.to_ascii_lowercase();
        match name.strip_prefix("*.") {
            Some(parent) => self.parents.push(parent.to_owned()),
            None => self.exact.push(name),
        }
    }

    /// Whether it does for this name or, where that begins with `*.`, for all under it.
    pub fn serve(&self, name: &str) -> bool {
        match name.strip_prefix("*.") {
            Some(parent) => self.parents.iter().any(|own| own == parent),
            None => self.cover(name),
        }
    }

    /// Whether a visitor that trusts this certificate may ask for `host`.
    pub fn cover(&self, host: &str) -> bool {
        self.exact.iter().any(|name| name == host)
            || host.split_once('.').is_some_and(|(_, parent)| self.parents.iter().any(|name| name == parent))
    }
}

impl Certificates {
    /// Where two are for one name, the first is used, or one that is not over. A visitor that names nobody gets the one that covers
    /// `preferred`, or else the first.
    pub fn new(all: impl IntoIterator<Item = Arc<Certificate>>, preferred: &str) -> Self {
        let mut certificates = Self::default();
        let (over, mut all): (Vec<_>, Vec<_>) = all.into_iter().partition(|it| it.validity.is_over());
        all.extend(over);
        for certificate in all {
            for name in &certificate.names.exact {
                certificates.exact.entry(name.clone()).or_insert_with(|| certificate.clone());
            }
            for parent in &certificate.names.parents {
                certificates.parents.entry(parent.clone()).or_insert_with(|| certificate.clone());
            }
            certificates.default.get_or_insert(certificate);
        }
        if let Some(certificate) = certificates.named(preferred).cloned() {
            certificates.default = Some(certificate);
        }
        certificates
    }

    pub fn is_empty(&self) -> bool {
        self.default.is_none()
    }

    /// The one for a visitor that asks for `name`.
    pub fn find(&self, name: Option<&str>) -> Option<&Arc<Certificate>> {
        match name {
            Some(name) => self.named(name),
            None => self.default.as_ref(),
        }
    }

    fn named(&self, name: &str) -> Option<&Arc<Certificate>> {
        let wild = || self.parents.get(name.split_once('.')?.1);
        let exact = self.exact.get(name);
        // A wildcard that is right is better than a name that is over.
        let usable = exact.filter(|it| !it.validity.is_over());
        usable.or_else(wild).or(exact)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_stands_for_one_label() {
        let mut names = Names::default();
        names.add("Example.com");
        names.add("*.example.com");
        assert!(names.cover("example.com") && names.cover("bob.example.com"));
        for other in ["a.b.example.com", "com", "example.org", "bobexample.com"] {
            assert!(!names.cover(other), "{other}");
        }
    }
}
