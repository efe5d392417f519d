//! Stopping: what is open finishes, nothing new is taken, a second signal ends it now.

use tests::{
    client::Client,
    eventually::{eventually, soon},
    origin::Origin,
    server::Server,
    stack::Stack,
    visitor::Visitor,
};
use tokio::{
    net::TcpListener,
    sync::Semaphore,
    time::{Duration, Instant, timeout},
};

fn is_draining(stack: &Stack) -> bool {
    stack.server.process.stderr().iter().any(|line| line.contains("draining"))
}

#[tokio::test]
async fn an_answer_under_way_is_finished() {
    static GO_ON: Semaphore = Semaphore::const_new(0);
    let origin = Origin::start(|mut connection, _| async move {
        connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf").await;
        GO_ON.acquire().await.unwrap().forget();
        connection.write(b"done").await;
        Some(connection)
    })
    .await;
    let mut stack = Stack::start(origin).await;
    let mut visitor = stack.visitor_with_a_head().await;
    stack.server.process.signal("TERM");
    eventually("it drains", || async { is_draining(&stack) }).await;
    let mut probe = Visitor::connect(stack.server.clients).await;
    probe.send("GET /health_check HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let answer = probe.answer().await;
    assert_eq!((answer.status, answer.text().as_str()), (503, "draining"));
    let mut late = Visitor::connect(stack.server.clients).await;
    late.send(
        "GET /wormhole HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    )
    .await;
    assert_eq!(late.answer().await.status, 503, "new clients go elsewhere");
    GO_ON.add_permits(1);
    assert_eq!(visitor.exactly(8).await, b"halfdone");
    assert_eq!(stack.server.process.exit().await, 0);
}

#[tokio::test]
async fn an_answer_that_begins_while_draining_says_close() {
    static GO_ON: Semaphore = Semaphore::const_new(0);
    let origin = Origin::start(|mut connection, _| async move {
        GO_ON.acquire().await.unwrap().forget();
        connection.answer("200 OK", b"late").await;
        Some(connection)
    })
    .await;
    let stack = Stack::start(origin).await;
    let mut first = stack.visitor().await;
    first.send("GET /1 HTTP/1.1\r\nHost: web.localhost\r\n\r\n").await;
    eventually("the origin is asked", || async { stack.origin.requests().len() == 1 }).await;
    stack.server.process.signal("TERM");
    eventually("it drains", || async { is_draining(&stack) }).await;
    let mut second = stack.visitor().await;
    second.send("GET /2 HTTP/1.1\r\nHost: web.localhost\r\n\r\n").await;
    eventually("the origin is asked again", || async { stack.origin.requests().len() == 2 }).await;
    GO_ON.add_permits(2);
    let answer = second.answer().await;
    assert_eq!((answer.text().as_str(), answer.field("connection")), ("late", vec!["close".to_owned()]));
    assert_eq!(first.answer().await.text(), "late");
}

#[tokio::test]
async fn a_second_signal_ends_it_now() {
    let origin = Origin::start(|mut connection, _| async move {
        connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf").await;
        connection.piece().await;
        None
    })
    .await;
    let mut stack = Stack::start(origin).await;
    let _visitor = stack.visitor_with_a_head().await;
    stack.server.process.signal("TERM");
    eventually("it drains", || async { is_draining(&stack) }).await;
    assert!(!stack.server.process.has_exited(), "an answer is under way");
    stack.server.process.signal("TERM");
    assert_eq!(stack.server.process.exit().await, 0);
}

#[tokio::test]
async fn a_client_waits_for_a_server_that_is_not_there_yet() {
    let origin = Origin::echo().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let client = Client::towards(&format!("ws://{address}"), &[&origin.target(), "-s", "web"]);
    eventually("it says so", || async {
        client.process.stderr().iter().any(|line| line.contains("next try"))
    })
    .await;
    let _server = Server::with().env("CTRL_PORT", address.port().to_string()).start().await;
    soon("the client connects", client.url()).await;
}

#[tokio::test]
async fn a_client_that_is_stopped_finishes_what_is_under_way() {
    let origin = Origin::start(|mut connection, _| async move {
        connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n").await;
        for _ in 0..50 {
            connection.write(b"x").await;
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        Some(connection)
    })
    .await;
    let mut stack = Stack::start(origin).await;
    let mut visitor = stack.visitor_with_a_head().await;
    stack.client.process.signal("TERM");
    assert_eq!(visitor.exactly(50).await, [b'x'; 50]);
    assert_eq!(stack.client.process.exit().await, 0);
}

#[tokio::test]
async fn a_client_that_has_long_been_quiet_does_not_wait_for_its_patience_to_end() {
    let mut stack = Stack::start(Origin::echo().await).await;
    let idle_since = Instant::now();
    eventually("nothing moves", || async { idle_since.elapsed() > Duration::from_millis(1500) }).await;
    stack.client.process.signal("INT");
    // Half of its patience, after which it would end whatever it waits for.
    let ended = timeout(Duration::from_secs(10), stack.client.process.exit()).await;
    assert_eq!(ended.expect("it says goodbye and ends"), 0);
}

#[tokio::test]
async fn a_clients_second_signal_ends_it_now() {
    let origin = Origin::start(|mut connection, _| async move {
        while tokio::io::AsyncWriteExt::write_all(&mut connection.socket, b"HTTP/1.1 200 OK\r\n\r\nx")
            .await
            .is_ok()
        {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        None
    })
    .await;
    let mut stack = Stack::start(origin).await;
    let _visitor = stack.visitor_with_a_head().await;
    stack.client.process.signal("INT");
    stack.client.process.signal("INT");
    assert_eq!(stack.client.process.exit().await, 0);
}
