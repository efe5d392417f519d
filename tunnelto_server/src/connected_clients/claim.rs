//! What a client asks for when it wants a name, and what becomes of that.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use tunnelto_lib::name::Label;
use uuid::Uuid;

use super::Orders;
use crate::{active_stream::ConnectionId, gauge::Gauge};

/// Whoever a key belongs to; several keys may be one owner's. A client without a key is an owner of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner(pub Arc<str>);

/// One connection that serves a name.
#[derive(Clone, Debug)]
pub struct Member {
    pub connection: ConnectionId,
    /// Exchanges under way on it.
    pub load: Gauge,
    /// Which of its session's connections it is.
    pub number: u16,
    pub client_id: Arc<str>,
    pub orders: Orders,
}

/// A claim on a name, from a client that has proved who it is.
#[derive(Clone, Debug)]
pub struct Claim {
    pub name: Label,
    pub owner: Owner,
    pub session: Option<Uuid>,
    pub pool: bool,
    pub takeover: bool,
    pub member: Member,
}

/// What is known about the present holder of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    Unknown,
    /// These connections were asked and showed no life.
    Silent(Vec<ConnectionId>),
}

#[derive(Debug)]
pub enum Verdict {
    Granted(Granted),
    /// Another owner's.
    Taken,
    /// Another owner's, if other instances agree: that is being asked.
    Undecided,
    /// The same owner's other session serves it; it may be dead.
    Held(Vec<Member>),
}

/// A name that was granted here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The session holds it here already, so other instances need not be asked.
    pub is_settled: bool,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Farewell {
    /// On purpose: the name is free at once.
    Said,
    /// Without a word: the name is kept for its owner for a while.
    None,
}

impl Owner {
    /// Tells owners apart between instances without naming them.
    pub fn tag(&self) -> u64 {
        let digest = Sha256::digest(self.0.as_bytes());
        digest.iter().take(8).fold(0, |tag, byte| tag << 8 | u64::from(*byte))
    }
}

impl Holder {
    pub fn is_silent(&self, connection: ConnectionId) -> bool {
        matches!(self, Self::Silent(connections) if connections.contains(&connection))
    }
}
