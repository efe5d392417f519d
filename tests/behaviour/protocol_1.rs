//! Protocol 1, byte for byte: a scripted client as the published one behaves, and a scripted server of old.

use bytes::Bytes;
use serde_json::json;
use tests::{
    client::Client,
    eventually::{eventually, soon},
    origin::Origin,
    server::Server,
    visitor::Visitor,
    wormhole::{ScriptedClient, ScriptedServer, guest_hello, published_hello},
};
use tokio::net::TcpListener;
use tunnelto_lib::{id::StreamId, packet::Packet};

async fn tunnel(server: &Server) -> ScriptedClient {
    ScriptedClient::connect(server, &published_hello("ann", Some("web"))).await.0
}

/// The next stream's Init, and its request head with what came behind it.
async fn request(client: &mut ScriptedClient) -> (StreamId, String) {
    let Some(Packet::Init { id, about }) = client.packet().await else { panic!("an Init comes first") };
    assert!(about.is_empty(), "protocol 1's Init is empty");
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match client.packet().await {
            Some(Packet::Data { id: other, bytes }) if other == id => head.extend(bytes),
            other => panic!("expected Data, got {other:?}"),
        }
    }
    (id, String::from_utf8(head).unwrap())
}

#[tokio::test]
async fn the_hello_and_the_first_ping() {
    let server = Server::start().await;
    let (mut keyed, answer) = ScriptedClient::connect(&server, &published_hello("abc", Some("web"))).await;
    assert_eq!(
        answer,
        json!({ "success": { "sub_domain": "web", "hostname": "web.localhost",
            "client_id": "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=" } })
    );
    assert_eq!(keyed.any_packet().await, Some(Packet::Ping { token: None }));
    let (mut guest, answer) = ScriptedClient::connect(&server, &guest_hello(None, None)).await;
    assert!(!answer["success"]["client_id"].as_str().unwrap().is_empty());
    let Some(Packet::Ping { token: Some(token) }) = guest.any_packet().await else {
        panic!("a token comes at once")
    };
    // It brings the same name back, even after a restart.
    let server = server.restart("TERM").await;
    let (_, again) = ScriptedClient::connect(&server, &guest_hello(None, Some(token.expose()))).await;
    assert_eq!(again["success"]["sub_domain"], answer["success"]["sub_domain"]);
}

#[tokio::test]
async fn one_stream_per_request_and_end_after_the_answer() {
    let server = Server::start().await;
    let mut client = tunnel(&server).await;
    let mut visitor = Visitor::connect(server.visitors).await;
    let mut last = None;
    for round in 0..3 {
        visitor.send(format!("GET /{round} HTTP/1.1\r\nHost: web.localhost\r\n\r\n")).await;
        let (id, head) = request(&mut client).await;
        assert_ne!(last.replace(id), Some(id), "ids are not reused");
        assert!(head.contains("Connection: close\r\n"), "{head}");
        client
            .send(Packet::Data {
                id,
                bytes: Bytes::from_static(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbo"),
            })
            .await;
        client.send(Packet::Data { id, bytes: Bytes::from_static(b"dy") }).await;
        assert_eq!(visitor.answer().await.text(), "body");
        assert_eq!(client.packet().await, Some(Packet::End { id }));
    }
}

#[tokio::test]
async fn a_refusal_comes_twice_and_counts_once() {
    let server = Server::start().await;
    let mut client = tunnel(&server).await;
    for _ in 0..2 {
        let mut visitor = Visitor::connect(server.visitors).await;
        visitor.send("GET / HTTP/1.1\r\nHost: web.localhost\r\n\r\n").await;
        let (id, _) = request(&mut client).await;
        for _ in 0..2 {
            client.send(Packet::Refused { id, about: Bytes::new() }).await;
        }
        let answer = visitor.answer().await;
        assert_eq!((answer.status, answer.text().as_str()), (502, "Tunnel says: connection refused."));
    }
}

#[tokio::test]
async fn nothing_more_is_sent_to_a_stream_whose_visitor_is_gone() {
    let server = Server::start().await;
    let mut client = tunnel(&server).await;
    let mut visitor = Visitor::connect(server.visitors).await;
    visitor.send("POST / HTTP/1.1\r\nHost: web.localhost\r\nContent-Length: 1000\r\n\r\nhalf").await;
    let (id, mut got) = request(&mut client).await;
    while !got.ends_with("half") {
        match client.packet().await {
            Some(Packet::Data { bytes, .. }) => got.push_str(std::str::from_utf8(&bytes).unwrap()),
            other => panic!("expected the body, got {other:?}"),
        }
    }
    drop(visitor);
    assert_eq!(client.packet().await, Some(Packet::End { id }));
    // What the local service still says is thrown away.
    client.send(Packet::Data { id, bytes: Bytes::from_static(b"HTTP/1.1 200 OK\r\n\r\n") }).await;
    let mut next = Visitor::connect(server.visitors).await;
    next.send("GET /next HTTP/1.1\r\nHost: web.localhost\r\n\r\n").await;
    let (other, head) = request(&mut client).await;
    assert!(other != id && head.starts_with("GET /next "), "{head}");
}

#[tokio::test]
async fn a_close_delimited_answer_ends_by_silence() {
    let server = Server::start().await;
    let mut client = tunnel(&server).await;
    let mut visitor = Visitor::connect(server.visitors).await;
    visitor.send("GET / HTTP/1.1\r\nHost: web.localhost\r\n\r\n").await;
    let (id, _) = request(&mut client).await;
    client.send(Packet::Data { id, bytes: Bytes::from_static(b"HTTP/1.1 200 OK\r\n\r\nall of it") }).await;
    assert_eq!(visitor.answer().await.text(), "all of it");
}

/// A visitor that reads nothing may not stall the others, nor fill the server's memory.
#[tokio::test]
async fn a_stalled_visitor_is_cut_and_the_others_go_on() {
    let server = Server::start().await;
    let mut client = tunnel(&server).await;
    let mut stalled = Visitor::connect(server.visitors).await;
    stalled.send("GET /flood HTTP/1.1\r\nHost: web.localhost\r\n\r\n").await;
    let (flood, _) = request(&mut client).await;
    let before = server.process.memory();
    client
        .send(Packet::Data {
            id: flood,
            bytes: Bytes::from_static(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n"),
        })
        .await;
    let block = Bytes::from(vec![7; 64 * 1024]);
    for _ in 0..(48 << 20) / block.len() {
        client.send(Packet::Data { id: flood, bytes: block.clone() }).await;
    }
    let mut visitor = Visitor::connect(server.visitors).await;
    visitor.send("GET /small HTTP/1.1\r\nHost: web.localhost\r\n\r\n").await;
    let small = loop {
        // The flood's End may come first.
        if let Some(Packet::Init { id, .. }) = client.packet().await {
            break id;
        }
    };
    client
        .send(Packet::Data {
            id: small,
            bytes: Bytes::from_static(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
        })
        .await;
    assert_eq!(visitor.answer().await.text(), "ok");
    let grown = server.process.peak_memory() - before;
    assert!(grown < 16 * 1024, "the server grew by {grown} KiB");
}

#[tokio::test]
async fn our_client_falls_back_to_protocol_1() {
    let origin = Origin::echo().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    let client = Client::towards(&url, &[&origin.target(), "-s", "web", "-k", "ann"]);
    let (mut server, hello) = ScriptedServer::accept(&listener).await;
    assert_eq!((&hello["sub_domain"], &hello["client_type"]["Auth"]["key"]), (&json!("web"), &json!("ann")));
    server
        .say(json!({ "success": { "sub_domain": "web", "hostname": "web.old.test", "client_id": "c" } }))
        .await;
    assert_eq!(client.url().await, "http://web.old.test");

    server.send(Packet::Ping { token: None }).await;
    assert_eq!(server.any_packet().await, Some(Packet::Ping { token: None }), "answered without a token");

    // Init does nothing; the first Data opens the stream.
    for round in 0..2 {
        let id = StreamId(u64::from_be_bytes(*b"ABCDEFGH") + round);
        server.send(Packet::Init { id, about: Bytes::new() }).await;
        let get = format!("GET /{round} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        server.send(Packet::Data { id, bytes: get.into() }).await;
        let mut answer = Vec::new();
        let wanted = format!("GET /{round} ");
        while !answer.ends_with(wanted.as_bytes()) {
            match server.packet().await {
                Some(Packet::Data { bytes, .. }) => answer.extend(bytes),
                other => panic!("only Data is known to protocol 1, got {other:?}"),
            }
        }
        server.send(Packet::End { id }).await;
    }
}

#[tokio::test]
async fn late_bytes_of_a_finished_stream_are_no_new_request() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    // Answers and hangs up, while the visitor goes on sending.
    let origin = Origin::start(|mut connection, _| async move {
        connection.answer("413 Content Too Large", b"enough").await;
        None
    })
    .await;
    let _client = Client::towards(&url, &[&origin.target()]);
    let (mut server, _) = ScriptedServer::accept(&listener).await;
    server
        .say(json!({ "success": { "sub_domain": "web", "hostname": "web.old.test", "client_id": "c" } }))
        .await;
    let mut answered = async |id: StreamId, request: &'static str| {
        server.send(Packet::Data { id, bytes: request.into() }).await;
        let mut answer = Vec::new();
        while !answer.ends_with(b"enough") {
            match server.packet().await {
                Some(Packet::Data { id: other, bytes }) if other == id => answer.extend(bytes),
                other => panic!("expected an answer on {id}, got {other:?}"),
            }
        }
    };
    answered(StreamId(7), "POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").await;
    // By the second answer the client has noticed the end of the first.
    answered(StreamId(8), "GET /other HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let late = Bytes::from_static(b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n");
    server.send(Packet::Data { id: StreamId(7), bytes: late }).await;
    server
        .send(Packet::Data { id: StreamId(9), bytes: "GET /last HTTP/1.1\r\nHost: x\r\n\r\n".into() })
        .await;
    eventually("the last request is there", || async {
        origin.requests().iter().any(|request| request.target() == "/last")
    })
    .await;
    let asked: Vec<_> = origin.requests().iter().map(|request| request.target().to_owned()).collect();
    assert_eq!(asked, ["/upload", "/other", "/last"]);
}

#[tokio::test]
async fn our_client_refuses_in_protocol_1_before_the_first_data_only() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    let origin = Origin::echo().await;
    let target = origin.target();
    drop(origin);
    let _client = Client::towards(&url, &[&target]);
    let (mut server, _) = ScriptedServer::accept(&listener).await;
    server
        .say(json!({ "success": { "sub_domain": "web", "hostname": "web.old.test", "client_id": "c" } }))
        .await;
    let id = StreamId(7);
    server.send(Packet::Data { id, bytes: Bytes::from_static(b"GET / HTTP/1.1\r\n\r\n") }).await;
    assert_eq!(server.packet().await, Some(Packet::Refused { id, about: Bytes::new() }));
}

#[tokio::test]
async fn refusals_of_protocol_1_are_final() {
    for (answer, code) in
        [("\"auth_failed\"", 3), ("\"sub_domain_in_use\"", 4), ("\"invalid_sub_domain\"", 4)]
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let mut client = Client::towards(&url, &["1"]);
        let (mut server, _) = ScriptedServer::accept(&listener).await;
        server.say(serde_json::from_str(answer).unwrap()).await;
        assert_eq!(client.process.exit().await, code, "{answer}");
        eventually("it says why", || async { client.process.stderr().len() == 1 }).await;
    }
}

#[tokio::test]
async fn a_server_that_closes_is_dialled_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    let _client = Client::towards(&url, &["1"]);
    for _ in 0..2 {
        let (mut server, _) = soon("a dial", ScriptedServer::accept(&listener)).await;
        server
            .say(json!({ "success": { "sub_domain": "web", "hostname": "web.old.test", "client_id": "c" } }))
            .await;
    }
}
