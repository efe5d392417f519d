//! How far each certificate is that is not there yet: what visitors who wait, the orders, and other instances know of it.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::{Notify, watch};

/// Certificates that visitors wait for at a time. More are turned away.
const MAX_ASKED: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A visitor waits for it.
    Asked,
    /// This instance wants it, and asks the others.
    Wanting,
    /// This instance gets it from the ACME server.
    Ordering,
    /// It was not got, and is not tried before then, by nobody.
    Failed(Instant),
    /// The same, but another instance may try.
    Deferred(Instant),
}

impl Stage {
    /// When it may be tried again; `None`: it is under way.
    pub fn until(self) -> Option<Instant> {
        match self {
            Self::Failed(until) | Self::Deferred(until) => Some(until),
            Self::Asked | Self::Wanting | Self::Ordering => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    stage: Stage,
    failures: u32,
}

/// By host. Nothing is here of what is there.
#[derive(Default)]
pub struct Progress {
    entries: Mutex<HashMap<String, Entry>>,
    /// Somebody has begun to wait.
    pub asked: Notify,
    /// Something has come to its end.
    ended: watch::Sender<()>,
}

impl Progress {
    fn entries(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A visitor wants it. `None`: that is of no use now. Else it hears of every end from now on.
    pub fn ask(&self, host: &str) -> Option<watch::Receiver<()>> {
        let heard = self.ended.subscribe();
        let mut entries = self.entries();
        let failures = match entries.get(host).copied() {
            Some(Entry { stage, failures }) => match stage.until() {
                Some(until) if until > Instant::now() => return None,
                Some(_) => failures,
                None => return Some(heard),
            },
            None => 0,
        };
        if entries.values().filter(|entry| entry.stage == Stage::Asked).count() >= MAX_ASKED {
            return None;
        }
        entries.insert(host.to_owned(), Entry { stage: Stage::Asked, failures });
        drop(entries);
        self.asked.notify_one();
        Some(heard)
    }

    pub fn stage(&self, host: &str) -> Option<Stage> {
        self.entries().get(host).map(|entry| entry.stage)
    }

    pub fn asked(&self) -> Vec<String> {
        let entries = self.entries();
        let asked = entries.iter().filter(|(_, entry)| entry.stage == Stage::Asked);
        asked.map(|(host, _)| host.clone()).collect()
    }

    pub fn enter(&self, host: &str, stage: Stage) {
        let mut entries = self.entries();
        let failures = entries.get(host).map_or(0, |entry| entry.failures);
        entries.insert(host.to_owned(), Entry { stage, failures });
    }

    /// It is there. Whoever waits looks again.
    pub fn succeed(&self, host: &str) {
        self.entries().remove(host);
        self.ended.send_replace(());
    }

    /// It was not got. `wait` makes of the failures before how long nothing is tried.
    pub fn fail(&self, host: &str, wait: impl Fn(u32) -> Duration) -> Duration {
        let mut entries = self.entries();
        let failures = entries.get(host).map_or(0, |entry| entry.failures);
        let wait = wait(failures);
        let stage = Stage::Failed(Instant::now() + wait);
        entries.insert(host.to_owned(), Entry { stage, failures: failures.saturating_add(1) });
        drop(entries);
        self.ended.send_replace(());
        wait
    }

    /// It cannot be got just now, which is no failure of its own.
    pub fn defer(&self, host: &str, wait: Duration) {
        self.enter(host, Stage::Deferred(Instant::now() + wait));
        self.ended.send_replace(());
    }

    /// Forgets failures whose time is over of hosts that are not `kept`.
    pub fn forget(&self, kept: impl Fn(&str) -> bool) {
        let now = Instant::now();
        let is_over = |stage: Stage| stage.until().is_some_and(|until| until <= now);
        self.entries().retain(|host, entry| !is_over(entry.stage) || kept(host));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_wait_for_one_and_a_failure_is_remembered() {
        let progress = Progress::default();
        let heard = progress.ask("a").unwrap();
        assert!(progress.ask("a").is_some());
        assert_eq!(progress.asked(), ["a"]);
        progress.fail("a", |_| Duration::from_secs(60));
        assert!(heard.has_changed().unwrap());
        assert!(progress.ask("a").is_none());
        progress.fail("a", |failures| {
            assert_eq!(failures, 1);
            Duration::ZERO
        });
        assert!(progress.ask("a").is_some());
        progress.succeed("a");
        assert_eq!(progress.stage("a"), None);
    }

    #[test]
    fn those_who_wait_are_bounded() {
        let progress = Progress::default();
        for number in 0..MAX_ASKED {
            assert!(progress.ask(&number.to_string()).is_some());
        }
        assert!(progress.ask("one more").is_none());
        assert!(progress.ask("0").is_some());
    }
}
