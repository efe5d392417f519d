//! The local service's side of an exchange: heads and pieces of the answer as they come on the stream.

use std::time::Instant;

use bytes::{Bytes, BytesMut};
use http::Method;
use tunnelto_lib::{mux::Ended, packet::ResetCode};

use super::{request::Version, response::ResponseHead};
use crate::{
    error::Refusal,
    io::within,
    limits::{CROSSING, MAX_HEAD, PROTOCOL_1_SILENCE},
    upstream::Upstream,
};

/// Reads one answer from a stream.
pub struct Answer<'s> {
    stream: &'s Upstream,
    /// Received and not yet used.
    rest: Bytes,
    /// Whether anything came in this exchange: then the request has been used.
    has_begun: bool,
    /// Whether an incomplete head is waiting for its end.
    has_waited: bool,
    /// Protocol 1 never says that a close-delimited answer has ended: silence does.
    ends_by_silence: bool,
}

/// Why there is no whole answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    Ended(Ended),
    /// The local service closed before it had said anything.
    Closed,
    /// It broke off in the middle of its answer.
    BrokeOff,
    Malformed,
    TooLarge,
}

impl<'s> Answer<'s> {
    pub fn new(stream: &'s Upstream) -> Self {
        Self { stream, rest: Bytes::new(), has_begun: false, has_waited: false, ends_by_silence: false }
    }

    /// The next head, interim ones included. Cancel-safe.
    pub async fn head(&mut self, method: &Method, visitor: Version) -> Result<ResponseHead, Failure> {
        loop {
            if !self.rest.is_empty() && (!self.has_waited || has_empty_line(&self.rest)) {
                let before = self.rest.len();
                let parsed = ResponseHead::parse(&mut self.rest, method, visitor);
                if let Some(head) = parsed.map_err(|_| Failure::Malformed)? {
                    self.stream.consumed(before - self.rest.len());
                    self.has_waited = false;
                    return Ok(head);
                }
            }
            if self.rest.len() > MAX_HEAD {
                return Err(Failure::TooLarge);
            }
            let more = self.stream.recv().await.map_err(|ended| self.ended(ended))?;
            let Some(more) = more else { return Err(self.closed().await) };
            self.has_begun = true;
            if self.rest.is_empty() {
                self.rest = more;
            } else {
                // Looked through for its end before it is parsed again: a head may come byte by byte.
                let mut joined = std::mem::take(&mut self.rest)
                    .try_into_mut()
                    .unwrap_or_else(|rest| BytesMut::from(&rest[..]));
                joined.extend_from_slice(&more);
                self.rest = joined.freeze();
                self.has_waited = true;
            }
        }
    }

    /// A request that has crossed the client's End is answered by a Reset that says so.
    async fn closed(&self) -> Failure {
        if self.has_begun {
            return Failure::BrokeOff;
        }
        if !self.stream.is_reused() {
            return Failure::Closed;
        }
        match within(CROSSING, self.stream.aborted()).await {
            Ok(ended) => Failure::Ended(ended),
            Err(_) => Failure::Closed,
        }
    }

    /// Once anything was answered, the request has been used, whatever the other side says.
    fn ended(&self, ended: Ended) -> Failure {
        if self.has_begun { Failure::BrokeOff } else { Failure::Ended(ended) }
    }

    /// From now on a protocol 1 client's silence is the end.
    pub fn end_by_silence(&mut self) {
        self.ends_by_silence = self.stream.protocol() == 1;
    }

    /// The next bytes behind the head; `None` at the end of the stream. Tell the stream when they are consumed.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, Failure> {
        if !self.rest.is_empty() {
            return Ok(Some(std::mem::take(&mut self.rest)));
        }
        if !self.ends_by_silence {
            return self.stream.recv().await.map_err(Failure::Ended);
        }
        loop {
            let began = Instant::now();
            match within(PROTOCOL_1_SILENCE, self.stream.recv()).await {
                Ok(piece) => return piece.map_err(Failure::Ended),
                // The silence was ours.
                Err(_) if self.stream.was_paused_since(began) => {}
                Err(_) => return Ok(None),
            }
        }
    }

    /// The next bytes if they are here already.
    pub fn try_piece(&mut self) -> Option<Bytes> {
        if self.rest.is_empty() { self.stream.try_recv() } else { Some(std::mem::take(&mut self.rest)) }
    }

    /// Bytes that came with the head and are not the answer's: the upgraded protocol's first, or a fault.
    pub fn take_rest(&mut self) -> Bytes {
        std::mem::take(&mut self.rest)
    }

    /// What was taken and belongs behind the answer.
    pub fn put_back(&mut self, rest: Bytes) {
        self.rest = rest;
    }

    /// Whether the next piece is here already.
    pub fn is_ready(&self) -> bool {
        self.has_rest() || self.stream.has_unread()
    }

    pub fn has_rest(&self) -> bool {
        !self.rest.is_empty()
    }
}

fn has_empty_line(bytes: &[u8]) -> bool {
    memchr::memmem::find(bytes, b"\n\r\n").is_some() || memchr::memmem::find(bytes, b"\n\n").is_some()
}

impl Failure {
    /// The client has no connection to its local service.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Ended(Ended::Refused(_)))
    }

    /// Whether the same request may go onto another stream: nothing of it was used, or using it twice does no harm.
    pub fn may_be_repeated(&self, is_reused: bool, is_repeatable: bool) -> bool {
        match self {
            Self::Ended(Ended::Reset(ResetCode::Unused)) => true,
            // Another of the tunnel's clients may do better.
            refusal if refusal.is_refusal() => true,
            Self::Ended(Ended::Lost) => is_repeatable,
            // A kept local connection may end just as a request comes.
            Self::Closed | Self::Ended(Ended::Reset(_)) => is_reused && is_repeatable,
            _ => false,
        }
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Ended(Ended::Refused(refusal)) if refusal.code == "too_many" => Self::TooMany,
            Failure::Ended(Ended::Refused(_)) => Self::TunnelRefused,
            Failure::Ended(Ended::Reset(ResetCode::TimedOut)) => Self::UpstreamTimeout,
            _ => Self::ProxyingFailed,
        }
    }
}
