//! The server's doors: opened before anything serves, so that a port which is taken ends it before it has begun.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use crate::{
    config::{Bind, Config},
    edge::listener::{BindError, bind, bind_all},
};

/// Open, and not served yet.
pub struct Doors {
    /// One for each shard.
    pub visitors: Vec<TcpListener>,
    /// Where visitors arrive who speak TLS, one for each shard; none where it is not spoken.
    pub tls: Vec<TcpListener>,
    pub clients: TcpListener,
    pub peers: TcpListener,
    pub admin: TcpListener,
    pub addresses: Addresses,
}

/// Where the doors really opened.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    pub visitors: SocketAddr,
    pub tls: Option<SocketAddr>,
    pub clients: SocketAddr,
    pub peers: SocketAddr,
    pub admin: SocketAddr,
}

impl Doors {
    pub fn open(config: &Config) -> Result<Self, BindError> {
        let (visitors, visitors_at) = bind_all(config.bind, config.port, config.workers, "visitors (PORT)")?;
        let tls = config.tls.as_ref();
        let what = "visitors who speak TLS (TLS_PORT)";
        let tls = tls.map(|tls| bind_all(config.bind, tls.port, config.workers, what)).transpose()?;
        let (tls, tls_at) = tls.unzip();
        let (clients, clients_at) = bind(config.bind, config.ctrl_port, "clients (CTRL_PORT)")?;
        // Alone there is nobody to ask, so nobody else may.
        let loopback = Bind::One(Ipv4Addr::LOCALHOST.into());
        let for_peers = if config.cluster.is_some() { config.bind } else { loopback };
        let (peers, peers_at) = bind(for_peers, config.net_port, "peers (NET_PORT)")?;
        let (admin, admin_at) = bind(loopback, config.admin_port, "the operator (ADMIN_PORT)")?;
        let addresses = Addresses {
            visitors: visitors_at,
            tls: tls_at,
            clients: clients_at,
            peers: peers_at,
            admin: admin_at,
        };
        Ok(Self { visitors, tls: tls.unwrap_or_default(), clients, peers, admin, addresses })
    }
}
