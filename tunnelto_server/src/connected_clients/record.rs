//! All that is known of one name here: whose it is, and the connections that serve it.

use std::time::{Duration, Instant};

use uuid::Uuid;

use super::{Held, Member, Owner, Reason};

pub struct Record {
    pub owner: Owner,
    pub session: Option<Uuid>,
    pub pool: bool,
    pub since: u64,
    pub took_over: bool,
    /// No connection of it has been granted the name for good yet.
    pub pending: bool,
    pub members: Vec<Seated>,
    /// Since when there are no members.
    pub away_since: Option<Instant>,
}

pub struct Seated {
    pub member: Member,
    pub joined: u64,
    /// Its client knows that it has the name, and exchanges may go there.
    pub is_ready: bool,
}

impl Record {
    pub fn new(owner: Owner, session: Option<Uuid>, pool: bool, first: Seated) -> Self {
        Self {
            owner,
            session,
            pool,
            since: first.joined,
            took_over: false,
            pending: true,
            members: vec![first],
            away_since: None,
        }
    }

    pub fn is_over(&self, grace: Duration, now: Instant) -> bool {
        self.away_since.is_some_and(|since| now.duration_since(since) >= grace)
    }

    pub fn dismiss(&mut self, reason: Reason, which: impl Fn(&Member) -> bool) {
        self.members.retain(|seated| {
            let out = which(&seated.member);
            if out {
                seated.member.orders.leave(reason);
            }
            !out
        });
    }

    pub fn held(&self, grace: Duration, now: Instant) -> Held {
        let left = |since: Instant| (since + grace).saturating_duration_since(now).as_millis() as u64;
        Held {
            owner: self.owner.tag(),
            session: self.session,
            since: self.since,
            pool: self.pool,
            took_over: self.took_over,
            pending: self.pending,
            connections: self.members.iter().map(|seated| (seated.member.number, seated.joined)).collect(),
            away_ms: match self.away_since {
                None if self.members.iter().any(|seated| seated.is_ready) => None,
                None => Some(grace.as_millis() as u64),
                Some(since) => Some(left(since)),
            },
        }
    }
}
