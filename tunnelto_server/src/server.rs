//! Wiring: bind the doors, publish their real addresses, run, and stop in the reverse order.

use std::{
    net::{Ipv4Addr, SocketAddr},
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{net::TcpListener, sync::mpsc, task::JoinSet, time::timeout};
use tokio_util::task::TaskTracker;

use crate::{
    auth::Prover,
    config::{Bind, Config},
    connected_clients::ConnectedClients,
    control::session::{self, Lobby},
    control_server::{ControlServer, WAITING, Wormhole},
    edge::{
        forwarded::TrustedProxies,
        handler::InProgress,
        listener::{BindError, Door, bind},
    },
    limits::{MAX_CLIENTS, MAX_VISITORS},
    network::server::PeerServer,
    policy::Chain,
    pool::Pool,
    remote::Remote,
    routing::Table,
    shard::Shard,
    shutdown::Shutdown,
};

/// How often the drain looks whether anything is still under way.
const DRAIN_LOOK: Duration = Duration::from_millis(50);

/// How long sessions may take to say goodbye at the end.
const GOODBYE: Duration = Duration::from_secs(2);

/// How often names whose grace is over are forgotten.
const FORGET_EVERY: Duration = Duration::from_secs(1);

/// Connections from other instances and their health checks.
const MAX_PEERS: usize = 1024;

pub struct Server;

/// A server whose doors are open and that does not serve yet.
pub struct Bound {
    config: Arc<Config>,
    visitors: TcpListener,
    clients: TcpListener,
    peers: TcpListener,
    pub addresses: Addresses,
}

/// Where the doors really opened.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    pub visitors: SocketAddr,
    pub clients: SocketAddr,
    pub peers: SocketAddr,
}

impl Server {
    pub fn bind(config: Config) -> Result<Bound, BindError> {
        let visitors = bind(config.bind, config.port, "visitors (PORT)")?;
        let clients = bind(config.bind, config.ctrl_port, "clients (CTRL_PORT)")?;
        // Alone there is nobody to ask, so nobody else may.
        let loopback = Bind::One(Ipv4Addr::LOCALHOST.into());
        let peers = bind(loopback, config.net_port, "peers (NET_PORT)")?;
        let address = |listener: &TcpListener, what| {
            listener.local_addr().map_err(|source| BindError {
                what,
                address: ([0, 0, 0, 0], 0).into(),
                source,
            })
        };
        let addresses = Addresses {
            visitors: address(&visitors, "visitors (PORT)")?,
            clients: address(&clients, "clients (CTRL_PORT)")?,
            peers: address(&peers, "peers (NET_PORT)")?,
        };
        Ok(Bound { config: Arc::new(config), visitors, clients, peers, addresses })
    }
}

impl Bound {
    /// Serves until `shutdown` ends. Call it within a local runtime.
    pub async fn run(self, shutdown: Shutdown) {
        let config = self.config;
        let registry = Arc::new(ConnectedClients::new(config.grace));
        let shard = Rc::new(Shard::default());
        let chain = Chain::new(config.blocked_addresses.clone());
        let (wormholes, inbox) = mpsc::channel(WAITING);
        let control = ControlServer::new(wormholes, MAX_CLIENTS, chain.clone(), shutdown.clone());
        let lobby = Rc::new(Lobby {
            prover: Prover {
                auth: config.auth,
                keys: config.keys.clone(),
                blocked_names: config.blocked_names.clone(),
            },
            clients: registry.clone(),
            shard: shard.clone(),
            shutdown: shutdown.clone(),
            visitor_port: self.addresses.visitors.port(),
            config: config.clone(),
        });
        let in_progress = InProgress::default();
        let remote = Rc::new(Remote {
            in_progress: in_progress.clone(),
            table: Table::new(config.allowed_hosts.clone()),
            chain,
            pool: Pool::new(registry.clone(), shard.clone()),
            proxies: TrustedProxies::new(config.trusted_proxies.clone()),
            control: control.clone(),
            shutdown: shutdown.clone(),
            config: config.clone(),
        });
        let exchanges = TaskTracker::new();
        let sessions = TaskTracker::new();

        // Started from the inside out: who serves before who lets in.
        let mut loops = JoinSet::new();
        loops.spawn_local(forget_gone(registry.clone()));
        loops.spawn_local(run_sessions(lobby, inbox, sessions.clone()));
        let peers = PeerServer::new(registry, shutdown.clone());
        loops.spawn_local(accept_peers(Door::new(self.peers, MAX_PEERS), peers));
        loops.spawn_local(accept_clients(Door::new(self.clients, MAX_CLIENTS), control, sessions.clone()));
        let visitors = Rc::new(Door::new(self.visitors, MAX_VISITORS));
        loops.spawn_local(accept_visitors(visitors.clone(), remote.clone(), exchanges.clone()));

        tokio::select! {
            () = shutdown.until_draining() => {}
            Some(stopped) = loops.join_next() => {
                tracing::error!(?stopped, "a loop that never ends has ended; stopping");
            }
        }
        // Stopped from the outside in. New clients are refused from now on (control_server); visitors are served
        // while anything is under way, since their answers may still come.
        shutdown.drain();
        tracing::info!(limit = ?config.drain, "draining");
        let deadline = Instant::now() + config.drain;
        let is_quiet = || in_progress.count() == 0 && shard.in_flight() == 0;
        until(deadline, &shutdown, is_quiet).await;
        // Whoever was let in by the system and not yet by us is served as well.
        let mut late = 0;
        while let Some(accepted) = visitors.accept_now() {
            exchanges.spawn_local(remote.clone().serve(accepted));
            late += 1;
        }
        if late > 0 {
            tokio::time::sleep(DRAIN_LOOK).await;
            until(deadline, &shutdown, is_quiet).await;
        }
        // The doors close, then the sessions say goodbye.
        loops.shutdown().await;
        shutdown.end();
        sessions.close();
        if timeout(GOODBYE, sessions.wait()).await.is_err() {
            tracing::warn!(left = sessions.len(), "some clients did not take their goodbye");
        }
    }
}

/// Waits for `condition`, until the deadline or the end.
async fn until(deadline: Instant, shutdown: &Shutdown, condition: impl Fn() -> bool) {
    while !condition() && Instant::now() < deadline && !shutdown.is_ended() {
        tokio::time::sleep(DRAIN_LOOK).await;
    }
}

async fn accept_visitors(door: Rc<Door>, remote: Rc<Remote>, exchanges: TaskTracker) {
    loop {
        let accepted = door.accept().await;
        exchanges.spawn_local(remote.clone().serve(accepted));
    }
}

async fn accept_clients(door: Door, control: ControlServer, sessions: TaskTracker) {
    loop {
        let accepted = door.accept().await;
        let control = control.clone();
        sessions.spawn_local(async move {
            // The place is given back at the upgrade; from there the wormhole holds one of its own.
            let _place = accepted.place;
            control.serve(accepted.socket, Default::default(), accepted.peer).await;
        });
    }
}

async fn accept_peers(door: Door, peers: PeerServer) {
    loop {
        let accepted = door.accept().await;
        let peers = peers.clone();
        tokio::task::spawn_local(async move {
            let _place = accepted.place;
            peers.serve(accepted.socket).await;
        });
    }
}

async fn run_sessions(lobby: Rc<Lobby>, mut inbox: mpsc::Receiver<Wormhole>, sessions: TaskTracker) {
    while let Some(wormhole) = inbox.recv().await {
        let lobby = lobby.clone();
        sessions.spawn_local(async move {
            let Wormhole { socket, first, place: _place } = wormhole;
            session::run(&lobby, socket, first).await;
        });
    }
}

async fn forget_gone(clients: Arc<ConnectedClients>) {
    loop {
        tokio::time::sleep(FORGET_EVERY).await;
        clients.forget_gone(Instant::now());
    }
}
