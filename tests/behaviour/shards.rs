//! Several shards: whichever accepts a visitor, the one with the client serves it, and nobody notices.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use tests::{
    client::Client,
    eventually::{eventually, soon},
    http2::{Asker, request_to},
    origin::Origin,
    server::Server,
    visitor::{Visitor, get},
};
use tokio::{io::AsyncWriteExt, task::JoinSet};

/// Names whose clients are spread over the shards, since each new client goes where the fewest are.
const NAMES: [&str; 4] = ["one", "two", "three", "four"];

struct Spread {
    server: Server,
    _clients: Vec<(Client, Origin)>,
}

/// Four shards with a client each; every origin says which it is.
async fn spread() -> Spread {
    let server = Server::with().env("WORKERS", "4").env("RUST_LOG", "info").start().await;
    let mut clients = Vec::new();
    for name in NAMES {
        let origin = Origin::start(move |mut connection, request| async move {
            let answer = [format!("{name} {} ", request.target()).into_bytes(), request.body].concat();
            connection.answer("200 OK", &answer).await;
            Some(connection)
        })
        .await;
        let client = Client::start(&server, &[&origin.target(), "-s", name]);
        client.url().await;
        clients.push((client, origin));
    }
    Spread { server, _clients: clients }
}

#[tokio::test]
async fn every_visitor_reaches_every_tunnel() {
    let spread = spread().await;
    let mut visits = JoinSet::new();
    for visit in 0..64 {
        let door = spread.server.visitors;
        visits.spawn(async move {
            let mut visitor = Visitor::connect(door).await;
            for round in 0..8 {
                let name = NAMES[(visit + round) % NAMES.len()];
                let body = vec![b'a' + round as u8; round * 9_999];
                let head = format!(
                    "PUT /{visit}/{round} HTTP/1.1\r\nHost: {name}.localhost\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                );
                visitor.send([head.as_bytes(), &body].concat()).await;
                let wanted = [format!("{name} /{visit}/{round} ").into_bytes(), body].concat();
                assert!(visitor.answer().await.body == wanted, "visit {visit}, round {round}");
            }
        });
    }
    while let Some(visit) = visits.join_next().await {
        visit.unwrap();
    }
}

#[tokio::test]
async fn requests_sent_ahead_move_along_with_their_visitor() {
    let spread = spread().await;
    let mut visitor = Visitor::connect(spread.server.visitors).await;
    let ahead: String = (0..20)
        .map(|at| {
            let name = NAMES[at % NAMES.len()];
            format!("POST /{at} HTTP/1.1\r\nHost: {name}.localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
        })
        .collect();
    visitor.send(ahead).await;
    for at in 0..20 {
        let wanted = format!("{} /{at} abc", NAMES[at % NAMES.len()]);
        assert_eq!(visitor.answer().await.text(), wanted);
    }
}

#[tokio::test]
async fn a_request_that_moves_is_recorded_once() {
    let spread = spread().await;
    for name in NAMES {
        for _ in 0..4 {
            assert_eq!(get(spread.server.visitors, name, "/recorded").await.status, 200);
        }
    }
    let recorded = || spread.server.process.stderr().iter().filter(|line| line.contains("/recorded")).count();
    eventually("every request is recorded", || async { recorded() >= 16 }).await;
    assert_eq!(recorded(), 16);
}

#[tokio::test]
async fn a_large_upload_and_download_cross_whole() {
    let spread = spread().await;
    let body: Vec<u8> = (0..8 << 20).map(|at: u32| (at % 251) as u8).collect();
    let mut moves = JoinSet::new();
    for name in NAMES {
        let (door, body) = (spread.server.visitors, Bytes::from(body.clone()));
        moves.spawn(async move {
            let mut visitor = Visitor::connect(door).await;
            let head = format!(
                "PUT /big HTTP/1.1\r\nHost: {name}.localhost\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            visitor.send(head).await;
            soon("the upload is taken", visitor.socket.write_all(&body)).await.unwrap();
            let answer = visitor.answer().await.body;
            assert!(answer == [format!("{name} /big ").as_bytes(), &body].concat(), "{name}");
        });
    }
    while let Some(moved) = moves.join_next().await {
        moved.unwrap();
    }
}

#[tokio::test]
async fn one_http_2_connection_reaches_tunnels_of_all_shards() {
    let spread = spread().await;
    let asker = Asker::connect(&spread.server).await;
    let mut asks = JoinSet::new();
    for at in 0..40 {
        let (asker, name) = (asker.clone(), NAMES[at % NAMES.len()]);
        asks.spawn(async move {
            let body = vec![b'x'; at * 5_000];
            let got = asker.ask(request_to(name, "POST", &format!("/{at}")), Some(&body)).await;
            assert!(got.body == [format!("{name} /{at} ").into_bytes(), body].concat(), "request {at}");
        });
    }
    while let Some(ask) = asks.join_next().await {
        ask.unwrap();
    }
}

#[tokio::test]
async fn a_client_that_comes_back_on_another_shard_is_found_there() {
    let server = Server::with().env("WORKERS", "4").start().await;
    let origin = Origin::echo().await;
    let mut visitor = Visitor::connect(server.visitors).await;
    for round in 0..4 {
        let mut client = Client::start(&server, &[&origin.target(), "-s", "web", "-k", "ann"]);
        client.url().await;
        assert_eq!(visitor.get("web", &format!("/{round}")).await.text(), format!("GET /{round} "));
        client.process.signal("INT");
        client.process.exit().await;
    }
}

#[tokio::test]
async fn a_port_is_shared_with_no_second_server() {
    let first = Server::with().env("WORKERS", "2").start().await;
    for workers in ["1", "2"] {
        let second = Server::with().env("WORKERS", workers).env("PORT", first.visitors.port().to_string());
        let mut process = second.spawn();
        assert_ne!(process.exit().await, 0, "{workers} workers");
        let complaint = process.stderr().join("\n");
        assert!(complaint.contains("visitors (PORT)") && complaint.contains("another server"), "{complaint}");
    }
}

static STOPPING: AtomicBool = AtomicBool::new(false);

#[tokio::test]
async fn a_stop_waits_for_exchanges_of_all_shards() {
    let server = Server::with().env("WORKERS", "4").start().await;
    let origin = Origin::start(|mut connection, request| async move {
        // The second half comes once the server is stopping.
        connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfirst").await;
        eventually("the stop", || async { STOPPING.load(Ordering::Relaxed) }).await;
        connection.write(b"-half").await;
        drop(request);
        Some(connection)
    })
    .await;
    let mut clients = Vec::new();
    for name in NAMES {
        let client = Client::start(&server, &[&origin.target(), "-s", name]);
        client.url().await;
        clients.push(client);
    }
    let mut visitors = Vec::new();
    for name in NAMES.into_iter().cycle().take(16) {
        let mut visitor = Visitor::connect(server.visitors).await;
        visitor.send(format!("GET / HTTP/1.1\r\nHost: {name}.localhost\r\n\r\n")).await;
        visitor.head().await;
        visitors.push(visitor);
    }
    let mut process = server.process;
    process.signal("TERM");
    eventually("it drains", || async { process.stderr().iter().any(|line| line.contains("draining")) }).await;
    STOPPING.store(true, Ordering::Relaxed);
    for visitor in &mut visitors {
        assert_eq!(visitor.exactly(10).await, b"first-half");
    }
    assert_eq!(process.exit().await, 0);
}

#[tokio::test]
async fn a_visitor_is_told_when_the_services_of_all_shards_are_down() {
    let server = Server::with().env("WORKERS", "4").start().await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        let client = Client::start(&server, &["127.0.0.1:1", "-s", "web", "-k", "ann", "--pool"]);
        client.url().await;
        clients.push(client);
    }
    for _ in 0..8 {
        let answer = get(server.visitors, "web", "/").await;
        assert_eq!((answer.status, answer.field("tunnelto-error")), (502, vec!["tunnel_refused".to_owned()]));
        let got = Asker::connect(&server).await.ask(request_to("web", "GET", "/"), None).await;
        assert_eq!(got.response.headers()["tunnelto-error"], "tunnel_refused");
    }
}
