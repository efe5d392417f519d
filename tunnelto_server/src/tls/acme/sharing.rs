//! Certificates that instances of one cluster give each other, so that each is got once. Of those that want the same one at a time
//! the first by instance id gets it.

use std::{fmt, pin::Pin, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::{
    book::Errand,
    order::OrderError,
    progress::{Progress, Stage},
};
use crate::tls::{Terms, certificate::Certificate};

/// How long another instance's order is waited for.
const PATIENCE: Duration = Duration::from_secs(30 * 60);

/// How often it is looked, at first and at last.
const SOON: Duration = Duration::from_millis(500);
const SELDOM: Duration = Duration::from_secs(10);

/// What an instance says of a host's certificate.
#[derive(Default)]
pub struct Word {
    /// The certificate and its key.
    pub pem: Option<String>,
    pub doing: Doing,
}

/// What an instance does about a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Doing {
    #[default]
    Nothing,
    /// It wants it, and asks the others.
    Wanting,
    /// It gets it from the ACME server.
    Ordering,
    /// It has failed, and waits for so many milliseconds.
    Waiting(u64),
}

/// Another instance's word.
#[derive(Debug)]
pub struct Theirs {
    pub instance: String,
    pub word: Word,
}

/// Asks all others about a host. Those that do not answer in time are left out.
pub type AskOthers = Box<dyn Fn(&str) -> Pin<Box<dyn Future<Output = Vec<Theirs>>>>>;

/// What the others' words come to.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Wait,
    Mine,
    /// Another one has just failed.
    NotBefore(Duration),
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Word").field("has_pem", &self.pem.is_some()).field("doing", &self.doing).finish()
    }
}

impl From<Option<Stage>> for Doing {
    fn from(stage: Option<Stage>) -> Self {
        match stage {
            None | Some(Stage::Asked | Stage::Deferred(_)) => Self::Nothing,
            Some(Stage::Wanting) => Self::Wanting,
            Some(Stage::Ordering) => Self::Ordering,
            Some(Stage::Failed(until)) => {
                let left = until.saturating_duration_since(std::time::Instant::now());
                if left.is_zero() { Self::Nothing } else { Self::Waiting(left.as_millis() as u64) }
            }
        }
    }
}

/// What another instance has, waiting for one that is getting it. `None`: it is on this one, which is ordering it then. Call it as
/// [`Stage::Wanting`]: that is entered before the others are asked, so of two that begin at once each hears of the other.
pub async fn from_others(
    ask: &AskOthers,
    errand: &Errand,
    instance: &str,
    progress: &Progress,
    terms: &Terms,
) -> Result<Option<Certified>, OrderError> {
    let deadline = Instant::now() + PATIENCE;
    let mut pause = SOON;
    let mut mine = Doing::Wanting;
    loop {
        let theirs = ask(&errand.host).await;
        if let Some(offered) = latest(&theirs, errand, terms) {
            return Ok(Some(offered));
        }
        match (verdict(&theirs, instance, mine), mine) {
            (Verdict::NotBefore(wait), _) => return Err(OrderError::FailedElsewhere(wait)),
            (Verdict::Mine, Doing::Ordering) => return Ok(None),
            (Verdict::Mine, _) => {
                // Said before it is begun, and asked once more: another one may have come to the same.
                progress.enter(&errand.host, Stage::Ordering);
                mine = Doing::Ordering;
                continue;
            }
            (Verdict::Wait, _) => {
                progress.enter(&errand.host, Stage::Wanting);
                mine = Doing::Wanting;
            }
        }
        if Instant::now() >= deadline {
            return Err(OrderError::TooLong(PATIENCE));
        }
        sleep(pause).await;
        pause = (pause * 2).min(SELDOM);
    }
}

/// Who orders already goes on, whoever wants to as well gives way to the first by id.
fn verdict(theirs: &[Theirs], instance: &str, mine: Doing) -> Verdict {
    let mut verdict = Verdict::Mine;
    for their in theirs {
        let is_before = *their.instance < *instance;
        match their.word.doing {
            Doing::Ordering if mine != Doing::Ordering || is_before => return Verdict::Wait,
            Doing::Wanting if mine != Doing::Ordering && is_before => return Verdict::Wait,
            Doing::Waiting(left) => verdict = Verdict::NotBefore(Duration::from_millis(left)),
            Doing::Nothing | Doing::Wanting | Doing::Ordering => {}
        }
    }
    verdict
}

/// A certificate with its key that may be used.
pub struct Certified {
    pub pem: String,
    pub certificate: Certificate,
}

impl Certified {
    /// `None` for what is not for all the names, is over, or is not later than what is there.
    pub fn read(pem: String, errand: &Errand, terms: &Terms) -> Option<Self> {
        let certificate = Certificate::from_pem(pem.as_bytes(), pem.as_bytes(), terms).ok()?;
        let is_fit = errand.names.iter().all(|name| certificate.names.serve(name))
            && !certificate.validity.is_over()
            && errand.replaces.is_none_or(|old| old < certificate.validity.until);
        is_fit.then_some(Self { pem, certificate })
    }
}

/// The best of what is offered, as long as it is not due for renewal itself.
fn latest(theirs: &[Theirs], errand: &Errand, terms: &Terms) -> Option<Certified> {
    let now = std::time::SystemTime::now();
    let offered = theirs.iter().filter_map(|their| Certified::read(their.word.pem.clone()?, errand, terms));
    let fresh = offered.filter(|it| !it.certificate.validity.wants_renewal(now, super::book::EARLIER));
    fresh.max_by_key(|it| it.certificate.validity.until)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_that_want_it_one_gets_it() {
        let theirs = |instance: &str, doing| {
            vec![Theirs { instance: instance.into(), word: Word { pem: None, doing } }]
        };
        for (their, doing, mine, expected) in [
            ("a", Doing::Wanting, Doing::Wanting, Verdict::Wait),
            ("c", Doing::Wanting, Doing::Wanting, Verdict::Mine),
            // Who is at it already is waited for, whatever its id.
            ("a", Doing::Ordering, Doing::Wanting, Verdict::Wait),
            ("c", Doing::Ordering, Doing::Wanting, Verdict::Wait),
            ("a", Doing::Ordering, Doing::Ordering, Verdict::Wait),
            ("c", Doing::Ordering, Doing::Ordering, Verdict::Mine),
            ("a", Doing::Wanting, Doing::Ordering, Verdict::Mine),
            ("a", Doing::Nothing, Doing::Wanting, Verdict::Mine),
            ("c", Doing::Waiting(5), Doing::Wanting, Verdict::NotBefore(Duration::from_millis(5))),
        ] {
            assert_eq!(verdict(&theirs(their, doing), "b", mine), expected, "{their} {doing:?} {mine:?}");
        }
    }
}
