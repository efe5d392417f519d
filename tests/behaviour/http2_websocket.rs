//! WebSockets of visitors that speak HTTP/2 (RFC 8441).

use bytes::Bytes;
use h2::{RecvStream, SendStream, ext::Protocol};
use http::{Method, Request, Response};
use tests::{
    cluster::Cluster,
    eventually::{eventually, soon},
    http2::Asker,
    origin::Origin,
    server::Server,
    stack::Stack,
};

/// Echoes what comes after the switch, and says goodbye once the visitor has finished.
async fn echoing() -> Origin {
    Origin::start(|mut connection, request| async move {
        if request.target() != "/socket" {
            connection.answer("200 OK", b"no socket").await;
            return Some(connection);
        }
        let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                      Sec-WebSocket-Accept: x\r\nSec-WebSocket-Protocol: chat\r\n\r\nhello ";
        connection.write(switch.as_bytes()).await;
        loop {
            match connection.piece().await {
                piece if piece.is_empty() => break,
                piece => connection.write(&piece).await,
            }
        }
        connection.write(b" bye").await;
        None
    })
    .await
}

async fn connect(
    asker: &Asker,
    path: &str,
    protocol: &'static str,
) -> (Response<RecvStream>, SendStream<Bytes>) {
    let mut sender = asker.0.clone().ready().await.unwrap();
    eventually("the server says that it can", || {
        let can = sender.is_extended_connect_protocol_enabled();
        async move { can }
    })
    .await;
    let mut request = Request::builder()
        .method(Method::CONNECT)
        .uri(format!("https://web.localhost{path}"))
        .header("sec-websocket-version", "13")
        .header("sec-websocket-protocol", "chat")
        .body(())
        .unwrap();
    request.extensions_mut().insert(Protocol::from_static(protocol));
    let (answer, sending) = sender.send_request(request, false).unwrap();
    (soon("an answer", answer).await.unwrap(), sending)
}

async fn all(body: &mut RecvStream) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(data) = soon("more", body.data()).await {
        let data = data.unwrap();
        let _ = body.flow_control().release_capacity(data.len());
        all.extend_from_slice(&data);
    }
    all
}

async fn converse(asker: &Asker) {
    let (answer, mut sending) = connect(asker, "/socket", "websocket").await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["sec-websocket-protocol"], "chat");
    for hidden in ["connection", "upgrade", "sec-websocket-accept"] {
        assert!(!answer.headers().contains_key(hidden), "{hidden}");
    }
    let mut body = answer.into_body();
    let first = soon("what the service says first", body.data()).await.unwrap().unwrap();
    assert_eq!(first, "hello ");
    for word in ["one ", "two ", "three"] {
        sending.send_data(word.into(), false).unwrap();
    }
    sending.send_data(Bytes::new(), true).unwrap();
    assert_eq!(all(&mut body).await, b"one two three bye");
}

#[tokio::test]
async fn a_websocket_goes_both_ways_with_half_close() {
    // Some visitors are accepted on another thread than the tunnel's.
    let stack = Stack::on(Server::with().env("WORKERS", "2").start().await, echoing().await).await;
    for _ in 0..6 {
        converse(&Asker::connect(&stack.server).await).await;
    }
    let seen = &stack.origin.requests()[0];
    assert!(seen.head.starts_with("GET /socket HTTP/1.1"), "{}", seen.head);
    for (name, value) in
        [("upgrade", "websocket"), ("connection", "Upgrade"), ("sec-websocket-version", "13")]
    {
        assert_eq!(seen.field(name), Some(value));
    }
    assert_eq!(seen.field("sec-websocket-key").unwrap().len(), 24);
}

#[tokio::test]
async fn websockets_and_requests_share_a_connection_and_cross_instances() {
    let cluster = Cluster::start(2).await;
    let origin = echoing().await;
    let _client = cluster.client(0, &origin.target(), "web").await;
    for server in &cluster.servers {
        let asker = Asker::connect(server).await;
        let (answer, _kept) = connect(&asker, "/socket", "websocket").await;
        assert_eq!(answer.status(), 200);
        converse(&asker).await;
    }
}

#[tokio::test]
async fn what_is_no_websocket_is_said_to_be_none() {
    let stack = Stack::on(Server::start().await, echoing().await).await;
    let asker = Asker::connect(&stack.server).await;
    // A plain answer of 200 would mean that protocols are switched.
    let (answer, _) = connect(&asker, "/page", "websocket").await;
    assert_eq!(
        (answer.status().as_u16(), answer.headers()["tunnelto-error"].as_bytes()),
        (502, &b"proxying_failed"[..])
    );
    let (answer, _) = connect(&asker, "/socket", "connect-udp").await;
    assert_eq!(answer.status(), 400);
}

#[tokio::test]
async fn a_visitor_that_leaves_ends_the_services_side() {
    let (ended, mut seen) = tokio::sync::mpsc::channel(1);
    let origin = Origin::start(move |mut connection, _| {
        let ended = ended.clone();
        async move {
            let switch =
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
            connection.write(switch.as_bytes()).await;
            while !connection.piece().await.is_empty() {}
            let _ = ended.send(()).await;
            None
        }
    })
    .await;
    let stack = Stack::on(Server::start().await, origin).await;
    let asker = Asker::connect(&stack.server).await;
    let (answer, mut sending) = connect(&asker, "/", "websocket").await;
    assert_eq!(answer.status(), 200);
    sending.send_reset(h2::Reason::CANCEL);
    soon("the service hears of it", seen.recv()).await.unwrap();
}
