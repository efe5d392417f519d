//! One shard at work: its door for visitors, its mailbox, its clients' sessions. Every shard has a thread of its
//! own; the first shares the main thread with the clients' and the peers' doors.

use std::{net, rc::Rc, sync::Arc};

use tokio::{
    net::TcpListener,
    sync::mpsc,
    task::{JoinSet, spawn_local},
    time::timeout,
};
use tokio_util::task::TaskTracker;

use crate::{
    active_stream::ShardId,
    auth::Prover,
    config::{Config, PublicUrl},
    connected_clients::ConnectedClients,
    control::session::{self, Lobby},
    control_server::ControlServer,
    edge::{
        crowding::Crowd,
        forwarded::TrustedProxies,
        h2,
        handover::{Client, Mailboxes, Parcel},
        listener::{Door, Places},
    },
    gauge::Gauge,
    limits::GOODBYE,
    network::{Directory, proxy::Hops},
    parking::Lot,
    policy::Chain,
    pool::Pool,
    remote::Remote,
    routing::Table,
    shard::Shard,
    shutdown::Shutdown,
    tls::source::Source,
};

/// What all shards share.
#[derive(Clone)]
pub struct Shared {
    pub config: Arc<Config>,
    pub clients: Arc<ConnectedClients>,
    pub chain: Chain,
    pub control: ControlServer,
    pub mailboxes: Mailboxes,
    pub shutdown: Shutdown,
    pub visitors: Arc<Places>,
    pub crowd: Arc<Crowd>,
    pub directory: Directory,
    pub hops: Hops,
    pub lot: Arc<Lot>,
    /// How visitors reach this server.
    pub public: PublicUrl,
    /// `None`: TLS is not spoken here.
    pub certificates: Option<Source>,
}

/// A shard that does not run yet. It is made on the main thread and runs on its own.
pub struct Worker {
    pub id: ShardId,
    pub door: net::TcpListener,
    pub tls_door: Option<net::TcpListener>,
    pub inbox: mpsc::Receiver<Parcel>,
    /// Exchanges under way on it.
    pub in_progress: Gauge,
    pub shared: Shared,
}

impl Worker {
    /// Works until the end. Call it within a local runtime.
    pub async fn run(self) -> std::io::Result<()> {
        let Self { id, door, tls_door, inbox, in_progress, shared } = self;
        let shutdown = shared.shutdown.clone();
        let mut doors = vec![Door::new(TcpListener::from_std(door)?, shared.visitors.clone())];
        if let Some(door) = tls_door {
            doors.push(Door::for_tls(TcpListener::from_std(door)?, shared.visitors.clone()));
        }
        let (lobby, remote) = assemble(id, in_progress, shared);
        let sessions = TaskTracker::new();

        // Started from the inside out: who serves before who lets in.
        let mut loops = JoinSet::new();
        loops.spawn_local(take_parcels(inbox, lobby, remote.clone(), sessions.clone()));
        for door in doors {
            loops.spawn_local(accept_visitors(door, remote.clone()));
        }

        tokio::select! {
            () = shutdown.until_ended() => {}
            Some(stopped) = loops.join_next() => {
                tracing::error!(?stopped, "a loop that never ends has ended; stopping");
                shutdown.drain();
                shutdown.until_ended().await;
            }
        }
        // The door closes, then the sessions say goodbye.
        loops.shutdown().await;
        sessions.close();
        if timeout(GOODBYE, sessions.wait()).await.is_err() {
            tracing::warn!(left = sessions.len(), "some clients did not take their goodbye");
        }
        Ok(())
    }
}

fn assemble(id: ShardId, in_progress: Gauge, shared: Shared) -> (Rc<Lobby>, Rc<Remote>) {
    let Shared { config, clients, chain, control, mailboxes, shutdown, public, certificates, crowd, .. } =
        shared;
    let (directory, hops, lot) = (shared.directory, shared.hops, shared.lot);
    let shard = Rc::new(Shard::new(id));
    let lobby = Lobby {
        prover: Prover {
            auth: config.auth,
            keys: config.keys.clone(),
            blocked_names: config.blocked_names.clone(),
        },
        clients: clients.clone(),
        shard: shard.clone(),
        shutdown: shutdown.clone(),
        directory: directory.clone(),
        public: public.clone(),
        config: config.clone(),
    };
    let remote = Remote {
        table: Table::new(config.allowed_hosts.clone()),
        chain,
        pool: Pool {
            clients,
            shard,
            directory,
            lot,
            metrics: hops.metrics.clone(),
            shutdown: shutdown.clone(),
        },
        proxies: TrustedProxies::new(config.trusted_proxies.clone(), config.on_fly),
        crowd,
        control,
        mailboxes,
        hops,
        shutdown,
        in_progress,
        public,
        certificates,
        config,
    };
    (Rc::new(lobby), Rc::new(remote))
}

async fn accept_visitors(door: Door, remote: Rc<Remote>) {
    loop {
        let accepted = door.accept().await;
        spawn_local(remote.clone().serve(accepted));
    }
}

/// Never waits for what it starts, so that a full mailbox always empties.
async fn take_parcels(
    mut inbox: mpsc::Receiver<Parcel>,
    lobby: Rc<Lobby>,
    remote: Rc<Remote>,
    sessions: TaskTracker,
) {
    while let Some(parcel) = inbox.recv().await {
        match parcel {
            Parcel::Visitor(moved) => {
                spawn_local(remote.clone().serve_moved(*moved));
            }
            Parcel::Request(moved) => {
                spawn_local(h2::serve_moved(*moved, remote.clone()));
            }
            Parcel::Client(client) => {
                let lobby = lobby.clone();
                sessions.spawn_local(async move {
                    let Client { socket, first, places: _places } = *client;
                    session::run(&lobby, socket, first).await;
                });
            }
        }
    }
}
