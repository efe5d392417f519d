//! A visitor's or client's socket, with TLS or without: read and written side by side, and moved between threads.

use std::{
    cell::RefCell,
    io::{self, IoSlice},
    net,
    ops::Deref,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, tcp},
};
use tokio_rustls::server::TlsStream;

use crate::io::Rewind;

type Tls = RefCell<TlsStream<Carrier>>;

/// What TLS runs over.
pub type Carrier = Rewind<Seat>;

/// Empty only on the way between threads.
pub struct Seat(Option<TcpStream>);

/// Plain bytes by `P`, or TLS by something that shares its state.
pub enum Half<P, T> {
    Plain(P),
    Tls(T),
}

pub type Socket = Half<TcpStream, Box<Tls>>;
pub type ReadHalf<'s> = Half<tcp::ReadHalf<'s>, &'s Tls>;
pub type WriteHalf<'s> = Half<tcp::WriteHalf<'s>, &'s Tls>;
pub type OwnedReadHalf = Half<tcp::OwnedReadHalf, Rc<Tls>>;
pub type OwnedWriteHalf = Half<tcp::OwnedWriteHalf, Rc<Tls>>;

/// A socket that belongs to no thread's runtime.
pub struct Detached {
    tcp: net::TcpStream,
    tls: Option<Box<Tls>>,
}

impl Socket {
    /// For both directions within one task.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        match self {
            Self::Plain(tcp) => {
                let (reading, writing) = tcp.split();
                (Half::Plain(reading), Half::Plain(writing))
            }
            Self::Tls(tls) => (Half::Tls(&**tls), Half::Tls(&**tls)),
        }
    }

    /// For a task for each direction, on one thread.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        match self {
            Self::Plain(tcp) => {
                let (reading, writing) = tcp.into_split();
                (Half::Plain(reading), Half::Plain(writing))
            }
            Self::Tls(tls) => {
                let tls: Rc<Tls> = Rc::from(tls);
                (Half::Tls(tls.clone()), Half::Tls(tls))
            }
        }
    }

    /// Takes the socket out of this thread's runtime.
    pub fn detach(self) -> io::Result<Detached> {
        match self {
            Self::Plain(tcp) => Ok(Detached { tcp: tcp.into_std()?, tls: None }),
            Self::Tls(mut tls) => {
                let tcp = tls.get_mut().get_mut().0.io.0.take().ok_or(io::ErrorKind::NotConnected)?;
                Ok(Detached { tcp: tcp.into_std()?, tls: Some(tls) })
            }
        }
    }

    /// The connection is reset when it is dropped, so that nobody takes a part for the whole.
    pub fn break_off(&self) {
        let reset = |tcp: &TcpStream| SockRef::from(tcp).set_linger(Some(Duration::ZERO));
        // If this fails the socket is gone already, which says the same.
        let _ = match self {
            Self::Plain(tcp) => reset(tcp),
            Self::Tls(tls) => tls.borrow().get_ref().0.io.0.as_ref().map_or(Ok(()), reset),
        };
    }
}

impl Detached {
    /// Gives the socket to this thread's runtime; fails only where that is at its end.
    pub fn attach(self) -> io::Result<Socket> {
        let tcp = TcpStream::from_std(self.tcp)?;
        match self.tls {
            None => Ok(Half::Plain(tcp)),
            Some(mut tls) => {
                tls.get_mut().get_mut().0.io = Seat(Some(tcp));
                Ok(Half::Tls(tls))
            }
        }
    }

    /// The socket below, for its options.
    pub fn tcp(&self) -> SockRef<'_> {
        SockRef::from(&self.tcp)
    }
}

/// For TLS whose first bytes were read before it was known to be that.
pub fn carrier(first: Bytes, tcp: TcpStream) -> Carrier {
    Rewind { first, io: Seat(Some(tcp)) }
}

impl Seat {
    fn tcp(self: Pin<&mut Self>) -> io::Result<Pin<&mut TcpStream>> {
        let tcp = self.get_mut().0.as_mut();
        Ok(Pin::new(tcp.ok_or(io::ErrorKind::NotConnected)?))
    }
}

impl AsyncRead for Seat {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.tcp()?.poll_read(cx, out)
    }
}

impl AsyncWrite for Seat {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.tcp()?.poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.tcp()?.poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tcp()?.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tcp()?.poll_shutdown(cx)
    }
}

impl From<TcpStream> for Socket {
    fn from(tcp: TcpStream) -> Self {
        Self::Plain(tcp)
    }
}

impl From<TlsStream<Carrier>> for Socket {
    fn from(tls: TlsStream<Carrier>) -> Self {
        Self::Tls(Box::new(RefCell::new(tls)))
    }
}

impl<P: AsyncRead + Unpin, T: Deref<Target = Tls> + Unpin> AsyncRead for Half<P, T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_read(cx, out),
            Self::Tls(tls) => Pin::new(&mut *tls.borrow_mut()).poll_read(cx, out),
        }
    }
}

impl<P: AsyncWrite + Unpin, T: Deref<Target = Tls> + Unpin> AsyncWrite for Half<P, T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_write(cx, bytes),
            Self::Tls(tls) => Pin::new(&mut *tls.borrow_mut()).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_write_vectored(cx, slices),
            Self::Tls(tls) => Pin::new(&mut *tls.borrow_mut()).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_flush(cx),
            Self::Tls(tls) => Pin::new(&mut *tls.borrow_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(io) => Pin::new(io).poll_shutdown(cx),
            Self::Tls(tls) => Pin::new(&mut *tls.borrow_mut()).poll_shutdown(cx),
        }
    }
}
