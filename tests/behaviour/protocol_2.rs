//! What protocol 2 adds: credit, reuse, Reset `unused`, half-close, liveness.

use bytes::Bytes;
use serde_json::{Value, json};
use tests::{
    client::Client,
    origin::Origin,
    server::Server,
    visitor::Visitor,
    wormhole::{ScriptedClient, ScriptedServer, guest_hello, hello_2},
};
use tokio::net::TcpListener;
use tunnelto_lib::{
    id::StreamId,
    packet::{MAX_DATA, Packet, ResetCode},
};

const SESSION: &str = "11111111-2222-3333-4444-555555555555";
const WINDOW: usize = 256 * 1024;

async fn tunnel(server: &Server) -> (ScriptedClient, Value) {
    ScriptedClient::connect(server, &hello_2(guest_hello(Some("web"), None), SESSION)).await
}

fn success() -> Value {
    json!({ "success": { "sub_domain": "web", "hostname": "web.test", "client_id": "c", "protocol": 2, "window": WINDOW,
        "max_streams": 0, "capabilities": [], "urls": ["http://web.test"], "instance": "i", "connections": 1,
        "reconnect_token": "t" } })
}

/// Our client connected to a scripted server.
async fn scripted_server(target: &str) -> (Client, ScriptedServer) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::towards(&format!("ws://{}", listener.local_addr().unwrap()), &[target]);
    let (mut server, _) = ScriptedServer::accept(&listener).await;
    server.say(success()).await;
    (client, server)
}

fn init(id: StreamId) -> Packet {
    let about = json!({ "peer": "192.0.2.1:7", "kind": "http", "host": "web.test", "tls": false });
    Packet::Init { id, about: about.to_string().into() }
}

async fn opened(client: &mut ScriptedClient) -> StreamId {
    let Some(Packet::Init { id, .. }) = client.packet().await else { panic!("an Init comes first") };
    id
}

async fn data(client: &mut ScriptedClient, id: StreamId) -> Bytes {
    match client.packet().await {
        Some(Packet::Data { id: other, bytes }) if other == id => bytes,
        other => panic!("expected Data on {id}, got {other:?}"),
    }
}

#[tokio::test]
async fn the_success_says_what_was_negotiated() {
    let server = Server::start().await;
    let (_, answer) = tunnel(&server).await;
    let success = &answer["success"];
    assert_eq!(
        (&success["protocol"], &success["window"], &success["connections"]),
        (&json!(2), &json!(WINDOW), &json!(1))
    );
    let url = format!("http://web.localhost:{}", server.visitors.port());
    assert_eq!(success["urls"], json!([url]));
    assert!(success["reconnect_token"].is_string() && success["instance"].is_string());
}

#[tokio::test]
async fn init_names_the_visitor_and_a_stream_serves_again() {
    let server = Server::start().await;
    let (mut client, _) = tunnel(&server).await;
    let mut visitor = Visitor::connect_from("127.0.0.7", server.visitors).await;
    visitor.send("GET /1 HTTP/1.1\r\nHost: web.localhost\r\n\r\n").await;
    let Some(Packet::Init { id, about }) = client.packet().await else { panic!("an Init comes first") };
    let about: Value = serde_json::from_slice(&about).unwrap();
    assert!(about["peer"].as_str().unwrap().starts_with("127.0.0.7:"), "{about}");
    assert_eq!(
        (&about["kind"], &about["host"], &about["tls"]),
        (&json!("http"), &json!("web.localhost"), &json!(false))
    );
    for round in 1..4 {
        let head = data(&mut client, id).await;
        assert!(!String::from_utf8_lossy(&head).contains("onnection"), "{head:?}");
        client
            .send(Packet::Data {
                id,
                bytes: Bytes::from_static(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
            })
            .await;
        visitor.answer().await;
        visitor.send(format!("GET /{round} HTTP/1.1\r\nHost: web.localhost\r\n\r\n")).await;
    }
}

#[tokio::test]
async fn any_request_is_sent_again_after_reset_unused() {
    let server = Server::start().await;
    let (mut client, _) = tunnel(&server).await;
    let mut visitor = Visitor::connect(server.visitors).await;
    let mut stream = None;
    // Once the service has shown that it keeps its connection, any request goes onto it.
    for _ in 0..2 {
        visitor.send("GET / HTTP/1.1\r\nHost: web.localhost\r\n\r\n").await;
        let id = match stream {
            Some(id) => id,
            None => opened(&mut client).await,
        };
        data(&mut client, id).await;
        let answer = Bytes::from_static(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        client.send(Packet::Data { id, bytes: answer }).await;
        visitor.answer().await;
        stream = Some(id);
    }
    let first = stream.unwrap();
    visitor.send("POST / HTTP/1.1\r\nHost: web.localhost\r\nContent-Length: 4\r\n\r\nbody").await;
    let mut seen = data(&mut client, first).await.to_vec();
    while !seen.ends_with(b"body") {
        seen.extend(data(&mut client, first).await);
    }
    client.send(Packet::Reset { id: first, code: ResetCode::Unused }).await;
    let second = opened(&mut client).await;
    let mut again = Vec::new();
    while !again.ends_with(b"body") {
        again.extend(data(&mut client, second).await);
    }
    assert_eq!(seen, again, "the same bytes, body and all");
    client
        .send(Packet::Data {
            id: second,
            bytes: Bytes::from_static(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
        })
        .await;
    assert_eq!(visitor.answer().await.text(), "ok");
}

#[tokio::test]
async fn the_server_sends_no_more_than_it_was_granted() {
    let server = Server::start().await;
    let (mut client, _) = tunnel(&server).await;
    let mut visitor = Visitor::connect(server.visitors).await;
    let body = vec![7; 2 * WINDOW];
    visitor
        .send(format!("PUT / HTTP/1.1\r\nHost: web.localhost\r\nContent-Length: {}\r\n\r\n", body.len()))
        .await;
    let sending = tokio::spawn(async move {
        visitor.send(body).await;
        visitor
    });
    let id = opened(&mut client).await;
    let mut got = 0;
    while got < WINDOW {
        let bytes = data(&mut client, id).await;
        assert!(bytes.len() <= MAX_DATA);
        got += bytes.len();
    }
    assert_eq!(got, WINDOW, "exactly the window");
    client.send(Packet::Window { id, grant: 1000 }).await;
    assert_eq!(data(&mut client, id).await.len(), 1000);
    client.send(Packet::Window { id, grant: 10_000_000 }).await;
    client
        .send(Packet::Data { id, bytes: Bytes::from_static(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") })
        .await;
    assert_eq!(sending.await.unwrap().answer().await.status, 200);
}

#[tokio::test]
async fn more_than_was_granted_is_a_reset_of_that_stream_only() {
    let server = Server::start().await;
    let (mut client, _) = tunnel(&server).await;
    let mut greedy = Visitor::connect(server.visitors).await;
    greedy.send("GET / HTTP/1.1\r\nHost: web.localhost\r\n\r\n").await;
    let id = opened(&mut client).await;
    data(&mut client, id).await;
    let head = Bytes::from_static(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n");
    client.send(Packet::Data { id, bytes: head }).await;
    let block = Bytes::from(vec![7; MAX_DATA]);
    // The visitor does not read: its socket's buffers take some megabytes, and each window of them is granted.
    let reset = async {
        loop {
            client.send(Packet::Data { id, bytes: block.clone() }).await;
            client.send(Packet::Data { id, bytes: block.clone() }).await;
            match client.packet_now().await {
                Some(Packet::Reset { id: other, code }) if other == id => return code,
                _ => {}
            }
        }
    };
    assert_eq!(tests::eventually::soon("the Reset", reset).await, ResetCode::FlowControl);
    let mut other = Visitor::connect(server.visitors).await;
    other.send("GET /other HTTP/1.1\r\nHost: web.localhost\r\n\r\n").await;
    loop {
        if let Some(Packet::Init { .. }) = client.packet().await {
            break;
        }
    }
}

#[tokio::test]
async fn our_client_grants_what_it_has_written_onward() {
    let origin = Origin::echo().await;
    let (_client, mut server) = scripted_server(&origin.target()).await;
    let id = StreamId(1);
    server.send(init(id)).await;
    let head = format!("PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", 2 * WINDOW);
    let mut left = WINDOW - head.len();
    server.send(Packet::Data { id, bytes: head.into() }).await;
    let mut total = 0;
    while total < 2 * WINDOW {
        if left == 0 {
            match server.packet().await {
                Some(Packet::Window { grant, .. }) => left += grant as usize,
                other => panic!("expected a Window, got {other:?}"),
            }
        }
        let size = left.min(MAX_DATA).min(2 * WINDOW - total);
        server.send(Packet::Data { id, bytes: vec![7; size].into() }).await;
        left -= size;
        total += size;
    }
    loop {
        match server.packet().await {
            Some(Packet::Data { bytes, .. }) => {
                assert!(bytes.starts_with(b"HTTP/1.1 200 OK"));
                break;
            }
            Some(Packet::Window { .. }) => {}
            other => panic!("expected the answer, got {other:?}"),
        }
    }
}

#[tokio::test]
async fn our_client_says_unused_of_a_local_connection_that_has_ended() {
    let origin = Origin::start(|mut connection, _| async move {
        connection.answer("200 OK", b"bye").await;
        None
    })
    .await;
    let (_client, mut server) = scripted_server(&origin.target()).await;
    let id = StreamId(1);
    let get = Bytes::from_static(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    server.send(init(id)).await;
    server.send(Packet::Data { id, bytes: get.clone() }).await;
    while server.packet().await != Some(Packet::End { id }) {}
    server.send(Packet::Data { id, bytes: get }).await;
    assert_eq!(server.packet().await, Some(Packet::Reset { id, code: ResetCode::Unused }));
    assert_eq!(origin.requests().len(), 1);
}

#[tokio::test]
async fn a_slow_dial_stalls_nobody() {
    // A port whose backlog is full: connecting takes until the client's own limit.
    let busy = socket_that_never_accepts();
    let origin = Origin::echo().await;
    let (_slow, mut slow) = scripted_server(&busy.target).await;
    slow.send(init(StreamId(1))).await;
    slow.send(Packet::Data { id: StreamId(1), bytes: Bytes::from_static(b"GET / HTTP/1.1\r\n\r\n") }).await;
    slow.send(Packet::Ping { token: None }).await;
    assert_eq!(slow.any_packet().await, Some(Packet::Ping { token: None }), "the reader goes on");
    match slow.packet().await {
        Some(Packet::Refused { about, .. }) => {
            let about: Value = serde_json::from_slice(&about).unwrap();
            assert_eq!(about["code"], "dial_timeout");
        }
        other => panic!("expected Refused, got {other:?}"),
    }
    drop(origin);
}

struct Busy {
    target: String,
    _held: Vec<std::net::TcpStream>,
    _listener: std::net::TcpListener,
}

fn socket_that_never_accepts() -> Busy {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut held = Vec::new();
    let limit = std::time::Duration::from_millis(200);
    // Connecting works as long as the backlog has room.
    while let Ok(socket) = std::net::TcpStream::connect_timeout(&address, limit) {
        held.push(socket);
        assert!(held.len() < 100_000, "the backlog has no end");
    }
    Busy { target: address.to_string(), _held: held, _listener: listener }
}

#[tokio::test]
async fn terminate_ends_the_client_for_good_or_for_a_while() {
    let (mut client, mut server) = scripted_server("1").await;
    let about = json!({ "code": "revoked", "message": "the key was revoked", "retry_after": null });
    server.send(Packet::Terminate { about: about.to_string().into() }).await;
    assert_eq!(client.process.exit().await, 3);
    assert!(client.process.stderr().iter().any(|line| line.contains("the key was revoked")));
}

#[tokio::test]
async fn terminate_may_say_when_to_come_back() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let _client = Client::towards(&format!("ws://{}", listener.local_addr().unwrap()), &["1"]);
    let (mut server, _) = ScriptedServer::accept(&listener).await;
    server.say(success()).await;
    let about = json!({ "code": "moved", "message": "come back", "retry_after": 1 });
    server.send(Packet::Terminate { about: about.to_string().into() }).await;
    ScriptedServer::accept(&listener).await;
}

#[tokio::test]
async fn a_pings_token_is_in_the_next_hello() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let _client = Client::towards(&format!("ws://{}", listener.local_addr().unwrap()), &["1"]);
    let (mut server, first) = ScriptedServer::accept(&listener).await;
    server.say(success()).await;
    server.send(Packet::Ping { token: Some(tunnelto_lib::token::Secret::new("fresh")) }).await;
    assert_eq!(server.any_packet().await, Some(Packet::Ping { token: None }));
    drop(server);
    let (_, second) = ScriptedServer::accept(&listener).await;
    assert_eq!((&first["reconnect_token"], &second["reconnect_token"]), (&Value::Null, &json!("fresh")));
    assert_eq!((&second["session"], &second["sub_domain"]), (&first["session"], &json!("web")));
}

#[tokio::test]
async fn go_away_is_make_before_break() {
    let origin = Origin::echo().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let _client = Client::towards(&format!("ws://{}", listener.local_addr().unwrap()), &[&origin.target()]);
    let (mut old, _) = ScriptedServer::accept(&listener).await;
    old.say(success()).await;
    let id = StreamId(1);
    old.send(init(id)).await;
    old.send(Packet::Data {
        id,
        bytes: Bytes::from_static(b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbo"),
    })
    .await;
    old.send(Packet::GoAway {
        about: Bytes::from_static(br#"{"reason":"stop","reconnect_within_ms":20000}"#),
    })
    .await;
    let (mut new, _) = ScriptedServer::accept(&listener).await;
    new.say(success()).await;
    // What was open goes on where it was.
    old.send(Packet::Data { id, bytes: Bytes::from_static(b"dy") }).await;
    let mut answer = Vec::new();
    while !answer.ends_with(b"PUT / body") {
        match old.packet().await {
            Some(Packet::Data { bytes, .. }) => answer.extend(bytes),
            other => panic!("expected the answer, got {other:?} after {answer:?}"),
        }
    }
    old.send(Packet::End { id }).await;
    while let Some(packet) = old.packet().await {
        assert!(
            matches!(packet, Packet::End { .. } | Packet::Window { .. } | Packet::Reset { .. }),
            "{packet:?}"
        );
    }
    new.send(init(id)).await;
    new.send(Packet::Data { id, bytes: Bytes::from_static(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") }).await;
    assert!(matches!(new.packet().await, Some(Packet::Data { .. })));
}
