//! HTTP/1 passes through as RFC 9110 and 9112 have it.

use std::sync::atomic::{AtomicBool, Ordering};

use sha2::{Digest, Sha256};
use tests::{
    eventually::{eventually, soon},
    origin::Origin,
    stack::Stack,
    visitor::{Visitor, get},
};
use tokio::{io::AsyncWriteExt, sync::Semaphore, task::JoinSet};

#[tokio::test]
async fn a_request_and_its_answer() {
    let stack = Stack::start(Origin::echo().await).await;
    let mut visitor = stack.visitor().await;
    let answer = visitor.get("web", "/path?q=1").await;
    assert_eq!((answer.status, answer.text().as_str()), (200, "GET /path?q=1 "));
    visitor.send("POST / HTTP/1.1\r\nHost: web.localhost\r\nContent-Length: 4\r\n\r\nbody").await;
    assert_eq!(visitor.answer().await.text(), "POST / body");
}

#[tokio::test]
async fn one_local_connection_serves_many_requests() {
    let stack = Stack::start(Origin::echo().await).await;
    for visit in 0..20 {
        assert_eq!(get(stack.door(), "web", &format!("/{visit}")).await.status, 200);
    }
    // A pause of this machine may be long enough for an idle one to be given up.
    assert!(stack.origin.connections() <= 3, "{} connections for 20 requests", stack.origin.connections());
}

#[tokio::test]
async fn a_hundred_requests_at_once_are_not_mixed_up() {
    let stack = Stack::start(Origin::echo().await).await;
    let door = stack.door();
    let mut visits = JoinSet::new();
    for visit in 0..100 {
        visits.spawn(async move {
            let mut visitor = Visitor::connect(door).await;
            for round in 0..5 {
                let body = vec![b'a' + (visit % 26) as u8; visit * round * 100];
                let head = format!(
                    "POST /{visit}/{round} HTTP/1.1\r\nHost: web.localhost\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                );
                visitor.send(head).await;
                visitor.send(&body).await;
                let wanted = [format!("POST /{visit}/{round} ").into_bytes(), body].concat();
                assert!(visitor.answer().await.body == wanted, "visit {visit}, round {round}");
            }
        });
    }
    while let Some(visit) = visits.join_next().await {
        visit.unwrap();
    }
}

#[tokio::test]
async fn a_local_service_that_has_hung_up_costs_no_request() {
    // It answers one request per connection, says nothing of it, and closes.
    let origin = Origin::start(|mut connection, request| async move {
        connection.answer("200 OK", request.line().as_bytes()).await;
        None
    })
    .await;
    let stack = Stack::start(origin).await;
    let mut visitor = stack.visitor().await;
    for round in 0..50 {
        visitor
            .send(format!("POST /{round} HTTP/1.1\r\nHost: web.localhost\r\nContent-Length: 1\r\n\r\nx"))
            .await;
        let answer = visitor.answer().await;
        assert_eq!((answer.status, answer.text()), (200, format!("POST /{round}")));
    }
    assert_eq!(stack.origin.requests().len(), 50);
}

#[tokio::test]
async fn early_hints_pass_and_are_kept_from_http_1_0() {
    let origin = Origin::start(|mut connection, _| async move {
        connection.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n").await;
        connection.answer("200 OK", b"page").await;
        Some(connection)
    })
    .await;
    let stack = Stack::start(origin).await;
    let mut visitor = stack.visitor().await;
    visitor.send("GET / HTTP/1.1\r\nHost: web.localhost\r\n\r\n").await;
    assert_eq!(visitor.head().await, "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n");
    assert_eq!(visitor.answer().await.text(), "page");
    let mut old = stack.visitor().await;
    old.send("GET / HTTP/1.0\r\nHost: web.localhost\r\n\r\n").await;
    assert_eq!(old.answer().await.status, 200);
}

#[tokio::test]
async fn trailers_pass() {
    let origin = Origin::start(|mut connection, request| async move {
        assert_eq!(request.field("te"), Some("trailers"));
        connection.write(b"HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n").await;
        connection.write(b"4\r\nbody\r\n0\r\nX-Sum: 7\r\n\r\n").await;
        Some(connection)
    })
    .await;
    let stack = Stack::start(origin).await;
    let mut visitor = stack.visitor().await;
    visitor
        .send("GET / HTTP/1.1\r\nHost: web.localhost\r\nTE: trailers\r\nConnection: TE, close\r\n\r\n")
        .await;
    let head = visitor.head().await;
    assert!(head.contains("Trailer: X-Sum\r\n"), "{head}");
    assert_eq!(visitor.rest().await, b"4\r\nbody\r\n0\r\nX-Sum: 7\r\n\r\n");
}

#[tokio::test]
async fn http_1_0_gets_content_without_chunks() {
    let origin = Origin::start(|mut connection, _| async move {
        connection
            .write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n3\r\nend\r\n0\r\n\r\n")
            .await;
        Some(connection)
    })
    .await;
    let stack = Stack::start(origin).await;
    let mut visitor = stack.visitor().await;
    visitor.send("GET / HTTP/1.0\r\nHost: web.localhost\r\n\r\n").await;
    let answer = visitor.answer().await;
    assert!(answer.field("transfer-encoding").is_empty(), "{}", answer.head);
    assert_eq!(answer.text(), "bodyend");
}

#[tokio::test]
async fn http_1_0_may_keep_its_connection() {
    let stack = Stack::start(Origin::echo().await).await;
    let mut visitor = stack.visitor().await;
    for _ in 0..2 {
        visitor.send("GET / HTTP/1.0\r\nHost: web.localhost\r\nConnection: keep-alive\r\n\r\n").await;
        let answer = visitor.answer().await;
        assert_eq!(answer.field("connection"), ["keep-alive"]);
    }
}

#[tokio::test]
async fn an_absolute_target_decides_the_route() {
    let stack = Stack::start(Origin::echo().await).await;
    let mut visitor = stack.visitor().await;
    visitor.send("GET http://web.localhost/x?y HTTP/1.1\r\nHost: nobody.localhost\r\n\r\n").await;
    assert_eq!(visitor.answer().await.text(), "GET /x?y ");
    assert_eq!(stack.origin.requests()[0].field("host"), Some("web.localhost"));
}

#[tokio::test]
async fn an_upgrade_that_is_not_taken_is_a_plain_answer() {
    let stack = Stack::start(Origin::echo().await).await;
    let mut visitor = stack.visitor().await;
    for _ in 0..2 {
        visitor
            .send(
                "GET / HTTP/1.1\r\nHost: web.localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
            )
            .await;
        assert_eq!(visitor.answer().await.status, 200);
    }
}

#[tokio::test]
async fn a_truncated_answer_is_seen_as_truncated() {
    let origin = Origin::start(|mut connection, request| async move {
        match request.target() {
            "/length" => connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf").await,
            _ => {
                connection.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n").await
            }
        }
        None
    })
    .await;
    let stack = Stack::start(origin).await;
    for path in ["/length", "/chunked"] {
        let mut visitor = stack.visitor().await;
        visitor.send(format!("GET {path} HTTP/1.1\r\nHost: web.localhost\r\n\r\n")).await;
        visitor.head().await;
        let rest = visitor.rest().await;
        assert!(!rest.ends_with(b"0\r\n\r\n") && rest.len() < 10, "{path}: {rest:?}");
    }
}

#[tokio::test]
async fn bad_chunks_are_the_visitors_fault() {
    let stack = Stack::start(Origin::echo().await).await;
    let mut visitor = stack.visitor().await;
    visitor.send("POST / HTTP/1.1\r\nHost: web.localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n").await;
    let answer = visitor.answer().await;
    assert_eq!((answer.status, answer.field("tunnelto-error")), (400, vec!["bad_request".to_owned()]));
    visitor.rest().await;
    assert!(stack.origin.requests().is_empty());
}

#[tokio::test]
async fn a_body_that_nobody_took_is_never_read_as_a_request() {
    // The service answers at once and reads none of the body.
    let origin = Origin::start(|mut connection, request| async move {
        if request.field("x-raw").is_some() {
            connection.answer("403 Forbidden", b"no").await;
            return None;
        }
        connection.answer("200 OK", b"yes").await;
        Some(connection)
    })
    .await;
    let stack = Stack::start(origin).await;
    let mut visitor = stack.visitor().await;
    let hidden = "GET /hidden HTTP/1.1\r\nHost: web.localhost\r\n\r\n";
    let length = hidden.len() + 100_000;
    visitor
        .send(format!(
            "POST / HTTP/1.1\r\nHost: web.localhost\r\nX-Raw: 1\r\nContent-Length: {length}\r\n\r\n"
        ))
        .await;
    let answer = visitor.answer().await;
    assert_eq!((answer.status, answer.field("connection")), (403, vec!["close".to_owned()]));
    visitor.send(hidden).await;
    visitor.socket.shutdown().await.unwrap();
    assert_eq!(visitor.rest().await, b"");
    assert!(!stack.origin.requests().iter().any(|request| request.target() == "/hidden"));
}

#[tokio::test]
async fn big_bodies_arrive_whole_both_ways() {
    let origin = Origin::start(|mut connection, request| async move {
        let size = 32 << 20;
        match request.target() {
            "/down" => {
                connection
                    .write(format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n").as_bytes())
                    .await;
                for block in 0..32 {
                    connection.write(&vec![block; 1 << 20]).await;
                }
            }
            _ => {
                let hash = Sha256::digest(&request.body);
                connection.answer("200 OK", &hash).await;
            }
        }
        Some(connection)
    })
    .await;
    let stack = Stack::start(origin).await;
    let body: Vec<u8> = (0..32u8).flat_map(|block| vec![block; 1 << 20]).collect();
    let mut visitor = stack.visitor().await;
    assert!(visitor.get("web", "/down").await.body == body);
    visitor
        .send(format!("PUT /up HTTP/1.1\r\nHost: web.localhost\r\nContent-Length: {}\r\n\r\n", body.len()))
        .await;
    visitor.send(&body).await;
    assert_eq!(visitor.answer().await.body, Sha256::digest(&body).to_vec());
}

#[tokio::test]
async fn a_visitor_that_leaves_ends_the_local_request() {
    static IS_GONE: AtomicBool = AtomicBool::new(false);
    static IS_ASKED: Semaphore = Semaphore::const_new(0);
    let origin = Origin::start(|mut connection, _| async move {
        connection.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await;
        IS_ASKED.add_permits(1);
        // Events until somebody hangs up.
        while connection.socket.write_all(b"5\r\nevent\r\n").await.is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        IS_GONE.store(true, Ordering::Relaxed);
        None
    })
    .await;
    let stack = Stack::start(origin).await;
    let visitor = stack.visitor_with_a_head().await;
    soon("the origin is asked", IS_ASKED.acquire()).await.unwrap().forget();
    drop(visitor);
    eventually("the local request ends", || async { IS_GONE.load(Ordering::Relaxed) }).await;
}
