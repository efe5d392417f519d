//! Opening doors and accepting visitors.

use std::{
    cell::Cell,
    io,
    net::SocketAddr,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tunnelto_lib::socket;

use crate::{config::Bind, limits::ACCEPT_PAUSE};

/// Connections that the system holds for us while we are busy.
const BACKLOG: u32 = 4096;

/// A vanished visitor is noticed after about two minutes of silence.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(20);

/// A connection as it arrived, holding one of the door's places.
pub struct Accepted {
    pub socket: TcpStream,
    pub peer: SocketAddr,
    pub place: Place,
}

/// One of a bounded number of connections; given back when dropped.
pub struct Place(Rc<Cell<usize>>);

/// A listening socket that hands out at most so many connections at once.
pub struct Door {
    listener: TcpListener,
    taken: Rc<Cell<usize>>,
    most: usize,
    last_complaint: Cell<Option<Instant>>,
}

#[derive(Debug, thiserror::Error)]
#[error("could not listen on {address} for {what}: {source}")]
pub struct BindError {
    pub what: &'static str,
    pub address: SocketAddr,
    pub source: io::Error,
}

/// Binds the first candidate that this system allows.
pub fn bind(bind: Bind, port: u16, what: &'static str) -> Result<TcpListener, BindError> {
    let mut candidates = bind.candidates(port).into_iter();
    loop {
        let Some(address) = candidates.next() else { unreachable!("a bind has at least one candidate") };
        match listen(address) {
            Ok(listener) => return Ok(listener),
            // No IPv6 here: go on with IPv4.
            Err(error) if error.kind() != io::ErrorKind::AddrInUse && candidates.len() > 0 => {}
            Err(source) => return Err(BindError { what, address, source }),
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        SockRef::from(&socket).set_only_v6(false)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

impl Door {
    pub fn new(listener: TcpListener, most: usize) -> Self {
        Self { listener, taken: Rc::default(), most, last_complaint: Cell::new(None) }
    }

    /// The next connection. Failures to accept are waited out; they never end the loop. Cancel-safe.
    pub async fn accept(&self) -> Accepted {
        loop {
            if self.taken.get() >= self.most {
                self.complain("all places are taken");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
            match self.listener.accept().await {
                Ok((socket, peer)) => {
                    prepare(&socket, peer);
                    let place = Place::take(&self.taken);
                    return Accepted { socket, peer: canonical(peer), place };
                }
                Err(error) if is_the_visitors_fault(&error) => {}
                Err(error) => {
                    self.complain(&error.to_string());
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// A connection that waits in the system's queue, if there is one.
    pub fn accept_now(&self) -> Option<Accepted> {
        let accepting = std::pin::pin!(self.accept());
        match accepting.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(accepted) => Some(accepted),
            Poll::Pending => None,
        }
    }

    /// At most once a minute.
    fn complain(&self, reason: &str) {
        let now = Instant::now();
        if self.last_complaint.get().is_none_or(|last| now.duration_since(last) > Duration::from_secs(60)) {
            self.last_complaint.set(Some(now));
            tracing::warn!(reason, open = self.taken.get(), "cannot accept connections just now");
        }
    }
}

impl Place {
    fn take(taken: &Rc<Cell<usize>>) -> Self {
        taken.set(taken.get() + 1);
        Self(taken.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
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
