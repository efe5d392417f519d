//! The hop itself: a visitor's bytes go to the instance that serves its tunnel and come back from there, untouched.

use std::{
    cell::{Cell, RefCell},
    io,
    net::SocketAddr,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tunnelto_lib::{read_buffer::ReadBuffer, socket};

use super::{
    hop::{Bringing, Content, MINE, Visit},
    pace::Pace,
    peer::{Down, Peer},
};
use crate::{
    gauge::{Counted, Gauge},
    io::{Timer, finish, write},
    limits::{HOP_ANSWER, KEEP_ALIVE, TCP_USER_TIMEOUT, VISITOR_STALL},
    observability::metrics::{Hop, Metrics},
    sign::MasterKeys,
    socket::{ReadHalf, Socket, WriteHalf},
};

/// After so long without a byte a visitor's connection does not hold up a stop, unless an answer is owed.
const QUIET: Duration = Duration::from_secs(1);

/// The same where nobody can see whether one is: within TLS.
const QUIET_OPAQUE: Duration = Duration::from_secs(5);

/// What every hop needs.
#[derive(Clone)]
pub struct Hops {
    pub keys: MasterKeys,
    pub instance: Arc<str>,
    pub most: usize,
    /// Bytes per second between this instance and another.
    pub rate: Option<u64>,
    pub connect: Duration,
    pub metrics: Arc<Metrics>,
}

/// A connection to the instance that serves a name; a place among its hops is taken.
pub struct Reached {
    pub socket: TcpStream,
    pub header: Vec<u8>,
    pub pace: Pace,
    pub place: Counted,
}

/// Why an instance was not reached, or did not take what was brought.
#[derive(Debug, thiserror::Error)]
pub enum HopError {
    #[error("as many visitors as PEER_HOPS allows are on their way there")]
    Busy,
    #[error("it does not serve the name")]
    NotMine,
    #[error("not reached: {0}")]
    Io(#[from] io::Error),
    /// It may yet read what was sent.
    #[error("no word from it: {0}")]
    Unanswered(io::Error),
}

impl Hops {
    /// Connects; the header is still to be sent.
    pub async fn reach(&self, peer: &Peer, visit: &Visit<'_>) -> Result<Reached, HopError> {
        let reached = self.try_reach(peer, visit).await;
        match &reached {
            Ok(_) => {}
            Err(HopError::Busy) => self.metrics.hop(Hop::Busy),
            Err(error) => {
                self.metrics.hop(Hop::Unreachable);
                tracing::debug!(at = %peer.at, %error, "instance not reached");
                // Its other doors may be well.
                if let HopError::Io(error) = error
                    && visit.content != Content::Tls
                {
                    let refuses = error.kind() == io::ErrorKind::ConnectionRefused;
                    peer.failed(if refuses { Down::Refuses } else { Down::Silent }, Instant::now());
                }
            }
        }
        reached
    }

    async fn try_reach(&self, peer: &Peer, visit: &Visit<'_>) -> Result<Reached, HopError> {
        let place = peer.hop(self.most).ok_or(HopError::Busy)?;
        let introduction = peer.introduction().ok_or(io::Error::from(io::ErrorKind::NotConnected))?;
        let port = match visit.content {
            Content::Plain | Content::Decrypted => Some(introduction.port),
            Content::Tls => introduction.tls_port,
        };
        let port = port.ok_or(io::Error::from(io::ErrorKind::NotConnected))?;
        let door = SocketAddr::new(peer.at.ip(), port);
        let header = Bringing::new(visit, &self.instance, &introduction.instance).header(&self.keys, door)?;
        let connecting = timeout(self.connect, TcpStream::connect(door)).await;
        let socket = connecting.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        socket::prepare(SockRef::from(&socket), door.ip())?;
        SockRef::from(&socket).set_tcp_user_timeout(Some(TCP_USER_TIMEOUT))?;
        let pace = Pace::new(&peer.line, self.rate);
        Ok(Reached { socket, header, pace, place })
    }

    /// Brings a visitor's connection there, with what was read of it. The instance has taken it when this returns.
    pub async fn bring(&self, peer: &Peer, visit: &Visit<'_>, first: &[&[u8]]) -> Result<Reached, HopError> {
        let mut reached = self.reach(peer, visit).await?;
        let all = [&[&reached.header[..]], first].concat().concat();
        let socket = &mut reached.socket;
        let taken = timeout(HOP_ANSWER, async {
            socket.write_all(&all).await?;
            socket.read_u8().await
        });
        let answer = taken.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        self.metrics.hop(match &answer {
            Ok(MINE) => Hop::Taken,
            Ok(_) => Hop::NotMine,
            Err(_) => Hop::Unreachable,
        });
        // It has been sent, and a pipe may last for days.
        reached.header = Vec::new();
        match answer {
            Ok(MINE) => Ok(reached),
            Ok(_) => Err(HopError::NotMine),
            Err(error) => Err(HopError::Unanswered(error)),
        }
    }
}

/// Carries both ways until both sides have finished, or one is gone; then the other is told so. `in_progress` counts it
/// while something is under way, beginning with the request that `asking` counts.
pub async fn pipe(
    mut visitor: Socket,
    peer: TcpStream,
    pace: &Pace,
    content: Content,
    in_progress: &Gauge,
    asking: Counted,
) {
    let is_opaque = content == Content::Tls;
    let quiet = if is_opaque { QUIET_OPAQUE } else { QUIET };
    let busy = Busy {
        gauge: in_progress,
        counted: RefCell::new(Some(asking)),
        asks: Cell::new(true),
        answers: Cell::new(false),
        is_opaque,
        last_asked: Cell::new(Instant::now()),
    };
    let mut peer = Socket::from(peer);
    let result = {
        let (from_visitor, to_visitor) = visitor.split();
        let (from_peer, to_peer) = peer.split();
        let mut up = pin!(carry(from_visitor, to_peer, pace, quiet, |is_moving| busy.asked(is_moving)));
        let mut down = pin!(carry(from_peer, to_visitor, pace, quiet, |is_moving| busy.answered(is_moving)));
        tokio::select! {
            sent = &mut up => match sent {
                Ok(()) => down.await,
                Err(error) => Err(error),
            },
            answered = &mut down => match answered {
                Ok(()) => busy.until_silent(up).await,
                Err(error) => Err(error),
            },
        }
    };
    if result.is_err() {
        for side in [&visitor, &peer] {
            side.break_off();
        }
    }
}

/// Whether something is under way on a connection of which we read nothing.
struct Busy<'g> {
    gauge: &'g Gauge,
    counted: RefCell<Option<Counted>>,
    /// The visitor spoke last: an answer is owed.
    asks: Cell<bool>,
    /// The other instance has spoken a moment ago.
    answers: Cell<bool>,
    is_opaque: bool,
    last_asked: Cell<Instant>,
}

impl Busy<'_> {
    fn asked(&self, is_moving: bool) {
        if is_moving {
            self.asks.set(true);
            self.last_asked.set(Instant::now());
            self.counted.borrow_mut().get_or_insert_with(|| self.gauge.enter());
        } else if self.is_opaque {
            self.asks.set(false);
            self.rest();
        }
    }

    fn answered(&self, is_moving: bool) {
        if is_moving {
            // Within TLS that may have been a mere acknowledgement.
            self.asks.set(self.is_opaque && self.asks.get());
            self.answers.set(true);
            self.counted.borrow_mut().get_or_insert_with(|| self.gauge.enter());
        } else {
            self.answers.set(false);
            self.rest();
        }
    }

    fn rest(&self) {
        if !self.asks.get() && !self.answers.get() {
            *self.counted.borrow_mut() = None;
        }
    }
}

impl Busy<'_> {
    /// The other instance has nothing more to say. A visitor that goes on sending may; one that merely stays may not.
    async fn until_silent(
        &self,
        mut sending: impl Future<Output = io::Result<()>> + Unpin,
    ) -> io::Result<()> {
        loop {
            match timeout(KEEP_ALIVE, &mut sending).await {
                Ok(sent) => return sent,
                Err(_) if self.last_asked.get().elapsed() < KEEP_ALIVE => {}
                Err(_) => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
    }
}

/// One direction. `moves` is told of bytes, and of their absence.
async fn carry(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    pace: &Pace,
    quiet: Duration,
    moves: impl Fn(bool),
) -> io::Result<()> {
    let mut buffer = ReadBuffer::default();
    let (mut silence, mut stall) = (Timer::default(), Timer::default());
    loop {
        let read = match silence.within(quiet, buffer.fill(&mut from)).await {
            Ok(read) => read?,
            Err(_) => {
                moves(false);
                buffer.fill(&mut from).await?
            }
        };
        if read == 0 {
            return finish(&mut to, VISITOR_STALL).await;
        }
        moves(true);
        let bytes = buffer.take();
        pace.took(bytes.len()).await;
        let written = stall.within(VISITOR_STALL, write(&mut to, &bytes)).await;
        written.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    }
}
