//! Another instance, as far as this one knows it.

use std::{
    net::SocketAddr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::{breaker::Breaker, discovery::Listed, pace::Line};
use crate::gauge::{Counted, Gauge};

/// How an instance names itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    pub instance: String,
    /// Another one each time it starts, which its id need not be.
    pub life: u64,
    /// Where it takes visitors.
    pub port: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_port: Option<u16>,
    #[serde(default)]
    pub draining: bool,
}

#[derive(Debug)]
pub struct Peer {
    /// Its NET_PORT.
    pub at: SocketAddr,
    state: Mutex<State>,
    hops: Gauge,
    /// All that visitors send there and get from there.
    pub line: Line,
}

#[derive(Debug, Default)]
struct State {
    introduced: Option<Introduction>,
    breaker: Breaker,
    down_since: Option<Instant>,
    refuses: bool,
    heard: Heard,
    complained: Option<Instant>,
    listed: Option<Listed>,
    /// What it holds is not all in the store until then.
    without_store_until: Option<Instant>,
}

/// How often an instance that answers wrongly is complained of.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// How far we have listened to what is new there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    pub life: u64,
    pub next: u64,
    /// In the middle of hearing everything from the start.
    pub goes_on: bool,
    /// Counts how often that was begun.
    pub round: u32,
}

/// Why an instance did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// Nobody listens there: what it held it holds no more.
    Refuses,
    Silent,
}

impl Peer {
    pub fn new(at: SocketAddr) -> Self {
        Self { at, state: Mutex::default(), hops: Gauge::default(), line: Line::default() }
    }

    /// Nothing that can panic happens under this lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn may_try(&self, now: Instant) -> bool {
        self.state().breaker.may_try(now)
    }

    /// It has answered: from now on it is known by this name. Returns whether it was down.
    pub fn answered(&self, introduction: &Introduction) -> bool {
        let mut state = self.state();
        state.breaker.succeeded();
        if state.introduced.as_ref() != Some(introduction) {
            state.introduced = Some(introduction.clone());
        }
        state.down_since.take().is_some()
    }

    /// The store has it so, or not any more; whether it answers is another matter.
    pub fn list(&self, listed: Option<&Listed>) {
        let mut state = self.state();
        if state.listed.as_ref() != listed {
            // What it has said itself since counts more than what is listed as before.
            if let Some(Listed { introduction, .. }) = listed {
                state.introduced = Some(introduction.clone());
            }
            state.listed = listed.cloned();
        }
    }

    /// Its id, if the store lists it.
    pub fn listed_instance(&self) -> Option<String> {
        self.state().listed.as_ref().map(|listed| listed.introduction.instance.clone())
    }

    /// Whether the store has all that it holds, as far as it says.
    pub fn is_in_store(&self, now: Instant) -> bool {
        let state = self.state();
        state.listed.as_ref().is_some_and(|listed| listed.is_complete)
            && state.without_store_until.is_none_or(|until| until <= now)
            && !state.breaker.is_open()
    }

    pub fn without_store(&self, until: Instant) {
        self.state().without_store_until = Some(until);
    }

    /// Returns whether this is news.
    pub fn failed(&self, down: Down, now: Instant) -> bool {
        let mut state = self.state();
        state.breaker.failed(now);
        state.refuses = down == Down::Refuses;
        let is_news = state.down_since.is_none();
        state.down_since.get_or_insert(now);
        is_news
    }

    /// It answers, but wrongly. Returns whether it is time to say so.
    pub fn complains(&self, now: Instant) -> bool {
        let mut state = self.state();
        let is_due = state.complained.is_none_or(|last| now.duration_since(last) >= COMPLAIN_EVERY);
        if is_due {
            state.complained = Some(now);
        }
        is_due
    }

    /// Why it is left alone just now.
    pub fn down(&self) -> Option<Down> {
        let state = self.state();
        state.breaker.is_open().then_some(if state.refuses { Down::Refuses } else { Down::Silent })
    }

    /// Until when its tunnels count as away, since their clients are on their way to other instances.
    pub fn away_until(&self, grace: Duration) -> Option<Instant> {
        self.state().down_since.map(|since| since + grace)
    }

    pub fn introduction(&self) -> Option<Introduction> {
        self.state().introduced.clone()
    }

    pub fn is_instance(&self, instance: &str) -> bool {
        self.state().introduced.as_ref().is_some_and(|introduced| introduced.instance == instance)
    }

    pub fn is_draining(&self) -> bool {
        self.state().introduced.as_ref().is_some_and(|introduced| introduced.draining)
    }

    pub fn is_instance_draining(&self, instance: &str) -> bool {
        let state = self.state();
        state
            .introduced
            .as_ref()
            .is_some_and(|introduced| introduced.draining && introduced.instance == instance)
    }

    pub fn heard(&self) -> Heard {
        self.state().heard
    }

    pub fn set_heard(&self, heard: Heard) {
        self.state().heard = heard;
    }

    /// A place for one more visitor.
    pub fn hop(&self, most: usize) -> Option<Counted> {
        self.hops.try_enter(most)
    }

    pub fn load(&self) -> usize {
        self.hops.count()
    }
}
