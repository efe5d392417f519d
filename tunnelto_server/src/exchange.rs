//! One visitor's request from its head to the last byte of its answer: who, what, how much, and how it ended.
//! It is recorded exactly once, when it is dropped.

use std::{net::SocketAddr, sync::Arc, time::Instant};

use bytes::Bytes;
use http::Method;
use tunnelto_lib::name::Label;

use crate::{
    active_stream::ConnectionId,
    error::Refusal,
    observability::access_log::{self, Line},
    tls::certificate::Names,
};

/// Rides along from classify to record.
pub struct Exchange {
    pub began: Instant,
    /// Who is believed to be the visitor.
    pub visitor: SocketAddr,
    /// Whose connection it is.
    pub peer: SocketAddr,
    pub method: Method,
    pub target: Bytes,
    pub way: Way,
    /// Its visitor speaks TLS, here or with a trusted proxy.
    pub is_secure: bool,
    /// The tunnel, once routed.
    pub name: Option<Label>,
    pub status: Option<u16>,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub outcome: Outcome,
    /// It has come from another shard.
    pub has_moved: bool,
    pub reach: Reach,
    /// Connections whose local service has refused it.
    pub avoid: Vec<ConnectionId>,
    is_recorded: bool,
}

/// How far it may be brought to the tunnel's client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// To another instance, with its whole connection.
    Pipe,
    /// To another instance, by itself.
    Request,
    /// It was brought here.
    Here,
}

/// Who can read a visitor's bytes on their way.
#[derive(Clone, Debug, Default)]
pub enum Way {
    #[default]
    Plain,
    /// Without TLS where it is expected.
    Unsecured,
    /// TLS that ended here, with a certificate for these names, or on the instance that has brought the visitor.
    Tls(Option<Arc<Names>>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The visitor left, or the server stopped, before the answer was whole.
    Aborted,
    /// The local service broke off in the middle of its answer.
    Truncated,
    Refused(Refusal),
    /// The server itself answered: health, the bare host.
    Local,
    Answered,
    Upgraded,
}

impl Way {
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }
}

impl Exchange {
    pub fn new(visitor: SocketAddr, peer: SocketAddr, method: Method, target: Bytes) -> Self {
        Self {
            began: Instant::now(),
            visitor,
            peer,
            method,
            target,
            way: Way::Plain,
            is_secure: false,
            name: None,
            status: None,
            bytes_in: 0,
            bytes_out: 0,
            outcome: Outcome::Aborted,
            has_moved: false,
            reach: Reach::Request,
            avoid: Vec::new(),
            is_recorded: false,
        }
    }

    /// Another shard goes on with it and records it.
    pub fn move_on(&mut self) {
        self.is_recorded = true;
    }

    /// Writes the line now instead of at the end.
    pub fn record(&mut self) {
        if std::mem::replace(&mut self.is_recorded, true) {
            return;
        }
        access_log::record(&Line {
            visitor: self.visitor.ip(),
            name: self.name.as_ref(),
            method: self.method.as_str(),
            target: &self.target,
            status: self.status,
            outcome: self.outcome.label(),
            took: self.began.elapsed(),
            bytes_in: self.bytes_in,
            bytes_out: self.bytes_out,
        });
    }
}

impl Outcome {
    pub fn label(self) -> &'static str {
        match self {
            Self::Aborted => "aborted",
            Self::Truncated => "truncated",
            Self::Refused(refusal) => refusal.code(),
            Self::Local => "local",
            Self::Answered => "answered",
            Self::Upgraded => "upgraded",
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.record();
    }
}
