//! Many instances: any of them takes a visitor, the one with the tunnel's client serves it.

use std::{
    net::SocketAddr,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use serde_json::json;
use tests::{
    cluster::{Cluster, MASTER_KEY, Members, instance},
    eventually::{eventually, soon},
    http2::{Asker, request_to},
    origin::Origin,
    process::{Process, binary},
    visitor::{Visitor, get},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, sink},
    net::TcpListener,
    task::JoinSet,
};
use tunnelto_lib::name::Label;
use tunnelto_server::{
    network::hop::{Bringing, Content, Kind, Visit},
    sign::{MasterKeys, Purpose},
};

const NAMES: [&str; 3] = ["one", "two", "three"];

/// Three instances with a client each; every origin says which it is and who it thinks the visitor is.
async fn spread() -> (Cluster, Vec<(tests::client::Client, Origin)>) {
    let cluster = Cluster::start(3).await;
    let mut clients = Vec::new();
    for (at, name) in NAMES.into_iter().enumerate() {
        let origin = Origin::start(move |mut connection, request| async move {
            let visitor = request.field("x-forwarded-for").unwrap_or_default().to_owned();
            let said = format!("{name} {} {visitor} ", request.target());
            connection.answer("200 OK", &[said.into_bytes(), request.body].concat()).await;
            Some(connection)
        })
        .await;
        clients.push((cluster.client(at, &origin.target(), name).await, origin));
    }
    (cluster, clients)
}

#[tokio::test]
async fn every_instance_reaches_every_tunnel_and_tells_who_the_visitor_is() {
    let (cluster, _clients) = spread().await;
    for server in &cluster.servers {
        for name in NAMES {
            let mut visitor = Visitor::connect_from("127.0.0.9", server.visitors).await;
            for round in 0..3 {
                let answer = visitor.get(name, &format!("/{round}")).await;
                assert_eq!(
                    answer.text(),
                    format!("{name} /{round} 127.0.0.9 "),
                    "through {}",
                    server.visitors
                );
            }
        }
    }
    assert!(cluster.servers[0].metric(r#"tunnelto_hops_total{result="taken"}"#).await >= 2.0);
    assert!(cluster.servers[0].metric(r#"tunnelto_hops_total{result="arrived"}"#).await >= 2.0);
    assert!(cluster.servers[0].metric(r#"tunnelto_lookups_total{result="peer"}"#).await >= 2.0);
}

#[tokio::test]
async fn a_hundred_mixed_hosts_on_one_kept_connection() {
    let (cluster, _clients) = spread().await;
    let mut visitors = JoinSet::new();
    for server in &cluster.servers {
        let door = server.visitors;
        visitors.spawn(async move {
            let mut visitor = Visitor::connect(door).await;
            for at in 0..100 {
                let name = NAMES[at % NAMES.len()];
                let body = vec![b'x'; at * 321];
                let head = format!(
                    "PUT /{at} HTTP/1.1\r\nHost: {name}.localhost\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                );
                visitor.send([head.as_bytes(), &body].concat()).await;
                let wanted = [format!("{name} /{at} 127.0.0.1 ").into_bytes(), body].concat();
                assert!(visitor.answer().await.body == wanted, "request {at} through {door}");
            }
        });
    }
    while let Some(visitor) = visitors.join_next().await {
        visitor.unwrap();
    }
}

#[tokio::test]
async fn requests_sent_ahead_go_where_each_belongs() {
    let (cluster, _clients) = spread().await;
    let mut visitor = Visitor::connect(cluster.servers[0].visitors).await;
    let ahead: String = (0..30)
        .map(|at| {
            let name = NAMES[(at + 1) % NAMES.len()];
            format!("POST /{at} HTTP/1.1\r\nHost: {name}.localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
        })
        .collect();
    visitor.send(ahead).await;
    for at in 0..30 {
        let wanted = format!("{} /{at} 127.0.0.1 abc", NAMES[(at + 1) % NAMES.len()]);
        assert_eq!(visitor.answer().await.text(), wanted);
    }
}

#[tokio::test]
async fn one_http_2_connection_reaches_tunnels_of_all_instances() {
    let (cluster, _clients) = spread().await;
    let asker = Asker::connect(&cluster.servers[0]).await;
    let mut asks = JoinSet::new();
    for at in 0..60 {
        let (asker, name) = (asker.clone(), NAMES[at % NAMES.len()]);
        asks.spawn(async move {
            let body = vec![b'x'; at * 5_000];
            let got = asker.ask(request_to(name, "POST", &format!("/{at}")), Some(&body)).await;
            let wanted = [format!("{name} /{at} 127.0.0.1 ").into_bytes(), body].concat();
            assert!(got.body == wanted, "request {at}");
        });
    }
    while let Some(ask) = asks.join_next().await {
        ask.unwrap();
    }
}

#[tokio::test]
async fn large_bodies_cross_whole_both_ways() {
    let (cluster, _clients) = spread().await;
    let body: Bytes = (0..64 << 20).map(|at: u32| (at % 251) as u8).collect::<Vec<_>>().into();
    let door = cluster.servers[0].visitors;
    // Piped, and as the second request of a connection that is known here.
    for first in [None, Some("one")] {
        let mut visitor = Visitor::connect(door).await;
        if let Some(name) = first {
            visitor.get(name, "/").await;
        }
        let length = body.len();
        visitor
            .send(format!("PUT /big HTTP/1.1\r\nHost: two.localhost\r\nContent-Length: {length}\r\n\r\n"))
            .await;
        soon("the upload is taken", visitor.socket.write_all(&body)).await.unwrap();
        let answer = visitor.answer().await.body;
        assert!(answer == [b"two /big 127.0.0.1 ", &body[..]].concat(), "first {first:?}");
    }
}

#[tokio::test]
async fn upgraded_connections_cross_with_half_close() {
    let cluster = Cluster::start(2).await;
    let origin = Origin::start(|mut connection, request| async move {
        if request.field("upgrade").is_none() {
            connection.answer("200 OK", b"").await;
            return Some(connection);
        }
        connection.upgrade_and_count().await;
        None
    })
    .await;
    let _client = cluster.client(1, &origin.target(), "web").await;
    let _other = cluster.client(0, &origin.target(), "here").await;
    for first in [None, Some("here")] {
        let mut visitor = Visitor::connect(cluster.servers[0].visitors).await;
        if let Some(name) = first {
            visitor.get(name, "/").await;
        }
        visitor
            .send("GET / HTTP/1.1\r\nHost: web.localhost\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n")
            .await;
        assert!(visitor.head().await.contains("101"), "first {first:?}");
        visitor.send(vec![7; 3_000_000]).await;
        visitor.socket.shutdown().await.unwrap();
        assert_eq!(visitor.rest().await, b"got 3000000", "first {first:?}");
    }
}

#[tokio::test]
async fn an_instance_answers_for_what_it_holds_itself() {
    let (cluster, _clients) = spread().await;
    for (at, server) in cluster.servers.iter().enumerate() {
        for (owner, name) in NAMES.iter().enumerate() {
            let mut asker = Visitor::connect(server.peers).await;
            asker.send(format!("GET /?host={name} HTTP/1.1\r\nHost: x\r\n\r\n")).await;
            let text = asker.answer().await.text();
            match at == owner {
                true => assert!(text.starts_with(r#"{"client_id":""#) && !text.contains("session"), "{text}"),
                false => assert_eq!(text, r#"{"client_id":null}"#),
            }
        }
    }
}

#[tokio::test]
async fn a_name_that_nobody_has_is_not_found() {
    let (cluster, _clients) = spread().await;
    let answer = get(cluster.servers[0].visitors, "nobody", "/").await;
    assert_eq!((answer.status, answer.field("tunnelto-error")), (404, vec!["tunnel_not_found".to_owned()]));
    assert_eq!(cluster.servers[0].metric(r#"tunnelto_lookups_total{result="not_found"}"#).await, 1.0);
}

#[tokio::test]
async fn a_client_that_has_just_come_is_found_though_it_was_not_a_moment_ago() {
    let cluster = Cluster::start(2).await;
    let origin = Origin::echo().await;
    for round in 0..5 {
        let name = format!("fresh{round}");
        assert_eq!(get(cluster.servers[0].visitors, &name, "/").await.status, 404);
        let _client = cluster.client(1, &origin.target(), &name).await;
        eventually("the no is forgotten with the next news", || async {
            get(cluster.servers[0].visitors, &name, "/").await.status == 200
        })
        .await;
        // Without a no to remember it is found at once.
        let other = format!("other{round}");
        let _client = cluster.client(1, &origin.target(), &other).await;
        assert_eq!(get(cluster.servers[0].visitors, &other, "/").await.status, 200);
    }
}

#[tokio::test]
async fn while_an_instance_is_silent_nobody_is_told_that_a_name_does_not_exist() {
    let cluster = Cluster::start(3).await;
    let origin = Origin::echo().await;
    let _client = cluster.client(1, &origin.target(), "web").await;
    cluster.servers[2].process.signal("STOP");
    let answer = get(cluster.servers[0].visitors, "nobody", "/").await;
    assert_eq!((answer.status, answer.field("tunnelto-error")), (503, vec!["locating_failed".to_owned()]));
    assert_eq!(answer.field("retry-after").len(), 1);
    assert_eq!(get(cluster.servers[0].visitors, "web", "/").await.status, 200, "the others are still found");
    cluster.servers[2].process.signal("CONT");
    eventually("it answers again", || async {
        get(cluster.servers[0].visitors, "nobody", "/").await.status == 404
    })
    .await;
}

#[tokio::test]
async fn an_instance_that_does_not_listen_any_more_has_nothing() {
    let mut cluster = Cluster::start(3).await;
    let mut gone = cluster.servers.pop().unwrap();
    gone.process.signal("KILL");
    gone.process.exit().await;
    assert_eq!(get(cluster.servers[0].visitors, "nobody", "/").await.status, 404);
}

#[tokio::test]
async fn without_the_list_of_instances_nobody_is_told_that_a_name_does_not_exist() {
    let server = instance(0, "static:/nowhere/at/all".into()).start().await;
    let answer = get(server.visitors, "web", "/").await;
    assert_eq!(answer.field("tunnelto-error"), ["locating_failed"]);
    assert_eq!(server.metric(r#"tunnelto_lookups_total{result="resolver"}"#).await, 1.0);
    let complaint = server.process.stderr().join("\n");
    assert!(complaint.contains("/nowhere/at/all"), "{complaint}");
}

#[tokio::test]
async fn instances_with_different_master_keys_say_so() {
    let members = Members::none();
    let ours = instance(0, members.setting()).start().await;
    let other = instance(1, members.setting()).env("MASTER_SIG_KEY", "ab".repeat(32)).start().await;
    members.are([ours.peers, other.peers]);
    eventually("both complain", || async {
        [&ours, &other].iter().all(|server| {
            let said = server.process.stderr().join("\n");
            said.contains("MASTER_SIG_KEY must be the same")
        })
    })
    .await;
    let answer = get(ours.visitors, "web", "/").await;
    assert_eq!(answer.field("tunnelto-error"), ["locating_failed"]);
    assert!(ours.metric(r#"tunnelto_lookups_total{result="request"}"#).await >= 1.0);
}

#[tokio::test]
async fn a_cluster_without_a_master_key_does_not_start() {
    let mut process = instance(0, "static:127.0.0.3".into()).env("MASTER_SIG_KEY", "").spawn();
    assert_ne!(process.exit().await, 0);
    let said = process.stderr().join("\n");
    assert!(said.contains("openssl rand -hex 32"), "{said}");
}

#[tokio::test]
async fn a_visitor_who_pretends_to_be_brought_is_not_believed() {
    let (cluster, _clients) = spread().await;
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    header.extend([9, 9, 9, 9, 127, 0, 0, 2, 0, 80, 0, 80]);
    header.extend(b"GET / HTTP/1.1\r\nHost: one.localhost\r\n\r\n");
    let mut visitor = Visitor::connect(cluster.servers[0].visitors).await;
    visitor.send(header).await;
    let answer = visitor.answer().await;
    assert_eq!((answer.status, answer.field("tunnelto-error")), (400, vec!["bad_request".to_owned()]));
    assert!(visitor.rest().await.is_empty());
    let mut visitor = Visitor::connect(cluster.servers[0].visitors).await;
    visitor.send("PROXY TCP4 9.9.9.9 1.1.1.1 1 1\r\nGET / HTTP/1.1\r\nHost: one.localhost\r\n\r\n").await;
    assert_eq!(visitor.answer().await.status, 400);
}

/// `check` with an instance's own settings: its exit code and what it prints.
async fn check(server: &tests::server::Server, cluster: &Cluster, arguments: &[&str]) -> (i32, String) {
    let environment = [
        ("BIND", server.visitors.ip().to_string()),
        ("PORT", server.visitors.port().to_string()),
        ("CTRL_PORT", server.clients.port().to_string()),
        ("NET_PORT", server.peers.port().to_string()),
        ("MASTER_SIG_KEY", MASTER_KEY.to_owned()),
        ("CLUSTER", cluster.members().setting()),
    ];
    let arguments = [&["check"], arguments].concat();
    let mut process = Process::start(binary("tunnelto_server"), arguments, &environment, server.home.clone());
    let code = process.exit().await;
    (code, process.stdout().join("\n"))
}

#[tokio::test]
async fn check_walks_the_way_and_names_what_is_wrong() {
    let (mut cluster, _clients) = spread().await;
    let (code, said) = check(&cluster.servers[0], &cluster, &["--host", "two"]).await;
    assert!(code == 0 && !said.contains("FAIL"), "{said}");
    for wanted in ["PORT", "discovery", "is instance instance-1", "its PORT", "`two` is there, of client"] {
        assert!(said.contains(wanted), "{wanted} in {said}");
    }
    let (code, said) = check(&cluster.servers[0], &cluster, &["--host", "nobody"]).await;
    assert!(code == 1 && said.contains("no instance that answers has `nobody`"), "{said}");
    let gone = &mut cluster.servers[2];
    let at = gone.peers;
    gone.process.signal("KILL");
    gone.process.exit().await;
    let (code, said) = check(&cluster.servers[0], &cluster, &[]).await;
    assert!(code == 1 && said.contains(&format!("FAIL  peer       nobody listens at {at}")), "{said}");
}

#[tokio::test]
async fn what_must_not_be_repeated_is_sent_to_a_silent_instance_once() {
    let (cluster, clients) = spread().await;
    let door = cluster.servers[0].visitors;
    assert_eq!(get(door, "two", "/before").await.status, 200);
    cluster.servers[1].process.signal("STOP");
    let post = "POST /once HTTP/1.1\r\nHost: two.localhost\r\nContent-Length: 4\r\n\r\nonce";
    let mut visitors = Vec::new();
    // As a whole connection, and as a later request of one that is known here.
    for first in [None, Some("one")] {
        let mut visitor = Visitor::connect(door).await;
        if let Some(name) = first {
            visitor.get(name, "/").await;
        }
        visitor.send(post).await;
        visitors.push(visitor);
    }
    for visitor in &mut visitors {
        let answer = visitor.answer().await;
        assert!(matches!(answer.status, 502 | 503), "{answer:?}");
    }
    cluster.servers[1].process.signal("CONT");
    eventually("it goes on", || async { get(door, "two", "/after").await.status == 200 }).await;
    let posts = clients[1].1.requests().iter().filter(|request| request.line().contains("/once")).count();
    assert!(posts <= 2, "{posts} of 2 that were sent");
}

#[tokio::test]
async fn a_service_that_is_down_is_said_so_through_other_instances() {
    let cluster = Cluster::start(2).await;
    let client = cluster.client(1, "127.0.0.1:1", "down").await;
    for server in &cluster.servers {
        let answer = get(server.visitors, "down", "/").await;
        assert_eq!(answer.field("tunnelto-error"), ["tunnel_refused"], "HTTP/1 through {}", server.visitors);
        let asker = Asker::connect(server).await;
        let got = asker.ask(request_to("down", "GET", "/"), None).await;
        assert_eq!(
            got.response.headers()["tunnelto-error"],
            "tunnel_refused",
            "HTTP/2 through {}",
            server.visitors
        );
    }
    drop(client);
}

/// A question with this signed part.
async fn asks(at: SocketAddr, path: &str, signed: Option<String>) -> (u16, String) {
    let field = signed.map(|signed| format!("tunnelto-question: {signed}\r\n")).unwrap_or_default();
    let mut asker = Visitor::connect(at).await;
    asker.send(format!("GET {path} HTTP/1.1\r\nHost: x\r\n{field}\r\n")).await;
    let answer = asker.answer().await;
    (answer.status, answer.text())
}

#[tokio::test]
async fn questions_are_answered_to_the_cluster_alone() {
    let (cluster, _clients) = spread().await;
    let at = cluster.servers[0].peers;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let seal = |key: &str, path: &str, time: u64| {
        let bytes = (0..64).step_by(2).map(|at| u8::from_str_radix(&key[at..at + 2], 16).unwrap());
        let keys = MasterKeys::new(bytes.collect::<Vec<_>>().try_into().unwrap(), None);
        let question = json!({ "path": path, "at": time, "nonce": 7, "from": "test" });
        Some(keys.seal(Purpose::PeerQuestion, &question))
    };
    let other_key = "ab".repeat(32);
    let (news, name) = ("/claims?since=0", "/?host=one");
    let (status, text) = asks(at, news, seal(MASTER_KEY, news, now)).await;
    assert!(status == 200 && text.contains("instance-0") && text.contains("\"one\""), "{text}");
    let (status, text) = asks(at, name, seal(MASTER_KEY, name, now)).await;
    assert!(status == 200 && text.contains("\"session\"") && text.contains("\"since\""), "{text}");
    let refused = [
        (news, None, "must be signed"),
        (news, seal(&other_key, news, now), "MASTER_SIG_KEY must be the same"),
        (name, seal(&other_key, name, now), "MASTER_SIG_KEY must be the same"),
        (name, seal(MASTER_KEY, name, now - 120_000), "behind mine"),
        (name, seal(MASTER_KEY, name, now + 120_000), "ahead of mine"),
        (name, seal(MASTER_KEY, news, now), "for another path"),
        (name, Some("nonsense".to_owned()), "not ours"),
    ];
    for (path, signed, why) in refused {
        let (status, text) = asks(at, path, signed).await;
        assert!(status == 401 && text.contains(why), "{path}: {status} {text}, not {why}");
    }
}

#[tokio::test]
async fn hops_are_taken_from_the_cluster_alone() {
    let (cluster, _clients) = spread().await;
    let door = cluster.servers[0].visitors;
    let bring = async |key: u8, to: &str, name: &str| {
        let keys = match key {
            0 => MasterKeys::new(std::array::from_fn(|at| at as u8), None),
            other => MasterKeys::new([other; 32], None),
        };
        let name = Label::parse(name).unwrap();
        let visitor = ([9, 9, 9, 9], 9).into();
        let visit = Visit { kind: Kind::Request, name: &name, visitor, content: Content::Plain };
        let bringing = Bringing::new(&visit, "test", to);
        let header = bringing.header(&keys, door).unwrap();
        let request = format!("GET /hop HTTP/1.1\r\nHost: {name}.localhost\r\nConnection: close\r\n\r\n");
        let mut visitor = Visitor::connect(door).await;
        visitor.send([&header, request.as_bytes()].concat()).await;
        String::from_utf8_lossy(&visitor.rest().await).into_owned()
    };
    let taken = bring(0, "instance-0", "one").await;
    assert!(taken.starts_with("+HTTP/1.1 200 ") && taken.ends_with("one /hop 9.9.9.9 "), "{taken}");
    assert_eq!(bring(0, "instance-0", "two").await, "-", "it is on another instance");
    for (key, to) in [(1, "instance-0"), (0, "instance-1")] {
        let refused = bring(key, to, "one").await;
        assert!(refused.starts_with("HTTP/1.1 400 "), "{refused}");
    }
    assert_eq!(cluster.servers[0].metric(r#"tunnelto_hops_total{result="rejected"}"#).await, 2.0);
}

/// Byte `at` of a body that is never held as a whole.
fn pattern(at: u64, buffer: &mut [u8]) {
    for (offset, byte) in buffer.iter_mut().enumerate() {
        *byte = ((at + offset as u64) % 251) as u8;
    }
}

/// Reads `length` bytes of the pattern and passes them on as they come.
async fn read_pattern(from: &mut (impl AsyncRead + Unpin), length: u64, to: &mut (impl AsyncWrite + Unpin)) {
    let (mut at, mut read, mut wanted) = (0, vec![0; 256 * 1024], vec![0; 256 * 1024]);
    while at < length {
        let most = read.len().min((length - at) as usize);
        let count = soon("bytes come", from.read(&mut read[..most])).await.unwrap();
        assert!(count > 0, "it ended after {at}");
        pattern(at, &mut wanted[..count]);
        assert!(read[..count] == wanted[..count], "wrong bytes from {at} on");
        to.write_all(&read[..count]).await.unwrap();
        at += count as u64;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gibibyte_goes_up_and_comes_down_at_once_in_constant_memory() {
    const LENGTH: u64 = 1 << 30;
    let cluster = Cluster::start(2).await;
    // Sends back what it reads while it reads it.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = listener.local_addr().unwrap().to_string();
    let service = tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        let (from, mut to) = socket.into_split();
        let mut from = BufReader::new(from);
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            from.read_line(&mut line).await.unwrap();
        }
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n");
        to.write_all(head.as_bytes()).await.unwrap();
        read_pattern(&mut from, LENGTH, &mut to).await;
        // Until the visitor has all of it.
        let _ = from.read_u8().await;
    });
    let _client = cluster.client(1, &target, "web").await;
    let visitor = Visitor::connect(cluster.servers[0].visitors).await;
    let (mut from, mut to) = visitor.socket.into_split();
    let sending = tokio::spawn(async move {
        let head = format!("POST / HTTP/1.1\r\nHost: web.localhost\r\nContent-Length: {LENGTH}\r\n\r\n");
        to.write_all(head.as_bytes()).await.unwrap();
        let (mut at, mut buffer) = (0, vec![0; 256 * 1024]);
        while at < LENGTH {
            pattern(at, &mut buffer);
            soon("bytes are taken", to.write_all(&buffer)).await.unwrap();
            at += buffer.len() as u64;
        }
        to
    });
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(soon("a head comes", from.read_u8()).await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&head));
    read_pattern(&mut from, LENGTH, &mut sink()).await;
    drop(sending.await.unwrap());
    drop(from);
    soon("the service ends", service).await.unwrap();
    for server in &cluster.servers {
        let peak = server.process.peak_memory();
        assert!(peak < 64 * 1024, "{peak} KiB");
    }
}

#[tokio::test]
async fn bytes_between_instances_keep_the_pace_that_is_set_and_none_is_lost() {
    let cluster = Cluster::with(2, |starting, _| starting.env("PEER_RATE", "4M")).await;
    let origin = Origin::echo().await;
    let _client = cluster.client(1, &origin.target(), "web").await;
    let _here = cluster.client(0, &origin.target(), "here").await;
    let began = Instant::now();
    let mut visitors = JoinSet::new();
    for first in [None, Some("here"), None] {
        let door = cluster.servers[0].visitors;
        visitors.spawn(async move {
            let mut visitor = Visitor::connect(door).await;
            if let Some(name) = first {
                visitor.get(name, "/").await;
            }
            let body = vec![b'x'; 1 << 20];
            let head =
                format!("POST / HTTP/1.1\r\nHost: web.localhost\r\nContent-Length: {}\r\n\r\n", body.len());
            visitor.send([head.as_bytes(), &body].concat()).await;
            assert!(visitor.answer().await.body.ends_with(&body));
        });
    }
    while let Some(done) = visitors.join_next().await {
        done.unwrap();
    }
    // 6 MiB in all. It may take longer on a busy machine, but never less than what the pace allows.
    assert!(began.elapsed() >= Duration::from_millis(1250), "{:?}", began.elapsed());
}
