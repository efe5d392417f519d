//! Opening doors and accepting visitors.

use std::{
    io,
    net::{self, SocketAddr},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use socket2::{Domain, Protocol, SockRef, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};
use tunnelto_lib::socket;

use super::crowding::OfAddress;
use crate::{
    config::Bind,
    exchange::{Reach, Way},
    gauge::{Counted, Gauge},
    limits::ACCEPT_PAUSE,
    network::hop::Kind,
    socket::Socket,
};

/// Connections that the system holds for us while we are busy.
const BACKLOG: i32 = 4096;

/// A vanished visitor is noticed after about two minutes of silence.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(20);

/// A connection as it arrived.
pub struct Accepted {
    pub socket: Socket,
    pub peer: SocketAddr,
    pub place: Place,
    pub arrival: Arrival,
}

/// One of a bounded number of connections.
pub struct Place {
    _of_all: Counted,
    /// Once it is known whose it is.
    pub of_address: Option<OfAddress>,
}

/// How a visitor's connection has come, and how far it is.
#[derive(Clone, Debug, Default)]
pub struct Arrival {
    /// Another instance has brought it.
    pub brought: Option<Brought>,
    /// A request of it has been served.
    pub has_asked: bool,
    pub way: Way,
}

#[derive(Clone, Debug)]
pub struct Brought {
    pub kind: Kind,
    pub by: String,
}

/// A listening socket that stays shut while its places are taken.
pub struct Door {
    listener: TcpListener,
    places: Arc<Places>,
    way: Way,
}

/// The connections that one door or several together may have let in.
pub struct Places {
    taken: Gauge,
    most: usize,
    last_complaint: Mutex<Option<Instant>>,
}

#[derive(Debug, thiserror::Error)]
#[error("could not listen on {address} for {what}: {source}")]
pub struct BindError {
    pub what: &'static str,
    pub address: SocketAddr,
    pub source: io::Error,
}

/// Whether other sockets of this process listen on the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    No,
    Yes,
}

/// Binds the first candidate that this system allows; returns where that was.
pub fn bind(bind: Bind, port: u16, what: &'static str) -> Result<(net::TcpListener, SocketAddr), BindError> {
    bind_first(bind, port, what, Sharing::No)
}

/// Binds so many sockets to one address; the system spreads connections over them (SO_REUSEPORT).
pub fn bind_all(
    bind: Bind,
    port: u16,
    count: usize,
    what: &'static str,
) -> Result<(Vec<net::TcpListener>, SocketAddr), BindError> {
    if count <= 1 || port != 0 {
        let (alone, address) = bind_first(bind, port, what, Sharing::No)?;
        if count <= 1 {
            return Ok((vec![alone], address));
        }
        // Sharing an address would let another server of the same user share it too; now we know that there is none.
    }
    let (first, address) = bind_first(bind, port, what, Sharing::Yes)?;
    let others = (1..count)
        .map(|_| listen(address, Sharing::Yes).map_err(|source| BindError { what, address, source }));
    let all: Result<Vec<_>, _> = std::iter::once(Ok(first)).chain(others).collect();
    Ok((all?, address))
}

fn bind_first(
    bind: Bind,
    port: u16,
    what: &'static str,
    sharing: Sharing,
) -> Result<(net::TcpListener, SocketAddr), BindError> {
    let mut candidates = bind.candidates(port).into_iter();
    loop {
        let Some(address) = candidates.next() else { unreachable!("a bind has at least one candidate") };
        match listen(address, sharing).and_then(|listener| Ok((listener.local_addr()?, listener))) {
            Ok((address, listener)) => return Ok((listener, address)),
            // No IPv6 here: go on with IPv4.
            Err(error) if error.kind() != io::ErrorKind::AddrInUse && candidates.len() > 0 => {}
            Err(source) => return Err(BindError { what, address, source }),
        }
    }
}

fn listen(address: SocketAddr, sharing: Sharing) -> io::Result<net::TcpListener> {
    let socket = socket2::Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(sharing == Sharing::Yes)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

impl Arrival {
    /// How far its next request may be brought.
    pub fn reach(&self) -> Reach {
        match &self.brought {
            // Of TLS that ended here each request is looked at: its certificate does not cover every host.
            None if !self.has_asked && !self.way.is_tls() => Reach::Pipe,
            Some(brought) if brought.kind == Kind::Request => Reach::Here,
            _ => Reach::Request,
        }
    }
}

impl Door {
    pub fn new(listener: TcpListener, places: Arc<Places>) -> Self {
        Self { listener, places, way: Way::Plain }
    }

    /// Where nothing else is expected.
    pub fn for_tls(listener: TcpListener, places: Arc<Places>) -> Self {
        Self { listener, places, way: Way::Unsecured }
    }

    /// The next connection. Failures to accept are waited out; they never end the loop. Cancel-safe.
    pub async fn accept(&self) -> Accepted {
        loop {
            if self.places.taken.count() >= self.places.most {
                self.places.complain("all places are taken");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
            match self.listener.accept().await {
                Ok((socket, peer)) => {
                    prepare(&socket, peer);
                    return Accepted {
                        socket: socket.into(),
                        peer: canonical(peer),
                        place: Place { _of_all: self.places.taken.enter(), of_address: None },
                        arrival: Arrival { way: self.way.clone(), ..Arrival::default() },
                    };
                }
                Err(error) if is_the_visitors_fault(&error) => {}
                Err(error) => {
                    self.places.complain(&error.to_string());
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

impl Places {
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { taken: Gauge::default(), most, last_complaint: Mutex::default() })
    }

    /// Connections that are open.
    pub fn count(&self) -> usize {
        self.taken.count()
    }

    /// At most once a minute, whichever door it is.
    fn complain(&self, reason: &str) {
        let Ok(mut last) = self.last_complaint.lock() else { return };
        if last.is_none_or(|last| last.elapsed() > Duration::from_secs(60)) {
            *last = Some(Instant::now());
            tracing::warn!(reason, open = self.taken.count(), "cannot accept connections just now");
        }
    }
}

fn prepare(socket: &TcpStream, peer: SocketAddr) {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_EVERY);
    let socket = SockRef::from(socket);
    // A socket that is already gone fails here and is noticed at its first read.
    let _ = socket.set_tcp_keepalive(&keepalive).and_then(|()| socket::prepare(socket, peer.ip()));
}

fn canonical(peer: SocketAddr) -> SocketAddr {
    SocketAddr::new(peer.ip().to_canonical(), peer.port())
}

fn is_the_visitors_fault(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset)
}
