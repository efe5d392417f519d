//! Every metric's name, unit and labels, in one table.

use std::time::Duration;

use prometheus_client::{
    encoding::text::encode,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

type ByResult = Family<[(&'static str, &'static str); 1], Counter>;

pub struct Metrics {
    registry: Registry,
    lookups: ByResult,
    lookup_seconds: Histogram,
    hops: ByResult,
    claims_lost: Counter,
    questions: ByResult,
    store: ByResult,
    parked: Gauge,
    peers: Gauge,
    store_up: Gauge,
    store_trusted: Gauge,
}

/// What is counted elsewhere.
#[derive(Clone, Copy, Debug, Default)]
pub struct Present {
    /// Visitors that wait for a tunnel's client.
    pub parked: usize,
    /// Other instances that answer.
    pub peers: usize,
    pub store: Store,
}

/// The store that names are written down in, as this instance sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Store {
    /// There is none, or it does not answer.
    #[default]
    Away,
    /// It may lack something, so instances are asked as well.
    Up,
    /// What it does not have does not exist.
    Trusted,
}

/// One thing asked of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Beat,
    Read,
    Write,
    Instance,
    /// Any of them without an answer.
    Failed,
}

/// How a name was looked up that is not served here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// It is served here, so nobody was asked.
    Local,
    Peer,
    NotFound,
    /// An instance did not answer.
    Io,
    /// An instance refused the question or answered nonsense.
    Request,
    /// The instances themselves could not be found.
    Resolver,
}

/// How a visitor's way to another instance began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    Taken,
    /// The instance does not serve the name any more.
    NotMine,
    Unreachable,
    /// As many as the limit allows are there.
    Busy,
    /// Brought by another instance.
    Arrived,
    /// Somebody pretended to be one.
    Rejected,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("tunnelto");
        let lookups = ByResult::default();
        // 64 us to 2 s.
        let lookup_seconds = Histogram::new(exponential_buckets(0.000_064, 2.0, 16));
        let hops = ByResult::default();
        let (claims_lost, parked, peers) = (Counter::default(), Gauge::default(), Gauge::default());
        let (questions, store) = (ByResult::default(), ByResult::default());
        let (store_up, store_trusted) = (Gauge::default(), Gauge::default());
        registry.register("lookups", "Where names were found", lookups.clone());
        registry.register_with_unit(
            "lookup",
            "Time until a name was found",
            Unit::Seconds,
            lookup_seconds.clone(),
        );
        registry.register("hops", "Visitors brought to other instances, or by them", hops.clone());
        registry.register("claims_lost", "Names that went to an older claim elsewhere", claims_lost.clone());
        registry.register("questions", "Questions to other instances", questions.clone());
        registry.register("store_requests", "What was asked of the store", store.clone());
        registry.register("store_up", "1 while the store answers", store_up.clone());
        registry.register(
            "store_trusted",
            "1 while what the store does not have does not exist",
            store_trusted.clone(),
        );
        registry.register("parked", "Visitors that wait for a tunnel's client", parked.clone());
        registry.register("peers", "Other instances that answer", peers.clone());
        Self {
            registry,
            lookups,
            lookup_seconds,
            hops,
            claims_lost,
            questions,
            store,
            parked,
            peers,
            store_up,
            store_trusted,
        }
    }
}

impl Metrics {
    pub fn looked_up(&self, lookup: Lookup, took: Option<Duration>) {
        self.lookups.get_or_create(&[("result", lookup.label())]).inc();
        if let Some(took) = took {
            self.lookup_seconds.observe(took.as_secs_f64());
        }
    }

    pub fn hop(&self, hop: Hop) {
        self.hops.get_or_create(&[("result", hop.label())]).inc();
    }

    pub fn claim_lost(&self) {
        self.claims_lost.inc();
    }

    /// A question to another instance.
    pub fn asked(&self, is_answered: bool) {
        let result = if is_answered { "answered" } else { "failed" };
        self.questions.get_or_create(&[("result", result)]).inc();
    }

    pub fn asked_store(&self, asked: Asked) {
        self.store.get_or_create(&[("kind", asked.label())]).inc();
    }

    /// In the text format of OpenMetrics.
    pub fn encode(&self, present: Present) -> String {
        self.parked.set(present.parked as i64);
        self.peers.set(present.peers as i64);
        self.store_up.set(i64::from(present.store != Store::Away));
        self.store_trusted.set(i64::from(present.store == Store::Trusted));
        let mut text = String::new();
        // Writing to a string never fails.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

impl Lookup {
    pub fn label(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Peer => "peer",
            Self::NotFound => "not_found",
            Self::Io => "io",
            Self::Request => "request",
            Self::Resolver => "resolver",
        }
    }
}

impl Asked {
    fn label(self) -> &'static str {
        match self {
            Self::Beat => "beat",
            Self::Read => "read",
            Self::Write => "write",
            Self::Instance => "instance",
            Self::Failed => "failed",
        }
    }
}

impl Hop {
    fn label(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::NotMine => "not_mine",
            Self::Unreachable => "unreachable",
            Self::Busy => "busy",
            Self::Arrived => "arrived",
            Self::Rejected => "rejected",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_documented() {
        let metrics = Metrics::default();
        metrics.looked_up(Lookup::Peer, Some(Duration::from_millis(1)));
        metrics.hop(Hop::Taken);
        metrics.claim_lost();
        metrics.asked(true);
        metrics.asked_store(Asked::Read);
        let text = metrics.encode(Present { parked: 3, peers: 2, store: Store::Up });
        for line in [
            r#"tunnelto_lookups_total{result="peer"} 1"#,
            "tunnelto_lookup_seconds_count 1",
            r#"tunnelto_hops_total{result="taken"} 1"#,
            "tunnelto_claims_lost_total 1",
            r#"tunnelto_questions_total{result="answered"} 1"#,
            r#"tunnelto_store_requests_total{kind="read"} 1"#,
            "tunnelto_store_up 1",
            "tunnelto_store_trusted 0",
            "tunnelto_parked 3",
            "tunnelto_peers 2",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
