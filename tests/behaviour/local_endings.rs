//! However the local service ends its connection: what it has answered arrives whole, what it was asked it is asked once.

use std::sync::atomic::{AtomicUsize, Ordering};

use tests::{
    origin::{Connection, Origin},
    stack::Stack,
    visitor::get,
};
use tokio::io::AsyncWriteExt;

/// Closes with a reset instead of an end.
fn break_off(connection: Connection) {
    connection.socket.set_zero_linger().unwrap();
}

#[tokio::test]
async fn an_answer_before_a_reset_arrives_and_nothing_is_asked_twice() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let origin = Origin::start(|mut connection, _| async move {
        ASKED.fetch_add(1, Ordering::Relaxed);
        connection.answer("200 OK", b"answered").await;
        break_off(connection);
        None
    })
    .await;
    let stack = Stack::start(origin).await;
    let mut visitor = stack.visitor().await;
    let mut answered = 0;
    for _ in 0..100 {
        visitor.send("POST / HTTP/1.1\r\nHost: web.localhost\r\nContent-Length: 4\r\n\r\nbody").await;
        // A reset takes what the system had not delivered yet with it, which is 502; but it is never asked again.
        answered += usize::from(visitor.answer().await.status == 200);
    }
    assert_eq!(ASKED.load(Ordering::Relaxed), 100);
    assert!(answered > 0);
}

#[tokio::test]
async fn an_early_refusal_arrives_whole_every_time() {
    let origin = Origin::start(|mut connection, _| async move {
        connection.piece().await;
        connection
            .write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 7\r\nConnection: close\r\n\r\ntoo big")
            .await;
        connection.socket.shutdown().await.unwrap();
        while !connection.piece().await.is_empty() {}
        None
    })
    .await;
    let stack = Stack::start(origin).await;
    for _ in 0..40 {
        let mut visitor = stack.visitor().await;
        visitor
            .send("POST / HTTP/1.1\r\nHost: web.localhost\r\nX-Raw: 1\r\nContent-Length: 4000000\r\n\r\n")
            .await;
        visitor.send(vec![7; 300_000]).await;
        let answer = visitor.answer().await;
        assert_eq!((answer.status, answer.text().as_str()), (413, "too big"));
    }
}

#[tokio::test]
async fn an_interim_answer_counts_as_one() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let origin = Origin::start(|mut connection, request| async move {
        if request.target() == "/warm" {
            connection.answer("200 OK", b"").await;
            return Some(connection);
        }
        ASKED.fetch_add(1, Ordering::Relaxed);
        connection.write(b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n").await;
        connection.piece().await;
        None
    })
    .await;
    let stack = Stack::start(origin).await;
    get(stack.door(), "web", "/warm").await;
    get(stack.door(), "web", "/warm").await;
    let mut visitor = stack.visitor().await;
    visitor.send("POST / HTTP/1.1\r\nHost: web.localhost\r\nContent-Length: 1\r\n\r\nx").await;
    assert!(visitor.head().await.starts_with("HTTP/1.1 103 "));
    stack.client.process.signal("INT");
    assert_eq!(visitor.answer().await.status, 502);
    assert_eq!(ASKED.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_service_that_finishes_first_still_hears_the_visitor() {
    let origin = Origin::start(|mut connection, _| async move {
        connection
            .write(
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\nall of mine",
            )
            .await;
        connection.socket.shutdown().await.unwrap();
        let mut heard = 0;
        loop {
            match connection.piece().await.len() {
                0 => break,
                more => heard += more,
            }
        }
        HEARD.store(heard, Ordering::Relaxed);
        None
    })
    .await;
    static HEARD: AtomicUsize = AtomicUsize::new(0);
    let stack = Stack::start(origin).await;
    let mut visitor = stack.visitor().await;
    visitor
        .send("GET / HTTP/1.1\r\nHost: web.localhost\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n")
        .await;
    visitor.head().await;
    assert_eq!(visitor.rest().await, b"all of mine");
    for _ in 0..10 {
        visitor.send(vec![7; 1000]).await;
    }
    visitor.socket.shutdown().await.unwrap();
    tests::eventually::eventually("all of it is heard", || async { HEARD.load(Ordering::Relaxed) == 10_000 })
        .await;
}
