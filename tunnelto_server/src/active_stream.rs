//! One client connection as exchanges use it, and the streams they hold on it. A stream belongs to one
//! connection, so no client can write into another's.

use std::{
    cell::{Cell, RefCell},
    ops::Deref,
    rc::Rc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use tunnelto_lib::{
    hello::Init,
    id::StreamId,
    mux::{Ended, Mux, OpenError, Stream},
};

use crate::{
    gauge::{Counted, Gauge},
    limits::{IDLE_STREAM, MAX_IDLE_STREAMS, SETTLED},
};

/// Identifies a shard within this instance: its place in the row of mailboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardId(pub usize);

/// Identifies a connection within this instance, and where it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId {
    pub shard: ShardId,
    pub number: u64,
}

/// A client's connection and the streams on it that wait for their next request.
pub struct Connection {
    pub id: ConnectionId,
    mux: Mux,
    idle: RefCell<Vec<Idle>>,
    /// Exchanges under way on it, for whoever has to choose between connections.
    load: Gauge,
}

struct Idle {
    stream: Stream,
    since: Instant,
    until: Instant,
    served: u32,
}

/// Whether an exchange may go onto a stream that has served another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    Allowed,
    /// Only where the local service has shown that it keeps its connection: a request that must not be repeated would be
    /// lost to a service that hangs up just as it comes.
    Proved,
    Never,
}

/// A stream in use by one exchange. Dropping it aborts the stream.
pub struct ActiveStream {
    stream: Stream,
    connection: Rc<Connection>,
    /// Exchanges before this one.
    served: u32,
    log: StreamLog,
    _busy: Counted,
}

/// Says at debug when a stream is taken and left, with the bytes between.
struct StreamLog {
    stream: StreamId,
    connection: ConnectionId,
    sent: Cell<u64>,
    received: Cell<u64>,
    is_kept: Cell<bool>,
    ended: RefCell<Option<Ended>>,
}

impl Connection {
    pub fn new(id: ConnectionId, mux: Mux, load: Gauge) -> Rc<Self> {
        Rc::new(Self { id, mux, idle: RefCell::default(), load })
    }

    /// Takes an idle stream, or opens a new one.
    pub fn open(
        self: &Rc<Self>,
        reuse: Reuse,
        about: impl FnOnce() -> Init,
    ) -> Result<ActiveStream, OpenError> {
        if let Some(Idle { stream, served, .. }) = self.take_idle(reuse, Instant::now()) {
            return Ok(self.active(stream, served));
        }
        let about = match self.protocol() {
            1 => Bytes::new(),
            _ => serde_json::to_vec(&about()).unwrap_or_default().into(),
        };
        // An idle stream may hold the last place.
        let stream = self.mux.open(about.clone()).or_else(|error| {
            self.idle.borrow_mut().clear();
            if error == OpenError::TooMany { self.mux.open(about) } else { Err(error) }
        })?;
        Ok(self.active(stream, 0))
    }

    fn active(self: &Rc<Self>, stream: Stream, served: u32) -> ActiveStream {
        tracing::debug!(stream = %stream.id(), connection = ?self.id, served, "stream taken");
        let log = StreamLog::new(stream.id(), self.id);
        ActiveStream { stream, connection: self.clone(), served, log, _busy: self.load.enter() }
    }

    pub fn protocol(&self) -> u8 {
        self.mux.protocol()
    }

    /// Ends streams that have been idle for too long.
    pub fn drop_stale(&self, now: Instant) {
        self.idle.borrow_mut().retain(|idle| idle.until > now && !idle.stream.is_spent());
    }

    pub fn has_idle(&self) -> bool {
        !self.idle.borrow().is_empty()
    }

    pub fn drop_idle(&self) {
        self.idle.borrow_mut().clear();
    }

    /// The one that was used last is most likely still alive.
    fn take_idle(&self, reuse: Reuse, now: Instant) -> Option<Idle> {
        let mut all = self.idle.borrow_mut();
        loop {
            let at = match reuse {
                Reuse::Never => return None,
                Reuse::Allowed => all.len().checked_sub(1)?,
                Reuse::Proved => all.iter().rposition(|idle| idle.has_proved_itself(now))?,
            };
            let idle = all.remove(at);
            if idle.until > now && !idle.stream.is_spent() {
                return Some(idle);
            }
        }
    }
}

impl Idle {
    /// The service has kept this connection once, or had the time to hang up.
    fn has_proved_itself(&self, now: Instant) -> bool {
        self.served > 1 || now.duration_since(self.since) > SETTLED
    }
}

impl ActiveStream {
    /// Whether an earlier exchange used this stream.
    pub fn is_reused(&self) -> bool {
        self.served > 0
    }

    pub fn protocol(&self) -> u8 {
        self.connection.protocol()
    }

    pub fn connection(&self) -> ConnectionId {
        self.connection.id
    }

    /// The exchange is over and the local service keeps its connection, for `keep_alive` if it said so: the stream waits for
    /// the next one.
    pub fn give_back(self, keep_alive: Option<Duration>) {
        let Self { stream, connection, served, log, _busy } = self;
        // One second before the service hangs up, so that a request does not cross its goodbye.
        let limit = keep_alive
            .map_or(IDLE_STREAM, |said| said.saturating_sub(Duration::from_secs(1)).min(IDLE_STREAM));
        let mut idle = connection.idle.borrow_mut();
        if !limit.is_zero()
            && !stream.is_spent()
            && idle.len() < MAX_IDLE_STREAMS
            && !connection.mux.is_closed()
        {
            log.is_kept.set(true);
            let since = Instant::now();
            idle.push(Idle { stream, since, until: since + limit, served: served + 1 });
        }
    }
}

impl ActiveStream {
    pub fn send(&self, bytes: Bytes) -> Result<(), Ended> {
        self.log.sent.set(self.log.sent.get() + bytes.len() as u64);
        self.stream.send(bytes)
    }

    pub async fn recv(&self) -> Result<Option<Bytes>, Ended> {
        let received = self.stream.recv().await;
        match &received {
            Ok(bytes) => self.count(bytes.as_ref()),
            Err(ended) => *self.log.ended.borrow_mut() = Some(ended.clone()),
        }
        received
    }

    pub fn try_recv(&self) -> Option<Bytes> {
        let bytes = self.stream.try_recv();
        self.count(bytes.as_ref());
        bytes
    }

    fn count(&self, bytes: Option<&Bytes>) {
        let count = bytes.map_or(0, Bytes::len) as u64;
        self.log.received.set(self.log.received.get() + count);
    }
}

impl StreamLog {
    fn new(stream: StreamId, connection: ConnectionId) -> Self {
        Self {
            stream,
            connection,
            sent: Cell::default(),
            received: Cell::default(),
            is_kept: Cell::default(),
            ended: RefCell::default(),
        }
    }
}

impl Drop for StreamLog {
    fn drop(&mut self) {
        let Self { stream, connection, sent, received, is_kept, ended } = self;
        let reason = match ended.get_mut() {
            Some(ended) => ended as &dyn std::fmt::Display,
            None if is_kept.get() => &"kept for the next exchange",
            None => &"the exchange is over",
        };
        tracing::debug!(%stream, ?connection, sent = sent.get(), received = received.get(), %reason, "stream left");
    }
}

impl Deref for ActiveStream {
    type Target = Stream;
    fn deref(&self) -> &Stream {
        &self.stream
    }
}
