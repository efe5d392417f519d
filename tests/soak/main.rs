//! A mixed load on the real binaries, and what must hold when it is over: every finished body right, nothing left of
//! what was broken off, every name free again. Twenty seconds by default; `make soak` takes ten minutes.

mod chaos;
mod load;
mod origin;

use std::time::Duration;

use tests::{
    chance::Chance,
    client::Client,
    env,
    eventually::eventually,
    process::Process,
    published::Published,
    server::Server,
    visitor::get,
    wormhole::{ScriptedClient, published_hello},
};
use tokio::{task::JoinSet, time::Instant};

use load::{Count, Target, Trust};
use origin::Origin;

/// Tunnels on which nothing may fail.
const STEADY: usize = 4;

/// Tunnels whose clients are killed and come back.
const FLEETING: usize = 6;

/// Visitors at once.
const VISITORS: usize = 24;

/// Resident memory that a process may be larger after the load than in its middle, in KiB: what an allocator keeps.
const GROWTH: usize = 24 * 1024;

/// A stop with nothing under way takes far less; a stuck exchange would hold it for DRAIN, 20 s.
const STOP: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_mixed_load_leaves_nothing_behind() {
    let length = Duration::from_secs(number("SOAK_SECONDS").unwrap_or(20));
    let seed = number("SOAK_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("soak: {length:?}, SOAK_SEED={seed}");
    let origin = Origin::start().await;
    let settings = [("WORKERS", "2"), ("GRACE", "1s"), ("RUST_LOG", "warn")];
    let server = settings.into_iter().fold(Server::with(), |server, (name, value)| server.env(name, value));
    let server = server.start().await;

    let mut steady = Vec::new();
    let mut targets = Vec::new();
    for number in 0..STEADY {
        let name = format!("steady-{number}");
        let client = Client::start(&server, &[&origin.target(), "-s", &name, "-k", "ann"]);
        client.url().await;
        steady.push(client);
        targets.push(Target { name, trust: Trust::Full });
    }
    let published = Published::start(&server, origin.address.port(), &["-k", "old", "-s", "published"]);
    if published.is_some() {
        eventually("the published client serves", || async {
            get(server.visitors, "published", "/bytes/1/1").await.status == 200
        })
        .await;
        targets.push(Target { name: "published".into(), trust: Trust::Published });
    }
    let fleeting: Vec<_> = (0..FLEETING).map(|number| format!("fleeting-{number}")).collect();
    targets.extend(fleeting.iter().map(|name| Target { name: name.clone(), trust: Trust::None }));

    let at_rest = descriptors(&server, &steady);
    let began = Instant::now();
    let until = began + length;
    let mut tasks: JoinSet<Count> = JoinSet::new();
    for visitor in 0..VISITORS {
        let chance = Chance::new(seed.wrapping_mul(1000) + visitor as u64);
        tasks.spawn(load::visit(server.visitors, targets.clone(), chance, until));
    }
    let mut broken: JoinSet<()> = JoinSet::new();
    let (url, target) = (server.url(), origin.target());
    broken.spawn(chaos::kill_and_restart(url, target, fleeting.clone(), Chance::new(seed), until));
    broken.spawn(chaos::come_and_vanish(server.clients, until));

    tokio::time::sleep_until(began + length / 2).await;
    let halfway = sizes(&server, &steady);
    let mut total = Count::default();
    while let Some(count) = tasks.join_next().await {
        total += count.unwrap();
    }
    while let Some(done) = broken.join_next().await {
        done.unwrap();
    }
    println!("soak: {total:?}");
    assert!(total.whole > 100 && total.broken_off > 0, "a load that does little shows little: {total:?}");

    let mut now = Vec::new();
    eventually("all descriptors are given back", || {
        now = descriptors(&server, &steady);
        let is_at_rest = now.iter().zip(&at_rest).all(|(now, before)| now <= before);
        async move { is_at_rest }
    })
    .await;
    for (before, after) in halfway.iter().zip(sizes(&server, &steady)) {
        println!("soak: {before} KiB halfway, {after} KiB at the end");
        // A sanitizer keeps what is freed, to notice its use.
        let is_fair = env("SOAK_SANITIZER").is_none();
        assert!(!is_fair || after <= before + GROWTH, "grew from {before} to {after} KiB");
    }
    for name in &fleeting {
        eventually(&format!("{name} is free again"), || async {
            let hello = published_hello("stranger", Some(name));
            ScriptedClient::connect(&server, &hello).await.1["success"].is_object()
        })
        .await;
    }
    for line in processes(&server, &steady).flat_map(Process::stderr) {
        assert!(!line.contains("panicked") && !line.contains("ERROR"), "{line}");
    }

    let mut process = server.process;
    let stopping = Instant::now();
    process.signal("TERM");
    assert_eq!(process.exit().await, 0, "{:?}", process.stderr());
    assert!(stopping.elapsed() < STOP, "something was still under way");
    for mut client in steady {
        client.process.signal("INT");
        assert_eq!(client.process.exit().await, 0, "{:?}", client.process.stderr());
    }
}

fn number(name: &str) -> Option<u64> {
    env(name)?.to_str()?.parse().ok()
}

fn descriptors(server: &Server, clients: &[Client]) -> Vec<usize> {
    processes(server, clients).map(Process::descriptors).collect()
}

fn sizes(server: &Server, clients: &[Client]) -> Vec<usize> {
    processes(server, clients).map(Process::memory).collect()
}

fn processes<'a>(server: &'a Server, clients: &'a [Client]) -> impl Iterator<Item = &'a Process> {
    [&server.process].into_iter().chain(clients.iter().map(|client| &client.process))
}
