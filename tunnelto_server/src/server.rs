//! Wiring: open the doors, publish their real addresses, run, and stop in the reverse order.

use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use hickory_resolver::net::NetError;
use tokio::{
    net::TcpListener,
    runtime::LocalRuntime,
    sync::{oneshot, watch},
    task::{JoinError, JoinSet, spawn_local},
    time::timeout,
};
use tunnelto_lib::name::Hostname;

use crate::{
    active_stream::ShardId,
    admin::Admin,
    config::{Cluster, Config},
    connected_clients::ConnectedClients,
    control_server::ControlServer,
    doors::{Addresses, Doors},
    edge::{
        crowding::Crowd,
        handover::Mailboxes,
        listener::{Accepted, BindError, Door, Places},
    },
    gauge::Gauge,
    limits::{KEPT_NOTICE, MAX_CLIENTS, MAX_PEERS, MAX_VISITORS},
    network::{
        Asker, Directory, Peers,
        discovery::{Discovered, Discovery},
        index::{self, Index, StoreError},
        news,
        peer::Introduction,
        peers::Setting,
        proxy::Hops,
        server::{Answering, PeerServer},
    },
    observability::metrics::Metrics,
    parking::Lot,
    policy::Chain,
    routing::{Destination, Routed, Table},
    shutdown::Shutdown,
    socket::Socket,
    tls::{
        Terms,
        source::{IsHeld, Source, SourceError, Tending},
    },
    worker::{Shared, Worker},
};

/// How often the drain looks whether anything is still under way.
const DRAIN_LOOK: Duration = Duration::from_millis(50);

/// How often names whose grace is over are forgotten.
const FORGET_EVERY: Duration = Duration::from_secs(1);

/// How long doors stay shut at the start while the other instances are being found.
const FIRST_LOOK: Duration = Duration::from_secs(3);

pub struct Server;

/// A server whose doors are open and that does not serve yet.
pub struct Bound {
    config: Arc<Config>,
    doors: Doors,
    /// `None`: TLS is not spoken here.
    certificates: Option<(Source, Tending)>,
    finding: Finding,
    metrics: Arc<Metrics>,
    pub addresses: Addresses,
}

/// How other instances are found.
enum Finding {
    /// There are none.
    Alone,
    Listed(Box<Discovery>),
    Indexed(Box<Index>),
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error("the system's DNS settings cannot be used ({0}); name a server in DNS_SERVER")]
    Dns(#[from] NetError),
    #[error("CLUSTER: {0}")]
    Store(#[from] StoreError),
    #[error(transparent)]
    Certificates(#[from] SourceError),
}

impl Server {
    pub fn bind(config: Config) -> Result<Bound, StartError> {
        let doors = Doors::open(&config)?;
        let tls = config.tls.as_ref().map(|tls| {
            let terms = Terms::new(tls.min, config.keys.clone());
            Source::open(&tls.certificates, terms, &config)
        });
        let certificates = tls.transpose()?;
        let net_port = doors.addresses.peers.port();
        let metrics: Arc<Metrics> = Arc::default();
        let finding = match config.cluster.clone() {
            None => Finding::Alone,
            Some(Cluster::Listed(listing)) => {
                Finding::Listed(Box::new(Discovery::new(listing, net_port, config.dns_server)?))
            }
            Some(Cluster::Store(url)) => {
                Finding::Indexed(Box::new(Index::new(&url, &config, metrics.clone(), net_port)?))
            }
        };
        let addresses = doors.addresses;
        Ok(Bound { config: Arc::new(config), doors, certificates, finding, metrics, addresses })
    }
}

impl Bound {
    /// Serves until `shutdown` ends. Call it within a local runtime, which becomes the first shard's.
    pub async fn run(self, shutdown: Shutdown) -> io::Result<()> {
        let Self { config, doors, certificates, finding, metrics, addresses } = self;
        let Doors { visitors, tls: tls_doors, clients, peers, admin, .. } = doors;
        let tls_port = addresses.tls.map(|at| at.port());
        let drain = config.drain;
        let lot: Arc<Lot> = Arc::default();
        let registry = Arc::new(ConnectedClients::new(config.grace, lot.clone(), config.cluster.is_some()));
        let introduction = Introduction {
            instance: config.instance.clone(),
            life: rand::random(),
            port: addresses.visitors.port(),
            tls_port,
            draining: false,
        };
        let mut loops = JoinSet::new();
        let setting = Setting {
            introduction: introduction.clone(),
            asker: Asker::new(config.keys.clone(), config.peer_connect),
            index: None,
            clients: registry.clone(),
            lot: lot.clone(),
            metrics: metrics.clone(),
            shutdown: shutdown.clone(),
            grace: config.grace,
        };
        let (directory, discovered) = find_others(finding, setting, &mut loops);
        let hops = Hops {
            keys: config.keys.clone(),
            instance: config.instance.as_str().into(),
            most: config.peer_hops,
            rate: config.peer_rate,
            connect: config.peer_connect,
            metrics: metrics.clone(),
        };
        let keys = config.keys.clone();
        let chain = Chain::new(config.blocked_addresses.clone());
        let (mailboxes, inboxes) = Mailboxes::new(visitors.len());
        let control = ControlServer::new(mailboxes.clone(), MAX_CLIENTS, chain.clone(), shutdown.clone());
        let kept = Places::new(MAX_VISITORS);
        let crowd = Crowd::new(config.visitors_per_address);
        let (certificates, tending) = certificates.unzip();
        let shared = Shared {
            public: config.public(addresses.visitors.port(), tls_port),
            certificates,
            config,
            clients: registry.clone(),
            chain,
            control: control.clone(),
            mailboxes,
            shutdown: shutdown.clone(),
            visitors: kept.clone(),
            crowd,
            directory: directory.clone(),
            hops,
            lot: lot.clone(),
        };
        // Started from the inside out: who serves before who lets in.
        loops.spawn_local(forget_gone(registry.clone()));
        let answering = Answering {
            clients: registry.clone(),
            directory: directory.clone(),
            introduction,
            keys,
            shutdown: shutdown.clone(),
            certificates: shared.certificates.clone(),
        };
        let peer_server = PeerServer::new(answering);
        let peers = Door::new(TcpListener::from_std(peers)?, Places::new(MAX_PEERS));
        loops.spawn_local(accept_each(peers, move |socket, peer| peer_server.clone().serve(socket, peer)));
        // Visitors wait at the door until it is known whom to ask for their tunnels.
        let _ = timeout(FIRST_LOOK, until_found(discovered)).await;
        if let Some(tending) = tending {
            let is_held = is_held(registry.clone(), Table::new(shared.config.allowed_hosts.clone()));
            tending.start(is_held, directory.ask_certificates(&shared.config.keys), &mut loops);
        }
        let mut shards = JoinSet::new();
        let mut in_progress = Vec::new();
        let mut tls_doors = tls_doors.into_iter();
        for (number, (door, inbox)) in visitors.into_iter().zip(inboxes).enumerate() {
            let tls_door = tls_doors.next();
            let gauge = Gauge::default();
            in_progress.push(gauge.clone());
            let shared = shared.clone();
            let worker = Worker { id: ShardId(number), door, tls_door, inbox, in_progress: gauge, shared };
            match number {
                0 => shards.spawn_local(worker.run()),
                _ => shards.spawn_local(on_a_thread(worker)),
            };
        }
        let clients = Door::new(TcpListener::from_std(clients)?, Places::new(MAX_CLIENTS));
        // The place is given back at the upgrade; from there the client holds one of its own.
        loops.spawn_local(accept_each(clients, move |socket, peer| {
            control.clone().serve(socket, Bytes::new(), peer)
        }));
        let admin = Door::new(TcpListener::from_std(admin)?, Places::new(MAX_PEERS));
        let operators = Admin::new(metrics, lot, directory.clone());
        loops.spawn_local(accept_each(admin, move |socket, peer| operators.clone().serve(socket, peer)));

        let mut result = Ok(());
        tokio::select! {
            () = shutdown.until_draining() => {}
            Some(stopped) = loops.join_next() => {
                tracing::error!(?stopped, "a loop that never ends has ended; stopping");
            }
            Some(stopped) = shards.join_next() => {
                tracing::error!(?stopped, "a shard that never ends has ended; stopping");
                result = outcome(stopped);
            }
        }
        // Stopped from the outside in. New clients are refused from now on (control_server); visitors are served
        // while anything is under way, since their answers may still come; and other instances are asked, and brought
        // visitors, as long as a client of theirs is here.
        shutdown.drain();
        let is_left = || directory.is_alone() || registry.is_empty();
        // A visitor that keeps its connection is told with its next answer that it ends; else its next request might meet the
        // end itself.
        let notice = Instant::now() + KEPT_NOTICE;
        let has_heard = || kept.count() == 0 || Instant::now() >= notice;
        let is_quiet = || has_heard() && is_left() && in_progress.iter().all(|gauge| gauge.count() == 0);
        drain_until(is_quiet, drain, &shutdown).await;
        loops.shutdown().await;
        directory.leave().await;
        shutdown.end();
        while let Some(stopped) = shards.join_next().await {
            result = result.and(outcome(stopped));
        }
        result
    }
}

/// Whether a host is one of the server's own, or of a tunnel that is here.
fn is_held(clients: Arc<ConnectedClients>, table: Table) -> IsHeld {
    let destination = move |host: &str| table.route(&Hostname::parse(host).ok()?).ok();
    Box::new(move |host| match destination(host) {
        Some(Destination::Tunnel(Routed { name })) => clients.serves(&name),
        Some(Destination::Home | Destination::Wormhole) => true,
        None => false,
    })
}

/// What a shard's task came to.
fn outcome(stopped: Result<io::Result<()>, JoinError>) -> io::Result<()> {
    stopped.map_err(io::Error::other)?
}

/// Runs a shard on a thread of its own, to its end.
async fn on_a_thread(worker: Worker) -> io::Result<()> {
    let (ended, end) = oneshot::channel();
    let name = format!("shard-{}", worker.id.0);
    thread::Builder::new().name(name).spawn(move || {
        let result = LocalRuntime::new().and_then(|runtime| runtime.block_on(worker.run()));
        // The main thread may be at its end already.
        let _ = ended.send(result);
    })?;
    end.await.map_err(io::Error::other)?
}

/// The directory, and when it knows where to look.
fn find_others(
    finding: Finding,
    setting: Setting,
    loops: &mut JoinSet<()>,
) -> (Directory, Option<watch::Receiver<Discovered>>) {
    let (found, discovered) = watch::channel(Discovered::default());
    let peers = match finding {
        Finding::Alone => return (Directory::Alone, None),
        Finding::Listed(discovery) => {
            loops.spawn_local(discovery.run(found));
            Arc::new(Peers::new(setting))
        }
        Finding::Indexed(index) => {
            let peers = Arc::new(Peers::new(Setting { index: Some(*index), ..setting }));
            loops.spawn_local(index::tend(peers.clone(), found));
            loops.spawn_local(index::write_changes(peers.clone()));
            peers
        }
    };
    loops.spawn_local(news::listen(peers.clone(), discovered.clone()));
    (Directory::Peers(peers), Some(discovered))
}

async fn until_found(discovered: Option<watch::Receiver<Discovered>>) {
    if let Some(mut discovered) = discovered {
        // Ends only with the loop that looks.
        let _ = discovered.wait_for(|found| found.problem.is_none()).await;
    }
}

/// Returns once all is quiet, or after `limit`.
async fn drain_until(is_quiet: impl Fn() -> bool, limit: Duration, shutdown: &Shutdown) {
    tracing::info!(?limit, "draining");
    let deadline = Instant::now() + limit;
    until(deadline, shutdown, &is_quiet).await;
    // The last ones that wait at the doors have come in by then, and said what they want.
    tokio::time::sleep(DRAIN_LOOK).await;
    until(deadline, shutdown, &is_quiet).await;
}

/// Waits for `condition`, until the deadline or the end.
async fn until(deadline: Instant, shutdown: &Shutdown, condition: impl Fn() -> bool) {
    while !condition() && Instant::now() < deadline && !shutdown.is_ended() {
        tokio::time::sleep(DRAIN_LOOK).await;
    }
}

/// Serves each connection of a door by a task of its own, which has a place until it is served.
async fn accept_each<S: Future<Output = ()> + 'static>(door: Door, serve: impl Fn(Socket, SocketAddr) -> S) {
    loop {
        let Accepted { socket, peer, place, .. } = door.accept().await;
        let serving = serve(socket, peer);
        spawn_local(async move {
            let _place = place;
            serving.await;
        });
    }
}

async fn forget_gone(clients: Arc<ConnectedClients>) {
    loop {
        tokio::time::sleep(FORGET_EVERY).await;
        clients.forget_gone(Instant::now());
    }
}
