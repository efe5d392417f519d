//! The recipe of docs/operations.md: HAProxy passes connections on and says who the visitor is.

use std::fs;

use tests::{
    dns::free_port,
    eventually::eventually,
    origin::Origin,
    part,
    process::{Process, home},
    server::Server,
    stack::Stack,
    tls::{Authority, ask},
    visitor::Visitor,
};
use tokio::net::{TcpSocket, TcpStream};

const GET: &str =
    "GET / HTTP/1.1\r\nHost: web.localhost\r\nX-Forwarded-For: 203.0.113.1\r\nConnection: close\r\n\r\n";

/// The recipe's own text with this test's ports, and checks that are quick.
fn configuration(ports: [(&str, u16); 4]) -> String {
    let page = include_str!("../../docs/operations.md");
    let mut recipe = page.split("```haproxy\n").nth(1).unwrap().split("```").next().unwrap().to_owned();
    for (from, to) in ports {
        let (head, _) = from.rsplit_once(':').unwrap();
        assert!(recipe.contains(from), "{from}");
        recipe = recipe.replace(&format!("{from}\n"), &format!("{head}:{to}\n"));
        recipe = recipe.replace(&format!("{from} "), &format!("{head}:{to} "));
    }
    let recipe = recipe
        .replace("bind :", "bind 127.0.0.1:")
        .replace("check-send-proxy", "check-send-proxy inter 100ms");
    format!("defaults\n    timeout connect 5s\n    timeout client 60s\n    timeout server 60s\n{recipe}")
}

/// A server by TLS and in plain that believes this machine's main address.
async fn stack(authority: &Authority) -> Stack {
    authority.certify("tunnel", &["web.localhost"]);
    let folder = authority.folder_of("tunnel");
    let server = Server::with()
        .env("TLS_PORT", "0")
        .env("TLS_CERTS", folder.path().display().to_string())
        .env("TRUSTED_PROXIES", "127.0.0.1")
        .start()
        .await;
    Stack::on(server, Origin::echo().await).await
}

#[tokio::test]
async fn haproxy_says_who_the_visitor_is() {
    let Some(haproxy) = part::command("haproxy", "the recipe for HAProxy") else { return };
    let authority = Authority::new();
    let stack = stack(&authority).await;
    let (tls, plain) = (free_port(), free_port());
    let folder = home();
    let file = folder.path().join("haproxy.cfg");
    let doors = (stack.server.tls.unwrap().port(), stack.server.visitors.port());
    let ports = [(":443", tls), (":80", plain), ("127.0.0.1:8443", doors.0), ("127.0.0.1:8080", doors.1)];
    fs::write(&file, configuration(ports)).unwrap();
    let proxy = Process::start(haproxy, ["-db".into(), "-f".into(), file], &[], folder.clone());
    for port in [tls, plain] {
        eventually("HAProxy listens", || async { TcpStream::connect(("127.0.0.1", port)).await.is_ok() })
            .await;
    }

    let plain = ([127, 0, 0, 1], plain).into();
    let mut visitor = Visitor::connect_from("127.0.0.9", plain).await;
    visitor.send(GET).await;
    assert_eq!(visitor.answer().await.status, 200);

    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.8:0".parse().unwrap()).unwrap();
    let socket = socket.connect(([127, 0, 0, 1], tls).into()).await.unwrap();
    let mut visitor = authority.over(socket, "web.localhost", &["http/1.1"]).await.unwrap();
    let answer = ask(&mut visitor, GET).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");

    let seen = stack.origin.requests();
    let said: Vec<_> =
        seen.iter().map(|seen| (seen.field("x-forwarded-for"), seen.field("x-forwarded-proto"))).collect();
    assert_eq!(said, [(Some("127.0.0.9"), Some("http")), (Some("127.0.0.8"), Some("https"))]);
    // What it asks on its own account is no visitor's, and it finds the server well.
    assert!(!proxy.stderr().join("\n").contains("DOWN"), "{:?}", proxy.stderr());
}

#[tokio::test]
async fn headers_in_pieces_and_health_checks_are_understood() {
    let authority = Authority::new();
    let stack = stack(&authority).await;
    for (header, seen) in [
        ("PROXY TCP4 192.0.2.7 127.0.0.1 4000 80\r\n", "192.0.2.7"),
        ("PROXY TCP6 2001:db8::7 ::1 4000 80\r\n", "2001:db8::7"),
        ("PROXY UNKNOWN\r\n", "127.0.0.1"),
    ] {
        let mut visitor = Visitor::connect(stack.server.visitors).await;
        let bytes = [header.as_bytes(), GET.as_bytes()].concat();
        for byte in &bytes {
            visitor.send([*byte]).await;
        }
        assert_eq!(visitor.answer().await.status, 200, "{header}");
        let requests = stack.origin.requests();
        let forwarded = requests.last().unwrap().field("x-forwarded-for");
        // One that says nothing of a visitor is a proxy whose own words count.
        let expected =
            if seen == "127.0.0.1" { "203.0.113.1, 127.0.0.1".to_owned() } else { seen.to_owned() };
        assert_eq!(forwarded, Some(&*expected), "{header}");
    }
}

#[tokio::test]
async fn a_header_from_anybody_else_is_refused() {
    let authority = Authority::new();
    let stack = stack(&authority).await;
    let version_2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x01\x7f\0\0\x01\x12\x34\0\x50";
    for header in [&version_2[..], b"PROXY TCP4 192.0.2.7 127.0.0.1 4000 80\r\n"] {
        let mut visitor = Visitor::connect_from("127.0.0.9", stack.server.visitors).await;
        visitor.send([header, GET.as_bytes()].concat()).await;
        assert_eq!(visitor.answer().await.status, 400);
    }
    // The operator reads who it was, and what to do.
    stack.server.process.complains("127.0.0.9").await;
    stack.server.process.complains("TRUSTED_PROXIES").await;
    // A trusted one that stammers is not understood either.
    let mut visitor = Visitor::connect(stack.server.visitors).await;
    visitor.send(["PROXY TCP4 192.0.2.7\r\n".as_bytes(), GET.as_bytes()].concat()).await;
    assert_eq!(visitor.answer().await.status, 400);
    // And nobody is announced twice.
    let mut visitor = Visitor::connect(stack.server.visitors).await;
    let twice = "PROXY TCP4 127.0.0.1 127.0.0.1 4000 80\r\nPROXY TCP4 192.0.2.7 127.0.0.1 4000 80\r\n";
    visitor.send([twice.as_bytes(), GET.as_bytes()].concat()).await;
    assert_eq!(visitor.answer().await.status, 400);
    assert!(stack.origin.requests().is_empty());
}
