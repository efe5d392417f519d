//! After 101 bytes pass as they are, both ways, and each side may finish first.

use tests::{origin::Origin, stack::Stack};
use tokio::io::AsyncWriteExt;

const UPGRADE: &str = "GET / HTTP/1.1\r\nHost: web.localhost\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n";

#[tokio::test]
async fn bytes_sent_ahead_are_not_lost() {
    let origin = Origin::start(|mut connection, _| async move {
        connection
            .write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\nfirst-of-service ")
            .await;
        let mut got = Vec::new();
        while got.len() < b"first-of-visitor".len() {
            got.extend(connection.piece().await);
        }
        connection.write(&got).await;
        None
    })
    .await;
    let stack = Stack::start(origin).await;
    let mut visitor = stack.visitor().await;
    visitor.send(format!("{UPGRADE}first-of-visitor")).await;
    let head = visitor.head().await;
    assert!(head.contains("Upgrade: raw\r\n") && head.contains("Connection: Upgrade\r\n"), "{head}");
    assert_eq!(visitor.exactly(33).await, b"first-of-service first-of-visitor");
}

#[tokio::test]
async fn half_close_is_a_state_and_not_an_end() {
    let origin = Origin::start(|mut connection, _| async move {
        connection.upgrade_and_count().await;
        None
    })
    .await;
    let stack = Stack::start(origin).await;
    let mut visitor = stack.visitor().await;
    visitor.send(UPGRADE).await;
    visitor.head().await;
    visitor.send(vec![7; 3_000_000]).await;
    visitor.socket.shutdown().await.unwrap();
    assert_eq!(visitor.rest().await, b"got 3000000");
}
