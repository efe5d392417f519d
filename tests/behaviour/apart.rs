//! Instances on hosts of their own: strangers, lines that lose and delay, and hosts that are cut off without a word.

use std::{net::SocketAddr, time::Duration};

use tests::{
    client::Client,
    cluster::{Members, instance},
    eventually::eventually,
    hosts::{Host, hosts},
    link::Link,
    origin::Origin,
    part,
    process::Process,
    server::Server,
};
use tokio::time::Instant;

/// What recovery may take; tests run on busy machines, so it is not asserted but printed for docs/operations.md.
fn took(what: &str, since: Instant) {
    println!("{what}: {:?}", since.elapsed());
}

async fn start(hosts: &[Host]) -> (Vec<Server>, Members) {
    let members = Members::none();
    let mut servers = Vec::new();
    for (number, host) in hosts.iter().enumerate() {
        servers.push(instance(number, members.setting()).on(host).start().await);
    }
    members.are(servers.iter().map(|server| server.peers));
    for server in &servers {
        knows(server, servers.len() - 1).await;
    }
    (servers, members)
}

async fn knows(server: &Server, others: usize) {
    eventually("instances know of each other", || async {
        server.metric("tunnelto_peers").await == others as f64
    })
    .await;
}

/// Answers with its own name, on `host`.
fn named(host: &Host, name: &'static str) -> Origin {
    Origin::named_on(host.listen("127.0.0.1:0"), name)
}

/// Answers with what it was sent.
fn echo(host: &Host) -> Origin {
    Origin::on(host.listen("127.0.0.1:0"), |mut connection, request| async move {
        connection.answer("200 OK", &request.body).await;
        Some(connection)
    })
}

async fn text(host: &Host, door: SocketAddr) -> String {
    host.get(door, "web", "/").await.text()
}

#[tokio::test]
async fn a_stranger_from_another_host_is_told_nothing() {
    let Some(hosts) = hosts(2) else { return };
    let (servers, _members) = start(&hosts[..1]).await;
    for path in ["/?host=web", "/claims?since=0"] {
        let mut stranger = hosts[1].visitor(servers[0].peers);
        stranger.send(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await;
        let answer = stranger.answer().await;
        assert_eq!((answer.status, answer.text().contains("must be signed")), (401, true), "{path}");
    }
    // Orchestrators ask from anywhere whether it is well.
    let mut own = hosts[1].visitor(servers[0].peers);
    own.send("GET /health_check HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert_eq!(own.answer().await.status, 200);
    // PROXY v2, TCP over IPv4, 12 bytes of addresses and no signature.
    let mut hop = hosts[1].visitor(servers[0].visitors);
    let addresses = [127, 0, 0, 9, 127, 0, 0, 1, 0, 1, 0, 2];
    hop.send([&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c"[..], &addresses].concat()).await;
    assert_eq!(hop.answer().await.status, 400);
}

#[tokio::test]
async fn what_is_cut_off_holds_up_nobody_else() {
    let Some(hosts) = hosts(3) else { return };
    let (servers, _members) = start(&hosts).await;
    let (one, two) = (named(&hosts[0], "one"), named(&hosts[2], "two"));
    let first = Client::on(&hosts[0], &servers[0], &[&one.target(), "-s", "web"]);
    let second = Client::on(&hosts[2], &servers[2], &[&two.target(), "-s", "far"]);
    first.url().await;
    second.url().await;
    let door = servers[1].visitors;
    assert_eq!(hosts[1].get(door, "far", "/").await.text(), "two");
    let cut = Instant::now();
    hosts[2].drops(&[&hosts[0], &hosts[1]]);
    // Names of healthy instances are served, whatever becomes of the rest.
    for _ in 0..20 {
        assert_eq!(text(&hosts[1], door).await, "one");
    }
    // What may be there is not said to be nowhere: its visitor waits for it, and is told that it is not known.
    let answer = hosts[1].get(door, "far", "/").await;
    took("a visitor of a name that is cut off was answered", cut);
    assert!(matches!(answer.status, 502 | 503), "{} {}", answer.status, answer.text());
    // Nor is a name that only the silent instance could know.
    assert_eq!(hosts[1].get(door, "nobody", "/").await.status, 503);
    eventually("it is known to be silent", || async { servers[1].metric("tunnelto_peers").await == 1.0 })
        .await;
    for _ in 0..20 {
        assert_eq!(text(&hosts[1], door).await, "one");
    }
    let healed = Instant::now();
    hosts[2].heals();
    eventually("its names are served again", || async {
        hosts[1].get(door, "far", "/").await.text() == "two"
    })
    .await;
    took("its names were served again after the line had healed", healed);
    eventually("a no is a no", || async { hosts[1].get(door, "nobody", "/").await.status == 404 }).await;
}

#[tokio::test]
async fn of_two_that_took_one_name_while_they_were_parted_the_older_keeps_it() {
    let Some(hosts) = hosts(2) else { return };
    let (servers, _members) = start(&hosts).await;
    hosts[0].drops(&[&hosts[1]]);
    hosts[1].drops(&[&hosts[0]]);
    for server in &servers {
        knows(server, 0).await;
    }
    let (one, two) = (named(&hosts[0], "one"), named(&hosts[1], "two"));
    let ann = Client::on(&hosts[0], &servers[0], &[&one.target(), "-s", "web", "-k", "ann"]);
    ann.url().await;
    let mut bob = Client::on(&hosts[1], &servers[1], &[&two.target(), "-s", "web", "-k", "bob"]);
    bob.url().await;
    assert_eq!(text(&hosts[0], servers[0].visitors).await, "one");
    assert_eq!(text(&hosts[1], servers[1].visitors).await, "two");
    let healed = Instant::now();
    hosts.iter().for_each(Host::heals);
    assert_eq!(bob.process.exit().await, 4, "{:?}", bob.process.stderr());
    took("the later claim had gone after the line had healed", healed);
    let told = bob.process.stderr().join("\n");
    assert!(told.contains("web"), "{told}");
    for (host, server) in hosts.iter().zip(&servers) {
        eventually("both serve the older", || async { text(host, server.visitors).await == "one" }).await;
    }
    took("both served the older claim", healed);
}

#[tokio::test]
async fn a_line_that_loses_packets_loses_no_byte() {
    let Some(hosts) = hosts(2) else { return };
    let (servers, _members) = start(&hosts).await;
    let origin = echo(&hosts[0]);
    let client = Client::on(&hosts[0], &servers[0], &[&origin.target(), "-s", "web"]);
    client.url().await;
    hosts.iter().for_each(|host| host.loses(2));
    let body: Vec<u8> = (0..4 << 20).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for _ in 0..3 {
        let mut visitor = hosts[1].visitor(servers[1].visitors);
        visitor
            .send(format!("POST / HTTP/1.1\r\nHost: web.localhost\r\nContent-Length: {}\r\n\r\n", body.len()))
            .await;
        // The origin answers when it has read all of it.
        visitor.send(&body).await;
        let answer = visitor.answer().await;
        assert_eq!(answer.status, 200);
        assert!(answer.body == body, "{} bytes came back of {}", answer.body.len(), body.len());
    }
}

#[tokio::test]
async fn a_slow_line_to_the_client_carries_many_at_once() {
    let Some(hosts) = hosts(3) else { return };
    let (servers, _members) = start(&hosts[..2]).await;
    let origin = echo(&hosts[2]);
    // 80 ms there and back, 2 MB/s.
    let far = hosts[2].clone();
    let to = servers[0].clients;
    let link =
        Link::over(hosts[2].listen("127.0.0.1:0"), to, Duration::from_millis(40), 2_000_000, move |to| {
            far.connect(to)
        });
    let url = format!("ws://{}", link.address);
    let client = Client::towards_on(&hosts[2], &url, &[&origin.target(), "-s", "web"]);
    client.url().await;
    let mut visitors = tokio::task::JoinSet::new();
    for number in 0..20u8 {
        let mut visitor = hosts[1].visitor(servers[1].visitors);
        visitors.spawn(async move {
            let body = vec![number; 50_000];
            let head =
                format!("POST / HTTP/1.1\r\nHost: web.localhost\r\nContent-Length: {}\r\n\r\n", body.len());
            for _ in 0..3 {
                visitor.send([head.as_bytes(), &body].concat()).await;
                let answer = visitor.answer().await;
                assert!(answer.status == 200 && answer.body == body, "{}", answer.status);
            }
        });
    }
    while let Some(done) = visitors.join_next().await {
        done.unwrap();
    }
}

#[tokio::test]
async fn an_instance_without_its_store_is_still_found() {
    let Some(hosts) = hosts(3) else { return };
    let Some(redis) = part::command("redis-server", "names in Redis") else { return };
    let store = &hosts[2];
    let (program, mut arguments) = store.command("tunnelto_server", &[]);
    *arguments.last_mut().unwrap() = redis.display().to_string();
    let options = ["--port", "6379", "--bind", &store.ip.to_string(), "--save", "", "--protected-mode", "no"];
    arguments.extend(options.map(str::to_owned));
    let _redis = Process::start(program, arguments, &[], tests::process::home());
    let mut servers = Vec::new();
    for (number, host) in hosts[..2].iter().enumerate() {
        let starting = instance(number, format!("redis://{}", store.at(6379))).env("LEASE", "3s").on(host);
        servers.push(starting.start().await);
    }
    for server in &servers {
        eventually("the store is trusted", || async { server.metric("tunnelto_store_trusted").await == 1.0 })
            .await;
    }
    let (one, two) = (named(&hosts[0], "one"), named(&hosts[1], "two"));
    let ann = Client::on(&hosts[0], &servers[0], &[&one.target(), "-s", "web", "-k", "ann"]);
    ann.url().await;
    let door = servers[1].visitors;
    assert_eq!(text(&hosts[1], door).await, "one");
    // Between the store and the first instance only.
    store.drops(&[&hosts[0]]);
    // Its lease goes on, so the other one still relies on the store for its names; yet what it takes now is found.
    let soon = Client::on(&hosts[0], &servers[0], &[&one.target(), "-s", "soon", "-k", "ann"]);
    soon.url().await;
    assert_eq!(hosts[1].get(door, "soon", "/").await.text(), "one");
    let mut bob = Client::on(&hosts[1], &servers[1], &[&two.target(), "-s", "soon", "-k", "bob"]);
    assert_eq!(bob.process.exit().await, 4, "{:?}", bob.process.stderr());
    let lease = Instant::now();
    while lease.elapsed() < Duration::from_secs(6) {
        assert_eq!(text(&hosts[1], door).await, "one");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(hosts[1].get(door, "nobody", "/").await.status, 404);
    // What it takes now nobody else gets.
    let late = Client::on(&hosts[0], &servers[0], &[&one.target(), "-s", "late", "-k", "ann"]);
    late.url().await;
    eventually("it is found", || async { hosts[1].get(door, "late", "/").await.text() == "one" }).await;
    for name in ["web", "late"] {
        let mut bob = Client::on(&hosts[1], &servers[1], &[&two.target(), "-s", name, "-k", "bob"]);
        assert_eq!(bob.process.exit().await, 4, "{name}: {:?}", bob.process.stderr());
    }
    let healed = Instant::now();
    store.heals();
    eventually("both trust it again", || async {
        servers[0].metric("tunnelto_store_trusted").await + servers[1].metric("tunnelto_store_trusted").await
            == 2.0
    })
    .await;
    took("both trusted the store again", healed);
    for name in ["web", "late"] {
        assert_eq!(hosts[1].get(door, name, "/").await.text(), "one");
    }
}

#[tokio::test]
async fn an_address_has_its_number_of_connections() {
    let Some(hosts) = hosts(3) else { return };
    let server = Server::with().on(&hosts[0]).env("VISITORS_PER_ADDRESS", "3").start().await;
    let origin = echo(&hosts[0]);
    let client = Client::on(&hosts[0], &server, &[&origin.target(), "-s", "web"]);
    client.url().await;
    let mut kept = Vec::new();
    for _ in 0..3 {
        let mut visitor = hosts[1].visitor(server.visitors);
        assert_eq!(visitor.get("web", "/").await.status, 200);
        kept.push(visitor);
    }
    let mut fourth = hosts[1].visitor(server.visitors);
    let answer = fourth.get("web", "/").await;
    assert_eq!((answer.status, answer.field("tunnelto-error")), (503, vec!["too_many".to_owned()]));
    assert!(!answer.field("retry-after").is_empty());
    server.process.complains("VISITORS_PER_ADDRESS").await;
    // Those that are there go on, others come in, and a place that is free can be taken.
    assert_eq!(kept[0].get("web", "/").await.status, 200);
    assert_eq!(hosts[2].get(server.visitors, "web", "/").await.status, 200);
    kept.pop();
    eventually("a place is free again", || async {
        hosts[1].visitor(server.visitors).get("web", "/").await.status == 200
    })
    .await;
}
