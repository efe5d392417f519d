//! Dialling the target.

use std::{
    cell::Cell,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use rustls::pki_types::ServerName;
use tokio::{
    io::DuplexStream,
    net::{TcpStream, UnixStream, lookup_host},
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{
    files,
    target::{Address, Target},
    tls,
};

/// A local service answers at once or is in trouble.
const DIAL: Duration = Duration::from_secs(5);

/// Dials one target, again and again.
pub struct Dialer {
    target: Target,
    connector: Option<TlsConnector>,
    /// The family of `localhost` that answered last.
    loopback: Cell<IpAddr>,
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
            Target::Tls { verify, .. } => Some(TlsConnector::from(tls::client_config(*verify)?)),
            _ => None,
        };
        Ok(Self { target, connector, loopback: Cell::new(Ipv4Addr::LOCALHOST.into()) })
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
        let socket = if address.host.eq_ignore_ascii_case("localhost") {
            self.loopback(address.port).await?
        } else if let Ok(ip) = address.host.parse::<IpAddr>() {
            TcpStream::connect((ip, address.port)).await?
        } else {
            first_of(lookup_host((&*address.host, address.port)).await?).await?
        };
        socket.set_nodelay(true)?;
        Ok(socket)
    }

    /// `localhost` is both loopback addresses, whichever answers; services listen on either.
    async fn loopback(&self, port: u16) -> io::Result<TcpStream> {
        let last = self.loopback.get();
        let other: IpAddr =
            if last.is_ipv4() { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
        match TcpStream::connect((last, port)).await {
            Ok(socket) => Ok(socket),
            Err(error) => match TcpStream::connect((other, port)).await {
                Ok(socket) => {
                    self.loopback.set(other);
                    Ok(socket)
                }
                Err(_) => Err(error),
            },
        }
    }
}

/// A TLS connector that trusts the system's roots, for connections to the server.
pub fn server_connector() -> Result<TlsConnector, String> {
    tls::client_config(super::target::Verify::Yes).map(|config: Arc<_>| TlsConnector::from(config))
}

/// The first address that answers; the last error when none does.
pub async fn first_of(addresses: impl Iterator<Item = SocketAddr>) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}
