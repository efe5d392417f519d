//! Dialling the target.

use std::{cell::Cell, io, net::SocketAddr, time::Duration};

use rustls::pki_types::ServerName;
use socket2::SockRef;
use tokio::{
    io::DuplexStream,
    net::{TcpStream, UnixStream},
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tunnelto_lib::socket;

use super::{
    files,
    target::{Address, Target, Verify},
    tls::{self, Trust},
};
use crate::resolve;

/// A local service answers at once or is in trouble.
const DIAL: Duration = Duration::from_secs(5);

/// Dials one target, again and again.
pub struct Dialer {
    target: Target,
    connector: Option<TlsConnector>,
    /// What answered last.
    last: Cell<Option<SocketAddr>>,
}

/// A connection to the local service.
pub enum Local {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
    Memory(DuplexStream),
}

#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error("connection refused by {0}")]
    Refused(String),
    #[error("{0} did not answer in {DIAL:?}")]
    TimedOut(String),
    #[error("could not connect to {0}: {1}")]
    Io(String, io::Error),
}

impl Dialer {
    pub fn new(target: Target) -> Result<Self, String> {
        let connector = match &target {
            Target::Tls { verify, .. } => Some(TlsConnector::from(tls::client_config(match verify {
                Verify::Yes => Trust::System,
                Verify::No => Trust::Anybody,
            })?)),
            _ => None,
        };
        Ok(Self { target, connector, last: Cell::new(None) })
    }

    pub fn target(&self) -> &Target {
        &self.target
    }

    pub async fn dial(&self) -> Result<Local, DialError> {
        let name = || self.target.to_string();
        match timeout(DIAL, self.connect()).await {
            Ok(Ok(local)) => Ok(local),
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                Err(DialError::Refused(name()))
            }
            Ok(Err(error)) => Err(DialError::Io(name(), error)),
            Err(_) => Err(DialError::TimedOut(name())),
        }
    }

    async fn connect(&self) -> io::Result<Local> {
        match &self.target {
            Target::Files(folder) => Ok(Local::Memory(files::connect(folder))),
            Target::Unix(path) => UnixStream::connect(path).await.map(Local::Unix),
            Target::Tcp(address) => self.tcp(address).await.map(Local::Tcp),
            Target::Tls { address, .. } => {
                let socket = self.tcp(address).await?;
                let name = ServerName::try_from(address.host.clone()).map_err(io::Error::other)?;
                let connector = self.connector.as_ref().ok_or_else(|| io::Error::other("no TLS set up"))?;
                Ok(Local::Tls(Box::new(connector.connect(name, socket).await?)))
            }
        }
    }

    async fn tcp(&self, address: &Address) -> io::Result<TcpStream> {
        let mut addresses = resolve::addresses(&address.host, address.port).await?;
        // What answered last time is tried first: services listen on one family of `localhost` or the other.
        let last = self.last.get();
        addresses.sort_by_key(|address| Some(*address) != last);
        let socket = resolve::connect(&addresses).await?;
        let peer = socket.peer_addr()?;
        self.last.set(Some(peer));
        socket::prepare(SockRef::from(&socket), peer.ip())?;
        Ok(socket)
    }
}
