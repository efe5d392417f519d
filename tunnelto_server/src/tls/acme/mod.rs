//! TLS=acme: certificates from an ACME server (RFC 8555), got on a name's first use, kept in DATA_DIR/certificates, and renewed when
//! two thirds of their time are over.

mod account;
mod book;
mod hook;
mod ledger;
mod order;
mod progress;
mod proofs;
pub mod sharing;
mod tending;

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use rustls::pki_types::{CertificateDer, pem::PemObject};
use tokio::{
    sync::{Notify, watch},
    time::timeout,
};
use tunnelto_lib::name::Hostname;

use super::{
    Terms,
    certificate::{Certificate, Certificates},
};
use crate::{
    config::{self, Config},
    sign::Purpose,
};
use account::Opening;
use book::Book;
use hook::Hook;
use ledger::Ledger;
use progress::Progress;
use proofs::Proofs;
use sharing::Word;
pub use tending::Tending;

/// How long a visitor waits for its host's first certificate. Browsers give up no sooner.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the doors have of it.
pub struct Acme {
    pub proofs: Proofs,
    found: watch::Receiver<Arc<Certificates>>,
    progress: Progress,
    own: Vec<Hostname>,
    has_wildcards: bool,
    /// Where certificates are kept.
    folder: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum AcmeError {
    #[error("DATA_DIR: {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("ACME_CA {}: {why}", path.display())]
    Authority { path: PathBuf, why: String },
    #[error("ACME_DNS_HOOK {} is no file", .0.display())]
    Hook(PathBuf),
}

impl Acme {
    /// Where certificates are kept, made if need be.
    pub fn folder(config: &Config) -> Result<PathBuf, AcmeError> {
        let path = config.data_dir.join("certificates");
        match std::fs::create_dir_all(&path) {
            Ok(()) => Ok(path),
            Err(source) => Err(AcmeError::Io { path, source }),
        }
    }

    /// `nudge` is heard by whoever watches `folder`.
    pub fn new(
        settings: &config::Acme,
        config: &Config,
        terms: Terms,
        folder: PathBuf,
        found: watch::Receiver<Arc<Certificates>>,
        nudge: Arc<Notify>,
    ) -> Result<(Arc<Self>, Tending), AcmeError> {
        let failed = |path: &PathBuf| {
            let path = path.clone();
            |source| AcmeError::Io { path, source }
        };
        if let Some(path) = &settings.authority {
            CertificateDer::from_pem_file(path)
                .map_err(|why| AcmeError::Authority { path: path.clone(), why: why.to_string() })?;
        }
        if let Some(path) = settings.dns_hook.as_ref().filter(|path| !path.is_file()) {
            return Err(AcmeError::Hook(path.clone()));
        }
        let hook = settings.dns_hook.clone().map(Hook);
        let book = Book::open(&folder, &config.allowed_hosts, hook.is_some(), &terms);
        let book = book.map_err(failed(&folder))?;
        let ledger = config.data_dir.join("acme-orders");
        let ledger = Ledger::open(ledger.clone(), settings.weekly).map_err(failed(&ledger))?;
        let key = config.keys.derive_signing_key(Purpose::AcmeAccount);
        let acme = Arc::new(Self {
            proofs: Proofs::new(terms.clone(), key.thumbprint()),
            found,
            progress: Progress::default(),
            own: config.allowed_hosts.clone(),
            has_wildcards: hook.is_some(),
            folder,
        });
        let account = Opening {
            key,
            directory: settings.directory.clone(),
            email: settings.email.clone(),
            authority: settings.authority.clone(),
        };
        let instance = config.instance.clone();
        Ok((acme.clone(), Tending { acme, account, book, ledger, hook, instance, terms, nudge }))
    }

    /// What other instances are told of a host's certificate.
    pub fn word(&self, host: &Hostname) -> Word {
        let pem = std::fs::read_to_string(self.file(host.as_str())).ok();
        Word { pem, doing: self.progress.stage(host.as_str()).into() }
    }

    fn file(&self, host: &str) -> PathBuf {
        self.folder.join(format!("{host}.pem"))
    }

    /// The certificate for `host`, which the server may ask for. `None` when that fails or takes too long.
    pub async fn obtain(&self, host: &str) -> Option<Arc<Certificate>> {
        let known_as = self.known_as(host);
        let mut ended = self.progress.ask(known_as)?;
        let usable = || {
            let found = self.found.borrow().find(Some(host)).cloned();
            found.filter(|certificate| !certificate.validity.is_over())
        };
        let waiting = async {
            loop {
                if let Some(certificate) = usable() {
                    return Some(certificate);
                }
                let stage = self.progress.stage(known_as);
                if stage.is_none_or(|stage| stage.until().is_some()) {
                    return None;
                }
                // Ends only with the server.
                ended.changed().await.ok()?;
            }
        };
        timeout(PATIENCE, waiting).await.ok().flatten()
    }

    /// Of the server's own hosts one certificate is for more than one name.
    fn known_as<'h>(&self, host: &'h str) -> &'h str {
        match host.split_once('.') {
            Some((label, parent))
                if (self.has_wildcards || label == "wormhole")
                    && self.own.iter().any(|own| own.as_str() == parent) =>
            {
                parent
            }
            _ => host,
        }
    }
}
