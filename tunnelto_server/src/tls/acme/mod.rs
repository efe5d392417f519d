//! TLS=acme: certificates from an ACME server (RFC 8555), got on a name's first use, kept in DATA_DIR/certificates, and renewed when
//! two thirds of their time are over.

mod account;
mod book;
mod hook;
mod ledger;
mod order;
mod proofs;
pub mod sharing;
mod tending;

use std::{
    collections::HashMap,
    io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::{
    sync::{Notify, mpsc, watch},
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
use proofs::Proofs;
use sharing::{UnderWay, Word};
pub use tending::Tending;

/// How long a visitor waits for its host's first certificate. Browsers give up no sooner.
const PATIENCE: Duration = Duration::from_secs(30);

/// Hosts whose certificate visitors wait for. More are turned away.
const MAX_PENDING: usize = 64;

/// What the doors have of it.
pub struct Acme {
    pub proofs: Proofs,
    found: watch::Receiver<Arc<Certificates>>,
    asking: mpsc::Sender<String>,
    pending: Mutex<HashMap<String, Progress>>,
    /// Marked whenever an order has ended.
    settled: watch::Sender<()>,
    own: Vec<Hostname>,
    has_wildcards: bool,
    /// Where certificates are kept.
    folder: PathBuf,
    under_way: UnderWay,
}

/// How far a host's certificate is that is not there.
#[derive(Clone, Copy, Debug)]
enum Progress {
    UnderWay,
    /// Nothing is tried before then.
    Failed {
        until: Instant,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum AcmeError {
    #[error("DATA_DIR: {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
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

    /// `nudge` is heard by whoever watches the folder.
    pub fn new(
        settings: &config::Acme,
        config: &Config,
        terms: Terms,
        found: watch::Receiver<Arc<Certificates>>,
        nudge: Arc<Notify>,
    ) -> Result<(Arc<Self>, Tending), AcmeError> {
        let folder = Self::folder(config)?;
        let failed = |path: &PathBuf| {
            let path = path.clone();
            |source| AcmeError::Io { path, source }
        };
        let hook = settings.dns_hook.clone().map(Hook);
        let book = Book::open(&folder, &config.allowed_hosts, hook.is_some()).map_err(failed(&folder))?;
        let ledger = config.data_dir.join("acme-orders");
        let ledger = Ledger::open(ledger.clone(), settings.weekly).map_err(failed(&ledger))?;
        let key = config.keys.derive_signing_key(Purpose::AcmeAccount);
        let (asking, asked) = mpsc::channel(MAX_PENDING);
        let acme = Arc::new(Self {
            proofs: Proofs::new(terms.clone(), key.thumbprint()),
            found,
            asking,
            pending: Mutex::default(),
            settled: watch::Sender::default(),
            own: config.allowed_hosts.clone(),
            has_wildcards: hook.is_some(),
            folder,
            under_way: UnderWay::default(),
        });
        let account = Opening {
            key,
            directory: settings.directory.clone(),
            email: settings.email.clone(),
            authority: settings.authority.clone(),
        };
        let instance = config.instance.clone();
        Ok((acme.clone(), Tending { acme, account, asked, book, ledger, hook, instance, terms, nudge }))
    }

    /// What other instances are told of a host's certificate.
    pub fn word(&self, host: &Hostname) -> Word {
        let pem = std::fs::read_to_string(self.file(host.as_str())).ok();
        Word { pem, is_under_way: self.under_way.contains(host.as_str()) }
    }

    fn file(&self, host: &str) -> PathBuf {
        self.folder.join(format!("{host}.pem"))
    }

    /// The certificate for `host`, which the server may ask for. `None` when that fails or takes too long.
    pub async fn obtain(&self, host: &str) -> Option<Arc<Certificate>> {
        let mut settled = self.settled.subscribe();
        let known_as = self.known_as(host);
        if !self.ask(known_as) {
            return None;
        }
        let waiting = async {
            // Ends only with the server.
            while settled.changed().await.is_ok() {
                let found = self.found.borrow().find(Some(host)).cloned();
                if found.as_ref().is_some_and(|certificate| !certificate.validity.is_over()) {
                    return found;
                }
                if !matches!(self.pending().get(known_as), Some(Progress::UnderWay)) {
                    return None;
                }
            }
            None
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

    /// Whether its certificate is on its way now.
    fn ask(&self, host: &str) -> bool {
        let mut pending = self.pending();
        match pending.get(host) {
            Some(Progress::UnderWay) => return true,
            Some(Progress::Failed { until }) if *until > Instant::now() => return false,
            _ => {}
        }
        let is_asked = self.asking.try_send(host.to_owned()).is_ok();
        if is_asked {
            pending.insert(host.to_owned(), Progress::UnderWay);
        }
        is_asked
    }

    fn pending(&self) -> MutexGuard<'_, HashMap<String, Progress>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets those who wait for `host` look again. `until`: when to try again, unless it is there.
    fn settle(&self, host: &str, until: Option<Instant>) {
        let mut pending = self.pending();
        pending.retain(
            |_, progress| !matches!(progress, Progress::Failed { until } if *until <= Instant::now()),
        );
        match until {
            Some(until) => pending.insert(host.to_owned(), Progress::Failed { until }),
            None => pending.remove(host),
        };
        drop(pending);
        self.settled.send_replace(());
    }
}
