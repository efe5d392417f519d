//! What it costs instances to know where names are: the product's own directory, so many times in one process on
//! loopback. `scripts/scaling` runs it for docs/scaling.md.
//!
//! ```text
//! scaling peers 30
//! scaling redis://127.0.0.1:6379 30
//! ```
//!
//! One line of figures follows on standard output.

use std::{
    fs,
    io::Write,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Parser;
use tokio::{net::TcpListener, runtime::LocalRuntime, sync::watch, task::spawn_local, time::sleep};
use tunnelto_lib::name::Label;
use tunnelto_server::{
    active_stream::ShardId,
    config::{Config, Endpoint, Listing, StoreUrl, cli::Cli},
    connected_clients::{Claim, ConnectedClients, Holder, Member, Orders, Owner, Verdict},
    gauge::Gauge,
    network::{
        Asker, Contested, Directory, Located, Peers,
        discovery::{Discovered, Discovery},
        index::{self, Index},
        news,
        peer::Introduction,
        peers::Setting,
        server::{Answering, PeerServer},
    },
    observability::metrics::{Metrics, Present},
    shutdown::Shutdown,
};

macro_rules! say {
    ($($what:tt)*) => {
        writeln!(std::io::stdout(), $($what)*).expect("somebody reads it")
    };
}

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// Operations of each kind, one after the other.
const OPERATIONS: usize = 200;

/// How long the instances are left alone to see what they do by themselves.
const IDLE: Duration = Duration::from_secs(6);

/// Names whose memory is measured.
const NAMES: usize = 100_000;

struct Instance {
    clients: Arc<ConnectedClients>,
    directory: Directory,
    metrics: Arc<Metrics>,
    orders: Orders,
}

/// What the process has used so far.
struct Used {
    at: Instant,
    cpu: Duration,
    questions: f64,
    store: f64,
}

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [directory, count] = &arguments[..] else {
        panic!("scaling peers|redis://…|etcd://… COUNT");
    };
    let count: usize = count.parse().expect("a number of instances");
    let runtime = LocalRuntime::new().expect("a runtime");
    runtime.block_on(async {
        let cluster = start(directory, count).await;
        measure(directory, &cluster).await;
        memory(directory, &cluster).await;
    });
}

async fn start(directory: &str, count: usize) -> Vec<Instance> {
    let mut listeners = Vec::new();
    for _ in 0..count {
        listeners.push(TcpListener::bind("127.0.0.1:0").await.expect("a free port"));
    }
    let doors: Vec<_> = listeners.iter().map(|listener| listener.local_addr().expect("bound")).collect();
    let list: Vec<_> =
        doors.iter().map(|door| Endpoint::parse(&door.to_string()).expect("an address")).collect();
    let mut cluster = Vec::new();
    for (number, listener) in listeners.into_iter().enumerate() {
        cluster.push(instance(number, listener, directory, &list));
    }
    for instance in &cluster {
        until(|| number(instance, "tunnelto_peers") == (count - 1) as f64).await;
        if directory != "peers" {
            until(|| number(instance, "tunnelto_store_trusted") == 1.0).await;
        }
    }
    cluster
}

fn instance(number: usize, listener: TcpListener, kind: &str, list: &[Endpoint]) -> Instance {
    let door = listener.local_addr().expect("bound");
    let url = if kind == "peers" { "static:127.0.0.1" } else { kind };
    let settings = ["scaling", "--master-sig-key", KEY, "--cluster", url, "--bind", "127.0.0.1"];
    let config = Config::from_settings(Cli::parse_from(settings).settings).expect("valid");
    let (metrics, shutdown) = (Arc::<Metrics>::default(), Shutdown::default());
    let clients = Arc::new(ConnectedClients::new(config.grace, Arc::default(), true));
    let introduction = Introduction {
        instance: format!("instance-{number}"),
        life: number as u64,
        port: door.port(),
        tls_port: None,
        draining: false,
    };
    let url = config.cluster.clone().and_then(|cluster| match cluster {
        tunnelto_server::config::Cluster::Store(url) => Some(url),
        tunnelto_server::config::Cluster::Listed(_) => None,
    });
    let index = url.map(|url: StoreUrl| {
        Index::new(&url, &config, metrics.clone(), door.port()).expect("a store's address")
    });
    let (found, discovered) = watch::channel(Discovered::default());
    let is_indexed = index.is_some();
    let peers = Arc::new(Peers::new(Setting {
        asker: Asker::new(config.keys.clone(), config.peer_connect),
        introduction: introduction.clone(),
        index,
        clients: clients.clone(),
        lot: Arc::default(),
        metrics: metrics.clone(),
        shutdown: Shutdown::clone(&shutdown),
        grace: config.grace,
    }));
    if is_indexed {
        spawn_local(index::tend(peers.clone(), found));
        spawn_local(index::write_changes(peers.clone()));
    } else {
        let discovery = Discovery::new(Listing::Static(list.to_vec()), 0, None).expect("no DNS");
        spawn_local(discovery.run(found));
    }
    spawn_local(news::listen(peers.clone(), discovered));
    let directory = Directory::Peers(peers);
    let server = PeerServer::new(Answering {
        clients: clients.clone(),
        directory: directory.clone(),
        introduction,
        keys: config.keys.clone(),
        shutdown,
        certificates: None,
    });
    spawn_local(async move {
        while let Ok((socket, peer)) = listener.accept().await {
            spawn_local(server.clone().serve(socket.into(), peer));
        }
    });
    // Nobody reads them.
    let (orders, _) = Orders::new();
    Instance { clients, directory, metrics, orders }
}

impl Instance {
    fn claim(&self, name: &Label) -> Claim {
        let member = Member {
            connection: self.clients.next_id(ShardId(0)),
            load: Gauge::default(),
            number: 0,
            client_id: "client".into(),
            orders: self.orders.clone(),
        };
        Claim {
            name: name.clone(),
            owner: Owner("ann".into()),
            session: None,
            pool: false,
            takeover: false,
            member,
        }
    }

    /// As a client's hello does it.
    async fn take(&self, name: &Label) {
        let claim = self.claim(name);
        let connection = claim.member.connection;
        let verdict = self.clients.claim(claim, &Holder::Unknown, Instant::now());
        assert!(matches!(verdict, Verdict::Granted(_)), "{verdict:?}");
        let mine = self.clients.held(name, Instant::now()).expect("just claimed");
        let Contested::Won { since, took_over } = self.directory.contest(name, mine, false).await else {
            panic!("{name} was lost")
        };
        self.clients.settle(name, connection, since, took_over);
        self.clients.ready(name, connection);
    }

    async fn finds(&self, name: &Label) -> bool {
        matches!(self.directory.locate(name).await, Ok(Located::At(_)))
    }
}

fn number(instance: &Instance, line: &str) -> f64 {
    let Instance { directory, metrics, .. } = instance;
    let text = metrics.encode(Present { parked: 0, peers: directory.count(), store: directory.store() });
    let values = text.lines().filter_map(|found| {
        let (name, value) = found.split_once(' ')?;
        (name.split('{').next() == Some(line)).then(|| value.parse::<f64>().ok())?
    });
    values.sum()
}

async fn until(mut condition: impl FnMut() -> bool) {
    for _ in 0..1200 {
        if condition() {
            return;
        }
        sleep(Duration::from_millis(50)).await;
    }
    panic!("still not so after a minute");
}

fn used(cluster: &[Instance]) -> Used {
    let stat = fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<_> = stat.rsplit(')').next().expect("a name").split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().expect("utime") + fields[12].parse::<u64>().expect("stime");
    let sum = |line: &str| cluster.iter().map(|instance| number(instance, line)).sum();
    Used {
        at: Instant::now(),
        cpu: Duration::from_millis(ticks * 10),
        questions: sum("tunnelto_questions_total"),
        store: sum("tunnelto_store_requests_total"),
    }
}

fn resident() -> f64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("Linux");
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok()).expect("pages") * 4096.0
}

async fn measure(directory: &str, cluster: &[Instance]) {
    let (first, last) = (&cluster[0], &cluster[cluster.len() - 1]);
    let before = used(cluster);
    sleep(IDLE).await;
    let after = used(cluster);
    let seconds = (after.at - before.at).as_secs_f64();
    let idle = Figures {
        questions: (after.questions - before.questions) / seconds,
        store: (after.store - before.store) / seconds,
        cpu: (after.cpu - before.cpu).as_secs_f64() / seconds,
        took: Duration::ZERO,
    };
    let name = |kind: &str, at: usize| Label::parse(&format!("{kind}{at}")).expect("a name");
    // What goes on by itself is not part of what an operation costs.
    let claim = each(cluster, &idle, async |at| first.take(&name("claim", at)).await).await;
    let miss = each(cluster, &idle, async |at| {
        assert!(!last.finds(&name("nobody", at)).await);
    })
    .await;
    // What is told once a second has been told.
    sleep(Duration::from_millis(1500)).await;
    let find = each(cluster, &idle, async |at| {
        assert!(last.finds(&name("claim", at)).await);
    })
    .await;
    let known = name("claim", 0);
    let began = Instant::now();
    for _ in 0..100_000 {
        assert!(last.finds(&known).await);
    }
    let hit = began.elapsed() / 100_000;
    say!(
        "directory={directory} instances={} idle_questions_s={:.0} idle_store_s={:.1} idle_cpu={:.3} claim_ms={:.2} \
         claim_questions={:.1} claim_store={:.1} miss_ms={:.2} miss_questions={:.1} miss_store={:.1} find_ms={:.3} find_store={:.1} \
         hit_ns={}",
        cluster.len(),
        idle.questions,
        idle.store,
        idle.cpu,
        ms(claim.took),
        claim.questions,
        claim.store,
        ms(miss.took),
        miss.questions,
        miss.store,
        ms(find.took),
        find.store,
        hit.as_nanos(),
    );
}

async fn until_found(instance: &Instance, name: &Label) {
    for _ in 0..1200 {
        if instance.finds(name).await {
            return;
        }
        sleep(Duration::from_millis(50)).await;
    }
    panic!("{name} is not found");
}

/// Per second, or per operation.
struct Figures {
    questions: f64,
    store: f64,
    /// Cores.
    cpu: f64,
    took: Duration,
}

fn ms(took: Duration) -> f64 {
    took.as_secs_f64() * 1000.0
}

async fn each(cluster: &[Instance], idle: &Figures, mut operation: impl AsyncFnMut(usize)) -> Figures {
    let before = used(cluster);
    for at in 0..OPERATIONS {
        operation(at).await;
    }
    let took = before.at.elapsed() / OPERATIONS as u32;
    // What is written down afterwards belongs to it.
    sleep(Duration::from_millis(300)).await;
    let after = used(cluster);
    let seconds = (after.at - before.at).as_secs_f64();
    let per_operation =
        |before: f64, after: f64, idle: f64| ((after - before - idle * seconds) / OPERATIONS as f64).max(0.0);
    Figures {
        questions: per_operation(before.questions, after.questions, idle.questions),
        store: per_operation(before.store, after.store, idle.store),
        cpu: 0.0,
        took,
    }
}

/// Bytes for each name: where it is held, and on another instance.
async fn memory(directory: &str, cluster: &[Instance]) {
    let first = &cluster[0];
    let before = resident();
    let names: Vec<_> =
        (0..NAMES).map(|at| Label::parse(&format!("memory-{at:08}")).expect("a name")).collect();
    let listed = resident();
    for name in &names {
        let claim = first.claim(name);
        let connection = claim.member.connection;
        first.clients.claim(claim, &Holder::Unknown, Instant::now());
        first.clients.settle(name, connection, 1, false);
        first.clients.ready(name, connection);
    }
    let held = resident();
    if directory == "peers" {
        // Heard by all others.
        for instance in &cluster[1..] {
            until_found(instance, &names[NAMES - 1]).await;
        }
        sleep(Duration::from_secs(3)).await;
        let heard = resident();
        say!(
            "memory directory={directory} held_bytes={:.0} heard_bytes={:.0}",
            (held - listed) / NAMES as f64,
            (heard - held) / NAMES as f64 / (cluster.len() - 1) as f64,
        );
        return;
    }
    let began = Instant::now();
    let before_writes = number(first, "tunnelto_store_requests_total");
    loop {
        sleep(Duration::from_millis(500)).await;
        let done = number(first, "tunnelto_store_requests_total");
        sleep(Duration::from_millis(1500)).await;
        if number(first, "tunnelto_store_requests_total") < done + 50.0 {
            break;
        }
    }
    say!(
        "memory directory={directory} held_bytes={:.0} written_s={:.1} writes={:.0} names_bytes={:.0}",
        (held - listed) / NAMES as f64,
        began.elapsed().as_secs_f64(),
        number(first, "tunnelto_store_requests_total") - before_writes,
        (listed - before) / NAMES as f64,
    );
}
