//! Instances find each other by DNS, and go on with whom they know while that is away.

use std::net::SocketAddr;

use tests::{
    client::Client,
    cluster::{MASTER_KEY, instance},
    dns::{Dns, NAME, SERVICE, free_port},
    eventually::eventually,
    origin::Origin,
    server::{Server, Starting},
    visitor::get,
};

fn at(number: u8, port: u16) -> SocketAddr {
    ([127, 0, 0, number + 2], port).into()
}

/// One whose NET_PORT is the same as the others'.
fn by_name(number: u8, net_port: u16, dns: SocketAddr) -> Starting {
    instance(number.into(), format!("dns:{NAME}"))
        .env("NET_PORT", net_port.to_string())
        .env("DNS_SERVER", dns.to_string())
}

async fn knows(server: &Server, others: usize) {
    eventually("the others are known", || async { server.metric("tunnelto_peers").await == others as f64 })
        .await;
}

#[tokio::test]
async fn by_address_records_which_may_change() {
    let port = free_port();
    let Some(dns) = Dns::start(&[at(0, port), at(1, port)]).await else { return };
    let first = by_name(0, port, dns.at).start().await;
    let second = by_name(1, port, dns.at).start().await;
    knows(&first, 1).await;
    let third = by_name(2, port, dns.at).start().await;
    dns.are(&[at(0, port), at(1, port), at(2, port)]);
    for server in [&first, &second, &third] {
        knows(server, 2).await;
    }
    let origin = Origin::echo().await;
    let client = Client::start(&third, &[&origin.target(), "-s", "web"]);
    client.url().await;
    assert_eq!(get(first.visitors, "web", "/found").await.text(), "GET /found ");
    // One that is still here is not dropped because DNS no longer names it: it may be draining.
    dns.are(&[at(0, port), at(1, port)]);
    eventually("a no is a no", || async { get(first.visitors, "nobody", "/").await.status == 404 }).await;
    assert_eq!(get(first.visitors, "web", "/still").await.text(), "GET /still ");
}

#[tokio::test]
async fn by_service_records_which_name_the_port() {
    let ports = [free_port(), free_port()];
    let instances = [at(0, ports[0]), at(1, ports[1])];
    let Some(dns) = Dns::start(&instances).await else { return };
    let start = |number: u8| {
        instance(number.into(), format!("dns:{SERVICE}"))
            .env("NET_PORT", ports[usize::from(number)].to_string())
            .env("DNS_SERVER", dns.at.to_string())
            .start()
    };
    let (first, second) = (start(0).await, start(1).await);
    knows(&first, 1).await;
    let origin = Origin::echo().await;
    let client = Client::start(&second, &[&origin.target(), "-s", "web"]);
    client.url().await;
    assert_eq!(get(first.visitors, "web", "/found").await.text(), "GET /found ");
}

#[tokio::test]
async fn on_fly_by_the_apps_name_alone() {
    let port = free_port();
    let Some(dns) = Dns::start(&[at(0, port), at(1, port)]).await else { return };
    let start = |number: u8| {
        Server::with()
            .env("BIND", at(number, 0).ip().to_string())
            .env("NET_PORT", port.to_string())
            .env("MASTER_SIG_KEY", MASTER_KEY)
            .env("ALLOWED_HOSTS", "tunnel.example.com")
            .env("FLY_APP_NAME", "demo")
            .env("FLY_MACHINE_ID", format!("machine{number}"))
            // Fly.io's own is the system's.
            .env("DNS_SERVER", dns.at.to_string())
    };
    let (first, second) = (start(0).start().await, start(1).start().await);
    knows(&first, 1).await;
    // A key that either has made is good on both: no database is shared.
    let key = second.process.stderr().join("\n");
    let key =
        key.split_whitespace().find(|word| word.starts_with("tto_")).expect("the first start makes a key");
    let origin = Origin::echo().await;
    let client = Client::start(&first, &[&origin.target(), "-s", "web", "-k", key]);
    assert_eq!(client.url().await, "https://web.tunnel.example.com");
    let mut visitor = tests::visitor::Visitor::connect(second.visitors).await;
    visitor.send("GET /fly HTTP/1.1\r\nHost: web.tunnel.example.com\r\n\r\n").await;
    assert_eq!(visitor.answer().await.text(), "GET /fly ");
}

#[tokio::test]
async fn whom_they_know_they_know_without_dns() {
    let port = free_port();
    let instances = [at(0, port), at(1, port)];
    let Some(dns) = Dns::start(&instances).await else { return };
    let first = by_name(0, port, dns.at).start().await;
    let second = by_name(1, port, dns.at).start().await;
    knows(&first, 1).await;
    let stopped = dns.stop().await;
    eventually("it is noticed", || async {
        first.process.stderr().iter().any(|line| line.contains("cannot find the other instances"))
    })
    .await;
    let origin = Origin::echo().await;
    let client = Client::start(&second, &[&origin.target(), "-s", "web"]);
    client.url().await;
    assert_eq!(get(first.visitors, "web", "/found").await.text(), "GET /found ");
    // One that starts now knows nobody, and says so to its visitors.
    let third = by_name(2, port, first.peers).start().await;
    let answer = get(third.visitors, "web", "/").await;
    assert_eq!((answer.status, answer.field("tunnelto-error")), (503, vec!["locating_failed".to_owned()]));
    drop(third);
    let dns = stopped.start(&instances).await;
    let third = by_name(2, port, dns.at).start().await;
    knows(&third, 2).await;
    assert_eq!(get(third.visitors, "web", "/found").await.text(), "GET /found ");
}
