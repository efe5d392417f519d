//! Visitors and clients who speak TLS: what they meet, and which instance answers.

use std::{net::SocketAddr, sync::Arc};

use tempfile::TempDir;
use tests::{
    client::Client,
    cluster::Cluster,
    eventually::{eventually, soon},
    http2::{Asker, request_to},
    origin::Origin,
    server::{Server, Starting},
    stack::Stack,
    tls::{Authority, ask},
    visitor::Visitor,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const GET: &str = "GET /path HTTP/1.1\r\nHost: web.localhost\r\nConnection: close\r\n\r\n";

/// With any port for TLS.
fn with_tls(certificates: &Arc<TempDir>) -> Starting {
    Server::with().env("TLS_PORT", "0").env("TLS_CERTS", certificates.path().display().to_string())
}

/// An authority and the folder of a certificate for the tunnel `web`, clients and the bare host.
fn certified() -> (Authority, Arc<TempDir>) {
    let authority = Authority::new();
    authority.certify("tunnel", &["localhost", "web.localhost", "wormhole.localhost"]);
    let folder = authority.folder_of("tunnel");
    (authority, folder)
}

fn door(server: &Server) -> SocketAddr {
    server.tls.expect("a door for TLS")
}

#[tokio::test]
async fn visitors_and_clients_come_by_tls() {
    let (authority, folder) = certified();
    let server = with_tls(&folder).start().await;
    let origin = Origin::echo().await;
    let port = door(&server).port();
    let url = format!("wss://wormhole.localhost:{port}");
    let client =
        Client::towards(&url, &[&origin.target(), "-s", "web", "--ca", &authority.root(), "--no-retry"]);
    assert_eq!(client.url().await, format!("https://web.localhost:{port}"));

    let mut visitor = authority.connect(door(&server), "web.localhost", &["http/1.1"]).await.unwrap();
    let answer = ask(&mut visitor, GET).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("GET /path "), "{answer}");

    let visitor = authority.connect(door(&server), "web.localhost", &["h2", "http/1.1"]).await.unwrap();
    assert_eq!(visitor.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let asker = Asker::over(visitor).await;
    let got = asker.ask(request_to("web", "POST", "/path"), Some(b"body")).await;
    assert_eq!((got.response.status().as_u16(), &got.body[..]), (200, &b"POST /path body"[..]));

    for seen in origin.requests() {
        assert_eq!(seen.field("x-forwarded-proto"), Some("https"));
        assert!(seen.field("forwarded").is_some_and(|value| value.ends_with(";proto=https")));
    }
}

#[tokio::test]
async fn a_client_trusts_whom_it_is_told_to() {
    let (_, folder) = certified();
    let server = with_tls(&folder).start().await;
    let url = format!("wss://wormhole.localhost:{}", door(&server).port());
    let other = Authority::new();
    let mut client = Client::towards(&url, &["8000", "--ca", &other.root(), "--no-retry"]);
    assert_eq!(client.process.exit().await, 5);
    let said = client.process.stderr().join("\n");
    assert!(said.contains("certificate"), "{said}");
    let mut client = Client::towards(&url, &["8000", "--ca", "/nowhere/ca.pem"]);
    assert_eq!(client.process.exit().await, 6);
    let said = client.process.stderr().join("\n");
    assert!(said.contains("/nowhere/ca.pem"), "{said}");
}

#[tokio::test]
async fn much_passes_both_ways_and_half_close_is_kept() {
    let (authority, folder) = certified();
    let server = with_tls(&folder).env("WORKERS", "2").start().await;
    let origin = Origin::start(|mut connection, _| async move {
        connection.upgrade_and_count().await;
        None
    })
    .await;
    let stack = Stack::on(server, origin).await;
    // Some of them are accepted on another thread than their tunnel's, and move there with their TLS.
    for _ in 0..8 {
        let mut visitor =
            authority.connect(door(&stack.server), "web.localhost", &["http/1.1"]).await.unwrap();
        let upgrade = "GET / HTTP/1.1\r\nHost: web.localhost\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n";
        visitor.write_all(upgrade.as_bytes()).await.unwrap();
        visitor.write_all(&vec![7; 3_000_000]).await.unwrap();
        visitor.shutdown().await.unwrap();
        let mut rest = Vec::new();
        visitor.read_to_end(&mut rest).await.unwrap();
        assert!(rest.ends_with(b"got 3000000"), "{}", String::from_utf8_lossy(&rest));
    }
}

#[tokio::test]
async fn a_kept_connection_serves_request_after_request() {
    let (authority, folder) = certified();
    let stack = Stack::on(with_tls(&folder).env("WORKERS", "2").start().await, Origin::echo().await).await;
    for _ in 0..8 {
        let mut visitor = authority.connect(door(&stack.server), "web.localhost", &[]).await.unwrap();
        let kept = GET.replace("Connection: close\r\n", "");
        let answer = ask(&mut visitor, &[&*kept, &*kept, GET].concat()).await;
        assert_eq!(answer.matches("GET /path ").count(), 3, "{answer}");
    }
}

#[tokio::test]
async fn whoever_comes_without_tls_is_sent_to_it() {
    let (_, folder) = certified();
    let server = with_tls(&folder).env("HTTPS_REDIRECT", "true").start().await;
    let port = door(&server).port();
    for at in [server.visitors, door(&server)] {
        let answer = Visitor::connect(at).await.get("web", "/a?b=c").await;
        assert_eq!(answer.status, 308, "{}", answer.head);
        assert_eq!(answer.field("location"), [format!("https://web.localhost:{port}/a?b=c")]);
    }
    let mut balancer = Visitor::connect(server.visitors).await;
    balancer.send("GET /0xDEADBEEF_HEALTH_CHECK HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert_eq!(balancer.answer().await.text(), "ok");
    // A client that comes by the plain door is none of those.
    let origin = Origin::echo().await;
    let url = format!("ws://wormhole.localhost:{}", server.visitors.port());
    let client = Client::towards(&url, &[&origin.target(), "-s", "web", "--no-retry"]);
    assert_eq!(client.url().await, format!("https://web.localhost:{port}"));
}

#[tokio::test]
async fn the_plain_door_stays_plain_unless_said_otherwise() {
    let (_, folder) = certified();
    let stack = Stack::on(with_tls(&folder).start().await, Origin::echo().await).await;
    let answer = Visitor::connect(stack.server.visitors).await.get("web", "/path").await;
    assert_eq!((answer.status, &*answer.text()), (200, "GET /path "));
    let answer = Visitor::connect(door(&stack.server)).await.get("web", "/path").await;
    assert_eq!(answer.status, 308, "never in plain on the door for TLS");
    let mut visitor = Visitor::connect(door(&stack.server)).await;
    visitor.send("OPTIONS * HTTP/1.1\r\nHost: web.localhost\r\n\r\n").await;
    assert_eq!(visitor.answer().await.status, 308);
    let mut client = Visitor::connect(door(&stack.server)).await;
    client.send("GET /wormhole HTTP/1.1\r\nHost: wormhole.localhost\r\n\r\n").await;
    assert_eq!(client.answer().await.status, 400);
}

#[tokio::test]
async fn names_and_certificates_must_fit() {
    let authority = Authority::new();
    authority.certify("web", &["web.localhost"]);
    authority.certify("other", &["other.localhost"]);
    let folder = authority.folder_of("web");
    authority.put("other", folder.path());
    let server = with_tls(&folder).start().await;
    let stack = Stack::on(server, Origin::echo().await).await;

    let error = authority.connect(door(&stack.server), "third.localhost", &[]).await.unwrap_err();
    assert!(error.to_string().contains("UnrecognisedName"), "{error}");

    // Its certificate does not cover what it asks for: RFC 9110 section 15.5.20.
    let mut visitor = authority.connect(door(&stack.server), "other.localhost", &[]).await.unwrap();
    let answer = ask(&mut visitor, GET).await;
    assert!(
        answer.starts_with("HTTP/1.1 421 ") && answer.contains("Tunnelto-Error: misdirected"),
        "{answer}"
    );
    let asker =
        Asker::over(authority.connect(door(&stack.server), "other.localhost", &["h2"]).await.unwrap());
    let got = asker.await.ask(request_to("web", "GET", "/path"), None).await;
    assert_eq!(got.response.status().as_u16(), 421);
}

#[tokio::test]
async fn old_tls_is_spoken_only_where_allowed() {
    let (authority, folder) = certified();
    for (min, spoken) in [("1.2", true), ("1.3", false)] {
        let server = with_tls(&folder).env("TLS_MIN", min).start().await;
        let at = door(&server).to_string();
        let output = tokio::process::Command::new("openssl")
            .args(["s_client", "-connect", &at, "-tls1_2", "-servername", "web.localhost", "-CAfile"])
            .arg(authority.root())
            .stdin(std::process::Stdio::null())
            .output()
            .await
            .expect("openssl runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(said.contains("Verify return code: 0 (ok)") && output.status.success(), spoken, "{said}");
    }
}

#[tokio::test]
async fn the_owner_of_a_name_ends_its_tls() {
    // Each instance has a certificate that only its own visitors trust.
    let all: [(Authority, Arc<TempDir>); 2] = [certified(), certified()];
    let cluster = Cluster::with(2, |starting, number| {
        let folder = all[number].1.path().display().to_string();
        starting.env("TLS_PORT", "0").env("TLS_CERTS", folder)
    })
    .await;
    let origin = Origin::echo().await;
    let client = Client::start(&cluster.servers[1], &[&origin.target(), "-s", "web"]);
    client.url().await;
    let owner = &all[1].0;
    for at in &cluster.servers {
        let mut visitor = owner.connect(door(at), "web.localhost", &["http/1.1"]).await.unwrap();
        let answer = ask(&mut visitor, GET).await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("GET /path "), "{answer}");
        let asker = Asker::over(owner.connect(door(at), "web.localhost", &["h2"]).await.unwrap()).await;
        let got = asker.ask(request_to("web", "GET", "/path"), None).await;
        assert_eq!(got.body, b"GET /path ");
    }
    assert_eq!(cluster.servers[0].metric("tunnelto_hops_total{result=\"taken\"}").await, 2.0);
    // Of what TLS ended here already, a request goes on by itself, and its service is told how the visitor came.
    let visitor = all[0].0.connect(door(&cluster.servers[0]), "localhost", &["h2"]).await.unwrap();
    let got = Asker::over(visitor).await.ask(request_to("web", "GET", "/path"), None).await;
    assert_eq!(got.body, b"GET /path ");
    let mut visitor = all[0].0.connect(door(&cluster.servers[0]), "localhost", &["http/1.1"]).await.unwrap();
    let answer = ask(&mut visitor, GET).await;
    assert!(answer.ends_with("GET /path "), "{answer}");
    let seen = origin.requests();
    assert_eq!(seen.len(), 6);
    for request in seen {
        assert_eq!(request.field("x-forwarded-proto"), Some("https"));
        assert_eq!(request.field("x-forwarded-for"), Some("127.0.0.1"));
    }
}

/// Within TLS nobody can see whether an answer is owed.
#[tokio::test]
async fn a_stop_does_not_wait_for_tls_that_rests() {
    let (authority, folder) = certified();
    let mut cluster = Cluster::with(2, |starting, _| {
        let starting = starting.env("TLS_PORT", "0").env("DRAIN", "300s");
        starting.env("TLS_CERTS", folder.path().display().to_string())
    })
    .await;
    let origin = Origin::echo().await;
    let client = Client::start(&cluster.servers[1], &[&origin.target(), "-s", "web"]);
    client.url().await;
    let first = &mut cluster.servers[0];
    let visitor = authority.connect(door(first), "web.localhost", &["h2"]).await.unwrap();
    let asker = Asker::over(visitor).await;
    assert_eq!(asker.ask(request_to("web", "GET", "/path"), None).await.body, b"GET /path ");
    first.process.signal("TERM");
    assert_eq!(soon("it ends", first.process.exit()).await, 0);
    // The instance behind it has said goodbye, and so has its own end.
    eventually("the visitor knows", || async {
        asker.try_ask(request_to("web", "GET", "/path"), None).await.is_err()
    })
    .await;
}

#[tokio::test]
async fn settings_that_do_not_fit_are_refused() {
    let (_, folder) = certified();
    let path = folder.path().display().to_string();
    let nothing = tests::process::home();
    let empty = nothing.path().display().to_string();
    for (settings, words) in [
        (vec![("TLS_PORT", "0")], "TLS_CERTS"),
        (vec![("TLS_CERTS", &*path)], "TLS_PORT"),
        (vec![("HTTPS_REDIRECT", "true")], "TLS_PORT"),
        (vec![("TLS_PORT", "0"), ("TLS_CERTS", "/nowhere")], "/nowhere"),
        (vec![("TLS_PORT", "0"), ("TLS_CERTS", &*empty)], "holds no certificate"),
        (vec![("TLS_PORT", "0"), ("TLS_CERTS", &*path), ("TLS_MIN", "1.1")], "TLS_MIN"),
    ] {
        let start = |starting: Starting, (name, value): &(&'static str, &str)| starting.env(name, *value);
        let mut process = settings.iter().fold(Server::with(), start).spawn();
        assert_ne!(process.exit().await, 0, "{settings:?}");
        let said = process.stderr().join("\n");
        assert!(
            said.to_uppercase().contains(&words.to_uppercase().replace('_', "-")) || said.contains(words),
            "{said}"
        );
    }
}
