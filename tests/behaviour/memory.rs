//! Memory and descriptors stay bounded, whoever stalls or leaves.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use tests::{
    eventually::{eventually, soon},
    origin::Origin,
    server::Server,
    stack::Stack,
    visitor::{Visitor, get},
    wormhole::{ScriptedClient, hello_2, published_hello},
};
use tokio::{io::AsyncWriteExt, sync::Semaphore};
use tunnelto_lib::packet::Packet;

/// What an idle tunnel may cost the server, in KiB.
const IDLE_TUNNEL: usize = 16;

/// What a stalled exchange may cost each process, in KiB.
const STALLED: usize = 2048;

#[tokio::test]
async fn a_thousand_idle_tunnels() {
    let server = Server::start().await;
    // Fewer where this process may not hold as many sockets.
    let most = rlimit::increase_nofile_limit(8192).unwrap().min(8192) as usize - 256;
    let (mut clients, mut before) = (Vec::new(), 0);
    // The first few make what all share.
    for index in 0..1020.min(most) {
        if index == 20 {
            before = server.process.memory();
        }
        let hello = hello_2(
            published_hello("ann", Some(&format!("web{index}"))),
            "11111111-2222-3333-4444-555555555555",
        );
        let (client, answer) = ScriptedClient::connect(&server, &hello).await;
        assert_eq!(answer["success"]["sub_domain"], json!(format!("web{index}")));
        clients.push(client);
    }
    let each = (server.process.memory() - before) / (clients.len() - 20);
    assert!(each <= IDLE_TUNNEL, "{each} KiB per idle tunnel");
}

#[tokio::test]
async fn a_visitor_that_stalls_in_a_big_answer() {
    let origin = Origin::start(|mut connection, request| async move {
        if request.target() == "/small" {
            connection.answer("200 OK", b"ok").await;
            return Some(connection);
        }
        connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n").await;
        let block = vec![7; 1 << 20];
        while connection.socket.write_all(&block).await.is_ok() {}
        None
    })
    .await;
    let stack = Stack::start(origin).await;
    get(stack.door(), "web", "/small").await;
    let before = (stack.server.process.memory(), stack.client.process.memory());
    let mut stalled = stack.visitor().await;
    stalled.send("GET /big HTTP/1.1\r\nHost: web.localhost\r\n\r\n").await;
    stalled.head().await;
    stalled.exactly(1 << 20).await;
    // The others go on, and by the time they are done everything that can fill has filled.
    for _ in 0..200 {
        assert_eq!(get(stack.door(), "web", "/small").await.text(), "ok");
    }
    let server = stack.server.process.peak_memory() - before.0;
    let client = stack.client.process.peak_memory() - before.1;
    assert!(server <= STALLED && client <= STALLED, "server grew by {server} KiB, client by {client} KiB");
}

#[tokio::test]
async fn a_local_service_that_stalls_in_a_big_upload() {
    static STALLED_SERVICE: Semaphore = Semaphore::const_new(0);
    let origin = Origin::start(|mut connection, request| async move {
        if request.field("x-raw").is_some() {
            connection.piece().await;
            let _hold = STALLED_SERVICE.acquire().await;
            return None;
        }
        connection.answer("200 OK", b"ok").await;
        Some(connection)
    })
    .await;
    let stack = Stack::start(origin).await;
    get(stack.door(), "web", "/small").await;
    let before = (stack.server.process.memory(), stack.client.process.memory());
    let mut uploader = stack.visitor().await;
    uploader
        .send("PUT / HTTP/1.1\r\nHost: web.localhost\r\nX-Raw: 1\r\nContent-Length: 1073741824\r\n\r\n")
        .await;
    let block = Bytes::from(vec![7; 1 << 20]);
    let push = tokio::spawn(async move { while uploader.socket.write_all(&block).await.is_ok() {} });
    for _ in 0..200 {
        assert_eq!(get(stack.door(), "web", "/small").await.text(), "ok");
    }
    let server = stack.server.process.peak_memory() - before.0;
    let client = stack.client.process.peak_memory() - before.1;
    push.abort();
    STALLED_SERVICE.add_permits(10);
    assert!(server <= STALLED && client <= STALLED, "server grew by {server} KiB, client by {client} KiB");
}

#[tokio::test]
async fn nothing_is_left_of_visitors_that_came_and_went() {
    let stack = Stack::start(Origin::echo().await).await;
    for _ in 0..20 {
        get(stack.door(), "web", "/").await;
    }
    let before = (stack.server.process.descriptors(), stack.client.process.descriptors());
    for round in 0..300 {
        let mut visitor = stack.visitor().await;
        match round % 3 {
            0 => assert_eq!(visitor.get("web", "/").await.status, 200),
            1 => visitor.send("GET / HTTP/1.1\r\nHost: web.loc").await,
            _ => {
                visitor.send("POST / HTTP/1.1\r\nHost: web.localhost\r\nContent-Length: 10\r\n\r\nhalf").await
            }
        }
    }
    eventually("all descriptors are given back", || async {
        let now = (stack.server.process.descriptors(), stack.client.process.descriptors());
        now.0 <= before.0 && now.1 <= before.1
    })
    .await;
}

#[tokio::test]
async fn a_flood_of_connections_beyond_the_descriptors_is_survived() {
    let server = Server::with().limit_descriptors(128).start().await;
    let stack = Stack::on(server, Origin::echo().await).await;
    let mut flood = Vec::new();
    for _ in 0..400 {
        flood.push(soon("the system takes the connection", Visitor::connect(stack.door())).await);
    }
    drop(flood);
    assert_eq!(get(stack.door(), "web", "/").await.status, 200);
    let complaints =
        stack.server.process.stderr().iter().filter(|line| line.contains("cannot accept")).count();
    assert_eq!(complaints, 1, "it complains once, not a thousand times");
}

#[tokio::test]
async fn a_head_without_end_on_the_clients_door_is_cut_off() {
    let server = Server::start().await;
    let mut visitor = Visitor::connect(server.clients).await;
    visitor.send("GET /wormhole HTTP/1.1\r\nHost: x\r\nX-Long: ").await;
    let block = vec![b'x'; 64 * 1024];
    let mut sent = 0;
    while sent < 64 << 20 && soon("it is cut off", visitor.socket.write_all(&block)).await.is_ok() {
        sent += block.len();
    }
    assert!(sent < 16 << 20, "{sent} bytes were taken");
    let (_client, _) = ScriptedClient::connect(&server, &published_hello("ann", None)).await;
}

#[tokio::test]
async fn an_unread_client_costs_no_more_than_its_window() {
    let server = Server::start().await;
    let hello = hello_2(published_hello("ann", Some("web")), "11111111-2222-3333-4444-555555555555");
    let (mut client, _) = ScriptedClient::connect(&server, &hello).await;
    let before = server.process.memory();
    let mut uploader = Visitor::connect(server.visitors).await;
    uploader.send("PUT / HTTP/1.1\r\nHost: web.localhost\r\nContent-Length: 1073741824\r\n\r\n").await;
    let block = Arc::new(vec![7; 1 << 20]);
    let push = tokio::spawn(async move { while uploader.socket.write_all(&block).await.is_ok() {} });
    let mut got = 0;
    while got < 262_144 {
        if let Some(Packet::Data { bytes, .. }) = client.packet().await {
            got += bytes.len();
        }
    }
    let grown = server.process.peak_memory() - before;
    push.abort();
    assert!(grown <= STALLED, "the server grew by {grown} KiB");
}
