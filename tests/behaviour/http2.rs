//! HTTP/2 by prior knowledge towards visitors.

use http::Request;
use tests::{
    eventually::soon,
    http2::{Asker, request_to},
    origin::Origin,
    stack::Stack,
};

fn request(method: &str, path: &str) -> Request<()> {
    request_to("web", method, path)
}

#[tokio::test]
async fn requests_side_by_side() {
    let stack = Stack::start(Origin::echo().await).await;
    let sender = Asker::connect(&stack.server).await;
    let asks = (0..50).map(|index| {
        let sender = sender.clone();
        tokio::spawn(async move {
            let body = vec![b'x'; index * 1000];
            let got = sender.ask(request("POST", &format!("/{index}")), Some(&body)).await;
            assert_eq!(got.response.status(), 200);
            assert!(got.body == [format!("POST /{index} ").into_bytes(), body].concat());
        })
    });
    for ask in asks.collect::<Vec<_>>() {
        ask.await.unwrap();
    }
}

#[tokio::test]
async fn the_local_service_gets_an_http_1_1_request() {
    let stack = Stack::start(Origin::echo().await).await;
    let sender = Asker::connect(&stack.server).await;
    let mut asking = request("GET", "/x?y=1");
    for cookie in ["a=1", "b=2"] {
        asking.headers_mut().append("cookie", cookie.parse().unwrap());
    }
    asking.headers_mut().append("x-forwarded-for", "6.6.6.6".parse().unwrap());
    assert_eq!(sender.ask(asking, None).await.body, b"GET /x?y=1 ");
    let seen = &stack.origin.requests()[0];
    assert!(seen.head.starts_with("GET /x?y=1 HTTP/1.1\r\nHost: web.localhost\r\n"), "{}", seen.head);
    assert_eq!(seen.field("cookie"), Some("a=1; b=2"));
    assert_eq!(seen.field("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(seen.field("transfer-encoding"), None);
}

#[tokio::test]
async fn chunks_become_frames_and_trailers_are_kept() {
    let origin = Origin::start(|mut connection, _| async move {
        connection.write(b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n").await;
        connection.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: 1\r\n\r\n").await;
        connection.write(b"4\r\nbody\r\n3;e=1\r\nend\r\n0\r\nX-Sum: 7\r\nContent-Length: 9\r\n\r\n").await;
        None
    })
    .await;
    let stack = Stack::start(origin).await;
    let sender = Asker::connect(&stack.server).await;
    let got = sender.ask(request("GET", "/"), None).await;
    assert_eq!((got.body.as_slice(), got.response.headers()["x-a"].as_bytes()), (&b"bodyend"[..], &b"1"[..]));
    assert!(!got.response.headers().contains_key("transfer-encoding"));
    let trailers = got.trailers.unwrap();
    assert_eq!(
        (trailers["x-sum"].as_bytes(), trailers.len()),
        (&b"7"[..], 1),
        "framing fields are no trailers"
    );
}

#[tokio::test]
async fn refusals_and_head() {
    let stack = Stack::start(Origin::echo().await).await;
    let sender = Asker::connect(&stack.server).await;
    let unknown = Request::builder().uri("http://nobody.localhost/").body(()).unwrap();
    let got = sender.ask(unknown, None).await;
    assert_eq!((got.response.status().as_u16(), got.body.as_slice()), (404, &b"Error: Tunnel Not Found"[..]));
    assert_eq!(got.response.headers()["tunnelto-error"], "tunnel_not_found");
    let got = sender.ask(request("HEAD", "/"), None).await;
    assert_eq!((got.response.status().as_u16(), got.body.len()), (200, 0));
    assert_eq!(got.response.headers()["content-length"], "7");
}

#[tokio::test]
async fn a_truncated_answer_is_a_reset() {
    let origin = Origin::start(|mut connection, _| async move {
        connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf").await;
        None
    })
    .await;
    let stack = Stack::start(origin).await;
    let mut sender = Asker::connect(&stack.server).await.0.ready().await.unwrap();
    let (answer, _) = sender.send_request(request("GET", "/"), true).unwrap();
    // The Reset may overtake the head.
    let end = match soon("an answer", answer).await {
        Err(error) => error,
        Ok(response) => {
            let mut body = response.into_body();
            loop {
                match soon("the body", body.data()).await {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => break error,
                    None => panic!("half an answer looked whole"),
                }
            }
        }
    };
    assert!(end.is_reset(), "{end}");
}

#[tokio::test]
async fn a_flood_of_resets_ends_the_connection() {
    let stack = Stack::start(Origin::echo().await).await;
    let mut sender = Asker::connect(&stack.server).await.0;
    let mut opened = 0;
    while opened < 10_000 {
        let Ok(ready) = sender.ready().await else { break };
        sender = ready;
        let Ok((_, mut stream)) = sender.send_request(request("POST", "/"), false) else { break };
        // The request is on the wire before it is taken back.
        tokio::task::yield_now().await;
        stream.send_reset(h2::Reason::CANCEL);
        tokio::task::yield_now().await;
        opened += 1;
    }
    assert!(opened < 10_000, "the connection took them all");
    let other = Asker::connect(&stack.server).await;
    assert_eq!(other.ask(request("GET", "/"), None).await.response.status(), 200);
}

#[tokio::test]
async fn requests_one_after_the_other_share_a_local_connection() {
    let stack = Stack::start(Origin::echo().await).await;
    let sender = Asker::connect(&stack.server).await;
    for index in 0..20 {
        let path = format!("/{index}");
        assert_eq!(sender.ask(request("GET", &path), None).await.body, format!("GET {path} ").as_bytes());
    }
    assert_eq!(stack.origin.connections(), 1);
}

#[tokio::test]
async fn a_kept_local_connection_that_turns_out_dead_costs_no_request() {
    // It says that it keeps its connection, and hangs up after every second request without an answer.
    let origin = Origin::start(|mut connection, request| async move {
        if request.target() == "/second" && connection.has_served() {
            return None;
        }
        connection.answer("200 OK", request.target().as_bytes()).await;
        Some(connection)
    })
    .await;
    let stack = Stack::start(origin).await;
    let sender = Asker::connect(&stack.server).await;
    for path in ["/first", "/second", "/first", "/second"] {
        assert_eq!(sender.ask(request("GET", path), None).await.body, path.as_bytes());
    }
    assert_eq!(stack.origin.connections(), 3, "each /second was asked for again on a new one");
}
