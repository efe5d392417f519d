//! Opening a byte stream for an exchange, and what every such stream can do: a client's, or one to the instance that
//! serves the tunnel.

pub mod peer;
pub mod tunnel;

use std::{
    future::poll_fn,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tunnelto_lib::{mux::Ended, packet::ResetCode};

use crate::active_stream::{ActiveStream, ConnectionId};
use peer::PeerStream;

/// A stream in use by one exchange. Dropping it aborts what is not over.
pub enum Upstream {
    Tunnel(ActiveStream),
    Peer(PeerStream),
}

impl Upstream {
    /// Whether an earlier exchange used this stream.
    pub fn is_reused(&self) -> bool {
        match self {
            Self::Tunnel(stream) => stream.is_reused(),
            Self::Peer(_) => false,
        }
    }

    pub fn protocol(&self) -> u8 {
        match self {
            Self::Tunnel(stream) => stream.protocol(),
            Self::Peer(_) => tunnelto_lib::hello::PROTOCOL,
        }
    }

    /// Another instance writes the head for the local service itself.
    pub fn wants_head_as_it_came(&self) -> bool {
        matches!(self, Self::Peer(_))
    }

    /// The exchange is over; see [`ActiveStream::give_back`].
    pub fn give_back(self, keep_alive: Option<Duration>, stays: bool) {
        match self {
            Self::Tunnel(stream) if stays => stream.give_back(keep_alive),
            Self::Tunnel(_) => {}
            Self::Peer(stream) => stream.conclude(),
        }
    }

    /// The client's connection that it is on, if it is here.
    pub fn connection(&self) -> Option<ConnectionId> {
        match self {
            Self::Tunnel(stream) => Some(stream.connection()),
            Self::Peer(_) => None,
        }
    }

    pub async fn ready(&self) -> Result<(), Ended> {
        match self {
            Self::Tunnel(stream) => stream.ready().await,
            Self::Peer(stream) => poll_fn(|cx| stream.poll_ready(cx)).await,
        }
    }

    pub fn send(&self, bytes: Bytes) -> Result<(), Ended> {
        match self {
            Self::Tunnel(stream) => stream.send(bytes),
            Self::Peer(stream) => stream.send(bytes),
        }
    }

    pub fn finish(&self) {
        match self {
            Self::Tunnel(stream) => stream.finish(),
            Self::Peer(stream) => stream.finish(),
        }
    }

    pub fn reset(&self, code: ResetCode) {
        match self {
            Self::Tunnel(stream) => stream.reset(code),
            // It is when it is dropped.
            Self::Peer(_) => {}
        }
    }

    pub async fn recv(&self) -> Result<Option<Bytes>, Ended> {
        match self {
            Self::Tunnel(stream) => stream.recv().await,
            Self::Peer(stream) => poll_fn(|cx| stream.poll_recv(cx)).await,
        }
    }

    pub fn try_recv(&self) -> Option<Bytes> {
        match self {
            Self::Tunnel(stream) => stream.try_recv(),
            Self::Peer(stream) => stream.try_recv(),
        }
    }

    pub fn has_unread(&self) -> bool {
        match self {
            Self::Tunnel(stream) => stream.has_unread(),
            Self::Peer(stream) => stream.has_unread(),
        }
    }

    /// Bytes that were received have gone on.
    pub fn consumed(&self, bytes: usize) {
        if let Self::Tunnel(stream) = self {
            stream.consumed(bytes);
        }
    }

    /// Only a stream that an earlier exchange used is waited for so.
    pub async fn aborted(&self) -> Ended {
        match self {
            Self::Tunnel(stream) => stream.aborted().await,
            Self::Peer(_) => Ended::Lost,
        }
    }

    pub fn was_paused_since(&self, then: Instant) -> bool {
        match self {
            Self::Tunnel(stream) => stream.was_paused_since(then),
            Self::Peer(_) => false,
        }
    }
}
