//! The local service's side of an exchange: heads and pieces of the answer as they come on the stream.

use bytes::{Bytes, BytesMut};
use http::Method;
use tunnelto_lib::{mux::Ended, packet::ResetCode};

use super::{request::Version, response::ResponseHead};
use crate::{
    active_stream::ActiveStream,
    error::Refusal,
    io::within,
    limits::{MAX_HEAD, PROTOCOL_1_SILENCE},
};

/// Reads one answer from a stream.
pub struct Answer<'s> {
    stream: &'s ActiveStream,
    /// Received and not yet used.
    rest: Bytes,
    /// Protocol 1 never says that a close-delimited answer has ended: silence does.
    ends_by_silence: bool,
}

/// Why there is no whole answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    Ended(Ended),
    /// The local service closed before it had answered.
    Closed,
    Malformed,
    TooLarge,
}

impl<'s> Answer<'s> {
    pub fn new(stream: &'s ActiveStream) -> Self {
        Self { stream, rest: Bytes::new(), ends_by_silence: false }
    }

    /// The next head, interim ones included.
    pub async fn head(&mut self, method: &Method, visitor: Version) -> Result<ResponseHead, Failure> {
        loop {
            let before = self.rest.len();
            if before > 0
                && let Some(head) =
                    ResponseHead::parse(&mut self.rest, method, visitor).map_err(|_| Failure::Malformed)?
            {
                self.stream.consumed(before - self.rest.len());
                return Ok(head);
            }
            if before > MAX_HEAD {
                return Err(Failure::TooLarge);
            }
            match self.stream.recv().await.map_err(Failure::Ended)? {
                None => return Err(Failure::Closed),
                Some(more) if before == 0 => self.rest = more,
                Some(more) => {
                    let mut joined = BytesMut::with_capacity(before + more.len());
                    joined.extend_from_slice(&self.rest);
                    joined.extend_from_slice(&more);
                    self.rest = joined.freeze();
                }
            }
        }
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
        let next = self.stream.recv();
        if !self.ends_by_silence {
            return next.await.map_err(Failure::Ended);
        }
        within(PROTOCOL_1_SILENCE, next).await.unwrap_or(Ok(None)).map_err(Failure::Ended)
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

impl Failure {
    /// Whether the same request may go onto another stream: nothing of it was used, or using it twice does no harm.
    pub fn may_be_repeated(&self, is_reused: bool, is_repeatable: bool) -> bool {
        match self {
            Self::Ended(Ended::Reset(ResetCode::Unused)) => true,
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
