//! The published client, `cargo install tunnelto --version 0.1.19`, works unchanged.

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use tests::{
    eventually::{eventually, soon},
    origin::Origin,
    published::Published,
    server::Server,
    visitor::{Visitor, get},
};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_tungstenite::{accept_async, client_async, tungstenite::Message};

async fn answers(server: &Server, name: &str) {
    eventually("it serves", || async { get(server.visitors, name, "/").await.status == 200 }).await;
}

/// The name that the server's log says it gave last.
fn last_name(server: &Server) -> Option<String> {
    let line = server.process.stderr().into_iter().rev().find(|line| line.contains("tunnel open"))?;
    Some(line.split("name=").nth(1)?.split(' ').next()?.to_owned())
}

#[tokio::test]
async fn get_post_and_a_hundred_at_once() {
    let origin = Origin::echo().await;
    let server = Server::start().await;
    let Some(_client) = Published::start(&server, origin.address.port(), &["-k", "ann", "-s", "web"]) else {
        return;
    };
    answers(&server, "web").await;
    let door = server.visitors;
    let mut visits = JoinSet::new();
    for visit in 0..100 {
        visits.spawn(async move {
            let body = vec![b'x'; visit * 1000];
            let mut visitor = Visitor::connect(door).await;
            visitor
                .send(format!(
                    "POST /{visit} HTTP/1.1\r\nHost: web.localhost\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                ))
                .await;
            visitor.send(&body).await;
            assert!(visitor.answer().await.body == [format!("POST /{visit} ").into_bytes(), body].concat());
            assert_eq!(visitor.get("web", "/again").await.text(), "GET /again ");
        });
    }
    while let Some(visit) = visits.join_next().await {
        visit.unwrap();
    }
}

#[tokio::test]
async fn a_guest_without_a_key() {
    let origin = Origin::echo().await;
    let server = Server::start().await;
    let Some(_client) = Published::start(&server, origin.address.port(), &["-s", "web"]) else { return };
    answers(&server, "web").await;
}

#[tokio::test]
async fn websocket_echo() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let Ok(mut socket) = accept_async(socket).await else { return };
                while let Some(Ok(message)) = socket.next().await {
                    if message.is_binary() && socket.send(message).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    let server = Server::start().await;
    let Some(_client) = Published::start(&server, port, &["-k", "ann", "-s", "web"]) else { return };
    eventually("the name is there", || async { last_name(&server).is_some() }).await;
    let visitor = Visitor::connect(server.visitors).await;
    let (mut socket, _) =
        soon("the handshake", client_async("ws://web.localhost/ws", visitor.socket)).await.unwrap();
    for size in [1, 1000, 100_000] {
        let sent = Message::Binary(Bytes::from(vec![7; size]));
        socket.send(sent.clone()).await.unwrap();
        assert!(soon("the echo", socket.next()).await.unwrap().unwrap() == sent, "{size} bytes");
    }
}

#[tokio::test]
async fn nothing_listens_locally() {
    let origin = Origin::echo().await;
    let port = origin.address.port();
    let server = Server::start().await;
    let Some(mut client) = Published::start(&server, port, &["-k", "ann", "-s", "web"]) else { return };
    answers(&server, "web").await;
    drop(origin);
    assert_eq!(get(server.visitors, "web", "/").await.text(), "Tunnel says: connection refused.");
    assert!(client.lives());
}

#[tokio::test]
async fn the_same_name_after_a_restart() {
    for arguments in [&["-k", "ann", "-s", "web"][..], &["-k", "ann"], &["-s", "web"], &[]] {
        let origin = Origin::echo().await;
        let server = Server::start().await;
        let Some(mut client) = Published::start(&server, origin.address.port(), arguments) else { return };
        eventually("it has a name", || async { last_name(&server).is_some() }).await;
        let name = last_name(&server).unwrap();
        answers(&server, &name).await;
        let server = server.restart("TERM").await;
        answers(&server, &name).await;
        assert!(client.lives(), "{arguments:?}");
    }
}

/// A busy or draining server answers the upgrade with 503: the client has to come back, never to exit.
#[tokio::test]
async fn a_draining_server_is_tried_again() {
    let origin = Origin::echo().await;
    let door = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = door.local_addr().unwrap();
    let stand_in = Server { clients: address, ..Server::start().await };
    let Some(mut client) = Published::start(&stand_in, origin.address.port(), &["-k", "ann", "-s", "web"])
    else {
        return;
    };
    for _ in 0..2 {
        let (mut socket, _) = soon("it dials", door.accept()).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(
            &mut socket,
            b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n",
        )
        .await
        .unwrap();
    }
    assert!(client.lives());
    drop(door);
    let server = Server::with().env("CTRL_PORT", address.port().to_string()).start().await;
    answers(&server, "web").await;
}
