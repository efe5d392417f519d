//! What a visitor reads when there is no local answer.

use tests::{
    client::Client,
    eventually::eventually,
    origin::Origin,
    process::workspace,
    server::Server,
    stack::Stack,
    visitor::{Answer, Visitor, get},
};

async fn ask(server: &Server, request: &str) -> Answer {
    let mut visitor = Visitor::connect(server.visitors).await;
    visitor.send(request).await;
    visitor.answer().await
}

#[tokio::test]
async fn no_tunnel_has_the_name() {
    let server = Server::start().await;
    let answer = get(server.visitors, "nobody", "/").await;
    assert_eq!((answer.status, answer.text().as_str()), (404, "Error: Tunnel Not Found"));
    assert_eq!(answer.field("tunnelto-error"), ["tunnel_not_found"]);
}

#[tokio::test]
async fn pages_for_people_and_json_for_programs() {
    let server = Server::start().await;
    let ask = async |accept: &str| {
        ask(&server, &format!("GET / HTTP/1.1\r\nHost: nobody.localhost\r\nAccept: {accept}\r\n\r\n")).await
    };
    let html = ask("text/html,application/xhtml+xml,*/*;q=0.8").await;
    assert!(html.text().contains("<h1>Error: Tunnel Not Found</h1>"), "{}", html.text());
    let json: serde_json::Value = serde_json::from_slice(&ask("application/json").await.body).unwrap();
    assert_eq!(json["error"], "tunnel_not_found");
}

#[tokio::test]
async fn hosts_that_are_none_of_ours() {
    let server = Server::start().await;
    for host in ["example.com", "a.b.localhost", "localhost.evil"] {
        let answer = ask(&server, &format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
        assert_eq!((answer.status, answer.text().as_str()), (400, "Error: Invalid Hostname"), "{host}");
    }
}

#[tokio::test]
async fn nothing_listens_at_the_target() {
    let origin = Origin::echo().await;
    let server = Server::start().await;
    let target = origin.target();
    drop(origin);
    let client = Client::start(&server, &[&target, "-s", "web"]);
    client.url().await;
    let answer = get(server.visitors, "web", "/").await;
    assert_eq!((answer.status, answer.text().as_str()), (502, "Tunnel says: connection refused."));
}

#[tokio::test]
async fn the_local_service_breaks_off() {
    let stack = Stack::start(Origin::start(|_, _| async { None }).await).await;
    let answer = get(stack.door(), "web", "/").await;
    assert_eq!((answer.status, answer.text().as_str()), (502, "Error: Error proxying tunnel"));
    assert_eq!(answer.field("tunnelto-error"), ["proxying_failed"]);
}

#[tokio::test]
async fn the_bare_host_and_health() {
    let server = Server::with().env("HOME_URL", "https://example.com/").start().await;
    let answer = ask(&server, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert_eq!((answer.status, answer.field("location")), (302, vec!["https://example.com/".to_owned()]));
    let answer = ask(&server, "GET /0xDEADBEEF_HEALTH_CHECK HTTP/1.1\r\nHost: 10.0.0.1:8080\r\n\r\n").await;
    assert_eq!((answer.status, answer.text().as_str()), (200, "ok"));
    for door in [server.clients, server.peers] {
        let mut visitor = Visitor::connect(door).await;
        visitor.send("GET /health_check HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert_eq!(visitor.answer().await.text(), "ok");
    }
}

#[tokio::test]
async fn tls_and_noise_on_the_plain_port_end_at_once() {
    let server = Server::start().await;
    let mut visitor = Visitor::connect(server.visitors).await;
    visitor.send([0x16, 3, 1, 0, 5, 1, 0, 0, 1, 3]).await;
    assert_eq!(visitor.rest().await, [0x15, 3, 1, 0, 2, 2, 70], "a TLS alert");
    let answer = ask(&server, "\u{1}\u{2}\u{3}\r\n\r\n").await;
    assert_eq!(answer.status, 400);
}

#[tokio::test]
async fn blocked_addresses_are_kept_out() {
    let server = Server::with().env("BLOCKED_IPS", "127.0.0.9,10.0.0.0/8").start().await;
    let stack = Stack::on(server, Origin::echo().await).await;
    let mut blocked = Visitor::connect_from("127.0.0.9", stack.door()).await;
    assert_eq!(blocked.get("web", "/").await.status, 403);
    let mut other = Visitor::connect_from("127.0.0.8", stack.door()).await;
    assert_eq!(other.get("web", "/").await.status, 200);
    assert_eq!(stack.origin.requests()[0].field("x-forwarded-for"), Some("127.0.0.8"));
}

#[tokio::test]
async fn a_peers_question() {
    let stack = Stack::start(Origin::echo().await).await;
    let ask = async |host: &str| {
        let mut visitor = Visitor::connect(stack.server.peers).await;
        visitor.send(format!("GET /?host={host} HTTP/1.1\r\nHost: x\r\n\r\n")).await;
        let answer: serde_json::Value = serde_json::from_slice(&visitor.answer().await.body).unwrap();
        answer["client_id"].clone()
    };
    assert!(ask("web").await.is_string());
    assert!(ask("other").await.is_null());
}

#[tokio::test]
async fn what_visitors_write_forges_no_log_lines() {
    let stack = Stack::start(Origin::echo().await).await;
    let path = workspace().join("tests/cases/inputs/log_injection.http");
    let request = String::from_utf8_lossy(&std::fs::read(path).unwrap()).replace("@HOST@", "web.localhost");
    let mut visitor = stack.visitor().await;
    visitor.send(request.replace('\n', "\r\n")).await;
    visitor.rest().await;
    let access = || {
        stack
            .server
            .process
            .stderr()
            .into_iter()
            .filter(|line| line.contains(" access: "))
            .collect::<Vec<_>>()
    };
    eventually("the line is there", || async { !access().is_empty() }).await;
    assert_eq!(access().len(), 1);
    let bidi = |c: char| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    assert!(!access()[0].contains(|c: char| c.is_control() || bidi(c)), "{:?}", access());
}

#[tokio::test]
async fn streams_are_logged_at_debug_with_their_bytes() {
    let server = Server::with().env("RUST_LOG", "tunnelto_server=debug").start().await;
    let stack = Stack::on(server, Origin::echo().await).await;
    let mut visitor = stack.visitor().await;
    assert_eq!(visitor.get("web", "/logged").await.text(), "GET /logged ");
    let logged = |words: &[&str]| {
        stack.server.process.stderr().iter().any(|line| words.iter().all(|word| line.contains(word)))
    };
    eventually("taken and left", || async {
        logged(&["stream taken", "served=0"])
            && logged(&["stream left", "sent=", "kept for the next exchange"])
    })
    .await;
}
