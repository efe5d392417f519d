//! Certificates that instances of one cluster give each other, so that each is got once. Of those that want the same one the
//! first by instance id gets it.

use std::{
    collections::HashSet,
    pin::Pin,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{book::Errand, order::OrderError};
use crate::tls::{Terms, certificate::Certificate};

/// How long another instance's order is waited for, and how often it is looked.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What an instance says of a host's certificate.
#[derive(Debug, Default)]
pub struct Word {
    /// The certificate and its key.
    pub pem: Option<String>,
    /// It is getting it just now.
    pub is_under_way: bool,
}

/// Another instance's word.
#[derive(Debug)]
pub struct Theirs {
    pub instance: String,
    pub word: Word,
}

/// Asks all others about a host. Those that do not answer in time are left out.
pub type AskOthers = Box<dyn Fn(&str) -> Pin<Box<dyn Future<Output = Vec<Theirs>>>>>;

/// What this instance is getting.
#[derive(Default)]
pub struct UnderWay(Mutex<HashSet<String>>);

/// As long as it is kept.
pub struct Getting<'u> {
    host: String,
    all: &'u UnderWay,
}

impl UnderWay {
    pub fn begin(&self, host: &str) -> Getting<'_> {
        self.hosts().insert(host.to_owned());
        Getting { host: host.to_owned(), all: self }
    }

    pub fn contains(&self, host: &str) -> bool {
        self.hosts().contains(host)
    }

    fn hosts(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Getting<'_> {
    fn drop(&mut self) {
        self.all.hosts().remove(&self.host);
    }
}

/// What another instance has, waiting for one that is getting it. `None`: it is on this one to get it. Call it while one's own
/// [`UnderWay`] has the host, so that of two that begin at once each knows of the other.
pub async fn from_others(
    ask: &AskOthers,
    errand: &Errand,
    instance: &str,
    terms: &Terms,
) -> Result<Option<String>, OrderError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let theirs = ask(&errand.host).await;
        let mut offered = theirs.iter().filter_map(|their| their.word.pem.as_ref());
        if let Some(pem) = offered.find(|pem| is_fit(pem, errand, terms)) {
            return Ok(Some(pem.clone()));
        }
        let goes_first = theirs.iter().all(|their| !their.word.is_under_way || *their.instance > *instance);
        if goes_first {
            return Ok(None);
        }
        if Instant::now() >= deadline {
            return Err(OrderError::TooLong(PATIENCE));
        }
        sleep(LOOK_EVERY).await;
    }
}

fn is_fit(pem: &str, errand: &Errand, terms: &Terms) -> bool {
    let certificate = Certificate::from_pem(pem.as_bytes(), pem.as_bytes(), terms);
    certificate.is_ok_and(|it| {
        errand.names.iter().all(|name| it.names.include(name))
            && !it.validity.wants_renewal(std::time::SystemTime::now(), 0.0)
    })
}
