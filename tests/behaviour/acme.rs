//! Certificates from a real ACME server, and from the server's own authority.

use std::{fs, path::Path, sync::Arc};

use rustls::{ClientConfig, HandshakeKind};
use tests::{
    acme::{HOST, Habits, Pebble},
    client::Client,
    cluster::instance,
    dns::free_port,
    eventually::eventually,
    origin::Origin,
    server::Server,
    tls::{Tls, ask, connect, trusting},
    visitor::Visitor,
};

fn client(server: &Server, origin: &Origin, name: &str) -> Client {
    Client::start(server, &[&origin.target(), "-s", name])
}

async fn visit(server: &Server, host: &str, trust: &Arc<ClientConfig>) -> std::io::Result<Tls> {
    connect(server.tls.expect("a door for TLS"), host, trust).await
}

async fn get(tls: &mut Tls, host: &str) -> String {
    ask(tls, &format!("GET /path HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")).await
}

async fn is_served(server: &Server, host: &str, trust: &Arc<ClientConfig>) {
    let mut tls = visit(server, host, trust).await.unwrap_or_else(|error| panic!("{host}: {error}"));
    let answer = get(&mut tls, host).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

/// New names that were asked for.
fn orders(server: &Server) -> usize {
    let path = data(server).join("acme-orders");
    fs::read_to_string(path).map_or(0, |lines| lines.lines().count())
}

fn data(server: &Server) -> std::path::PathBuf {
    server.home.path().join(".local/share/tunnelto")
}

/// The server's own host has its certificate.
async fn is_ready(server: &Server, trust: &Arc<ClientConfig>) {
    eventually("the server's own host has its certificate", || async {
        visit(server, HOST, trust).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn a_tunnel_gets_its_certificate_on_first_use_and_keeps_it() {
    let Some(mut pebble) = Pebble::with(Habits { slowness: 2, ..Habits::default() }).await else { return };
    let root = pebble.root().await;
    let trust = trusting(&root, &["http/1.1"]);
    let server = pebble.server().env("ACME_EMAIL", "ann@example.com").start().await;
    is_ready(&server, &trust).await;
    let origin = Origin::echo().await;
    let web = client(&server, &origin, "web");
    assert_eq!(web.url().await, format!("https://web.{HOST}:{}", pebble.tls_port));
    let host = format!("web.{HOST}");
    // Many at once are one order.
    let visits = (0..8).map(|_| is_served(&server, &host, &trust));
    futures_util::future::join_all(visits).await;
    assert_eq!(orders(&server), 1);
    // The key is nobody else's to read.
    let file = data(&server).join(format!("certificates/{host}.pem"));
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(file).unwrap());
    assert_eq!(mode & 0o777, 0o600);

    pebble.process.signal("KILL");
    pebble.process.exit().await;
    let home = server.home.clone();
    drop(server);
    let server = pebble.server().home(home).start().await;
    is_served(&server, HOST, &trust).await;
    visit(&server, &format!("wormhole.{HOST}"), &trust).await.unwrap();
    let web = client(&server, &origin, "web");
    web.url().await;
    is_served(&server, &host, &trust).await;
    assert_eq!(orders(&server), 1);
}

#[tokio::test]
async fn a_strangers_names_cost_nothing() {
    let Some(pebble) = Pebble::start().await else { return };
    let trust = trusting(&pebble.root().await, &[]);
    let server = pebble.server().start().await;
    is_ready(&server, &trust).await;
    for host in [&*format!("nobody.{HOST}"), &format!("a.b.{HOST}"), "example.org"] {
        let error = visit(&server, host, &trust).await.unwrap_err();
        assert!(error.to_string().contains("UnrecognisedName"), "{host}: {error}");
    }
    assert_eq!(orders(&server), 0);
}

#[tokio::test]
async fn a_week_has_its_number_of_new_names() {
    let Some(pebble) = Pebble::start().await else { return };
    let trust = trusting(&pebble.root().await, &[]);
    let server = pebble.server().env("ACME_WEEKLY", "1").start().await;
    is_ready(&server, &trust).await;
    let origin = Origin::echo().await;
    let (one, two) = (client(&server, &origin, "one"), client(&server, &origin, "two"));
    one.url().await;
    two.url().await;
    is_served(&server, &format!("one.{HOST}"), &trust).await;
    visit(&server, &format!("two.{HOST}"), &trust).await.unwrap_err();
    server.process.complains("ACME_WEEKLY").await;
    is_served(&server, &format!("one.{HOST}"), &trust).await;
}

#[tokio::test]
async fn what_is_refused_is_not_asked_for_again_and_again() {
    let Some(pebble) = Pebble::start().await else { return };
    let trust = trusting(&pebble.root().await, &[]);
    // Validations reach neither door.
    let [port, tls_port] = [free_port(), free_port()].map(|port| port.to_string());
    let server = pebble.server().env("PORT", port).env("TLS_PORT", tls_port).start().await;
    let origin = Origin::echo().await;
    let web = client(&server, &origin, "web");
    web.url().await;
    for _ in 0..5 {
        visit(&server, &format!("web.{HOST}"), &trust).await.unwrap_err();
    }
    assert_eq!(orders(&server), 1);
    // Both ways of proof were tried.
    let said = server.process.stderr().join("\n");
    for port in [pebble.port, pebble.tls_port] {
        assert!(said.contains(&format!(":{port}")), "{port}: {said}");
    }
}

#[tokio::test]
async fn where_tls_cannot_be_reached_http_is_the_proof() {
    let Some(pebble) = Pebble::start().await else { return };
    let trust = trusting(&pebble.root().await, &[]);
    let server =
        pebble.server().env("TLS_PORT", free_port().to_string()).env("HTTPS_REDIRECT", "true").start().await;
    is_ready(&server, &trust).await;
    let origin = Origin::echo().await;
    let web = client(&server, &origin, "web");
    web.url().await;
    is_served(&server, &format!("web.{HOST}"), &trust).await;
    // The local service never hears of it.
    assert!(origin.requests().iter().all(|seen| seen.target() == "/path"));
}

#[tokio::test]
async fn a_hook_gets_a_wildcard() {
    let Some(pebble) = Pebble::start().await else { return };
    let trust = trusting(&pebble.root().await, &[]);
    let folder = tempfile::tempdir().unwrap();
    let hook = folder.path().join("hook");
    let records = pebble.records;
    let script = format!(
        "#!/bin/sh\n\
         echo \"$1 $2\" >>{log}\n\
         case $1 in set) to=set-txt ;; *) to=clear-txt ;; esac\n\
         curl --silent --fail -d \"{{\\\"host\\\":\\\"$2.\\\",\\\"value\\\":\\\"$3\\\"}}\" http://{records}/$to\n",
        log = folder.path().join("log").display()
    );
    fs::write(&hook, script).unwrap();
    fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let server = pebble.server().env("ACME_DNS_HOOK", hook.display().to_string()).start().await;
    is_ready(&server, &trust).await;
    let origin = Origin::echo().await;
    let web = client(&server, &origin, "web");
    web.url().await;
    is_served(&server, &format!("web.{HOST}"), &trust).await;
    assert_eq!(orders(&server), 0);
    let log = fs::read_to_string(folder.path().join("log")).unwrap();
    let lines =
        |what: &str| log.lines().filter(|line| *line == format!("{what} _acme-challenge.{HOST}")).count();
    assert_eq!((lines("set"), lines("unset")), (2, 2), "{log}");
}

#[tokio::test]
async fn certificates_are_renewed_in_time_and_nobody_notices() {
    let Some(pebble) = Pebble::with(Habits { validity: 24, ..Habits::default() }).await else { return };
    let trust = trusting(&pebble.root().await, &[]);
    let server = pebble.server().start().await;
    is_ready(&server, &trust).await;
    let origin = Origin::echo().await;
    let web = client(&server, &origin, "web");
    web.url().await;
    let host = format!("web.{HOST}");
    let mut kept = visit(&server, &host, &trust).await.unwrap();
    let serial = |tls: &Tls| tls.get_ref().1.peer_certificates().unwrap()[0].to_vec();
    let first = serial(&kept);
    // The trust that is made anew does not go on with an older session.
    eventually("another certificate is in use", || async {
        let trust = trusting(&pebble.root().await, &[]);
        let visitor = visit(&server, &host, &trust).await.expect("there is always a valid one");
        serial(&visitor) != first
    })
    .await;
    let answer = get(&mut kept, &host).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(orders(&server), 1);
    // Two certificates, and each once more; the server's own may be due a third time already.
    assert!((3..=5).contains(&pebble.orders()), "{}", pebble.orders());
}

#[tokio::test]
async fn an_acme_server_that_is_away_is_waited_for() {
    let Some(mut pebble) = Pebble::start().await else { return };
    let trust = trusting(&pebble.root().await, &[]);
    pebble.process.signal("STOP");
    let server = pebble.server().start().await;
    let origin = Origin::echo().await;
    let web = client(&server, &origin, "web");
    web.url().await;
    // Meanwhile plain HTTP is served.
    let mut visitor = Visitor::connect(server.visitors).await;
    visitor.send(&format!("GET /path HTTP/1.1\r\nHost: web.{HOST}\r\nConnection: close\r\n\r\n")).await;
    assert_eq!(visitor.answer().await.status, 200);
    pebble.process.signal("CONT");
    is_ready(&server, &trust).await;
    is_served(&server, &format!("web.{HOST}"), &trust).await;
    pebble.process.signal("KILL");
    pebble.process.exit().await;
    // It does without: what is there is served, and what is not is refused at once.
    let two = client(&server, &origin, "two");
    two.url().await;
    visit(&server, &format!("two.{HOST}"), &trust).await.unwrap_err();
    is_served(&server, &format!("web.{HOST}"), &trust).await;
}

#[tokio::test]
async fn instances_get_each_certificate_once() {
    // Validations reach the second instance only, whoever has asked for them.
    let habits = Habits { doors: [127, 0, 0, 3].into(), slowness: 1, validity: 30 };
    let Some(pebble) = Pebble::with(habits).await else { return };
    let trust = trusting(&pebble.root().await, &["http/1.1"]);
    let net_port = free_port();
    let list = format!("static:127.0.0.2:{net_port},127.0.0.3:{net_port},127.0.0.4:{net_port}");
    let mut servers = Vec::new();
    for number in 0..3 {
        let starting = instance(number, list.clone()).env("NET_PORT", net_port.to_string());
        servers.push(pebble.used_by(starting).start().await);
    }
    for server in &servers {
        is_ready(server, &trust).await;
    }
    let file = |at: usize, host: &str| {
        fs::read_to_string(data(&servers[at]).join(format!("certificates/{host}.pem"))).unwrap()
    };
    assert_eq!(file(0, HOST), file(1, HOST));
    assert_eq!(file(0, HOST), file(2, HOST));

    let origin = Origin::echo().await;
    let web = client(&servers[0], &origin, "web");
    web.url().await;
    for server in &servers {
        is_served(server, &format!("web.{HOST}"), &trust).await;
    }
    // Another instance holds the name as well, and has its certificate at once.
    let target = origin.target();
    let pool = [&*target, "-s", "two", "--pool", "-k", "ann"];
    let one = Client::start(&servers[0], &pool);
    one.url().await;
    is_served(&servers[0], &format!("two.{HOST}"), &trust).await;
    let other = Client::start(&servers[2], &pool);
    other.url().await;
    is_served(&servers[2], &format!("two.{HOST}"), &trust).await;
    let [a, b, c] = [0, 1, 2].map(|at| orders(&servers[at]));
    assert_eq!((a, b, c), (2, 0, 0));
    let two = format!("two.{HOST}");
    assert_eq!(file(0, &two), file(2, &two));
    assert_eq!(pebble.orders(), 3);
    // Renewals, too, are one for all.
    let first = file(0, HOST);
    eventually("all have the same other one", || async {
        let [a, b, c] = [0, 1, 2].map(|at| file(at, HOST));
        a != first && a == b && b == c
    })
    .await;
    assert!((4..=6).contains(&pebble.orders()), "{}", pebble.orders());
}

#[tokio::test]
async fn an_own_authority_signs_for_every_host() {
    let server = Server::with().env("TLS", "self-signed").env("TLS_PORT", "0").start().await;
    let root = data(&server).join("self-signed-ca.pem");
    let trust = trusting(&root, &["http/1.1"]);
    let origin = Origin::echo().await;
    let port = server.tls.unwrap().port();
    let url = format!("wss://wormhole.localhost:{port}");
    let ca = root.display().to_string();
    let web = Client::towards(&url, &[&origin.target(), "-s", "web", "--ca", &ca, "--no-retry"]);
    assert_eq!(web.url().await, format!("https://web.localhost:{port}"));
    is_served(&server, "web.localhost", &trust).await;
    is_served(&server, "localhost", &trust).await;
    // A name that nobody has is a page and no riddle; a foreign host gets nothing.
    let mut nobody = visit(&server, "nobody.localhost", &trust).await.unwrap();
    assert!(get(&mut nobody, "nobody.localhost").await.starts_with("HTTP/1.1 404 "));
    visit(&server, "example.org", &trust).await.unwrap_err();

    // Started again, it is the same authority, and sessions go on.
    drop(web);
    let home = server.home.clone();
    drop(server);
    let server = Server::with().env("TLS", "self-signed").env("TLS_PORT", "0").home(home).start().await;
    let again = visit(&server, "localhost", &trust).await.unwrap();
    assert_eq!(again.get_ref().1.handshake_kind(), Some(HandshakeKind::Resumed));
    let anew = trusting(Path::new(&ca), &[]);
    is_served(&server, "localhost", &anew).await;
}

#[tokio::test]
async fn settings_that_do_not_fit_are_refused() {
    for (settings, said) in [
        (&[("TLS", "acme"), ("TLS_PORT", "0")][..], "`localhost`"),
        (&[("TLS", "acme"), ("ALLOWED_HOSTS", HOST)], "TLS_PORT"),
        (&[("TLS", "self-signed")], "TLS_PORT"),
        (&[("TLS", "self-signed"), ("TLS_PORT", "0"), ("TLS_CERTS", "/tmp")], "TLS_CERTS"),
        (&[("TLS", "letsencrypt"), ("TLS_PORT", "0")], "acme"),
        (&[("ACME_DIRECTORY", "http://ca.example.com")], "https://"),
        (&[("ACME_EMAIL", "ann")], "ann@example.com"),
    ] {
        let mut starting = Server::with();
        for (name, value) in settings {
            starting = starting.env(name, *value);
        }
        let mut process = starting.spawn();
        assert_eq!(process.exit().await, 2, "{settings:?}");
        let words = process.stderr().join("\n");
        assert!(words.contains(said), "{settings:?}: {words}");
    }
}
