//! The client's command line: targets, standard output, exit codes.

use std::fs;

use serde_json::Value;
use tests::{
    client::Client,
    eventually::eventually,
    origin::Origin,
    process::{Process, binary, home},
    server::Server,
    tls::Authority,
    visitor::{Visitor, get},
};
use tokio::net::{TcpListener, TcpSocket, UnixListener};

#[tokio::test]
async fn standard_output_is_the_url_alone() {
    let server = Server::start().await;
    let client = Client::start(&server, &["3000", "-s", "web"]);
    let url = client.url().await;
    assert_eq!(url, format!("http://web.localhost:{}", server.visitors.port()));
    eventually("people are told as well", || async {
        client.process.stderr().iter().any(|line| line.contains("localhost:3000"))
    })
    .await;
    assert_eq!(client.process.stdout(), [url]);
}

#[tokio::test]
async fn json_output_is_one_object_a_line() {
    let server = Server::start().await;
    let mut client =
        Client::start(&server, &["http", "3000", "-s", "web", "--output", "json", "--no-inspect"]);
    let first: Value = client.process.line("an event", |line| serde_json::from_str(line).ok()).await;
    assert_eq!((&first["event"], &first["name"]), (&"connected".into(), &"web".into()));
    assert!(first["url"].as_str().unwrap().starts_with("http://web.localhost:"));
    client.process.signal("TERM");
    assert_eq!(client.process.exit().await, 0);
    eventually("the last event", || async { client.process.stdout().len() == 2 }).await;
    let last: Value = serde_json::from_str(&client.process.stdout()[1]).unwrap();
    assert_eq!(last["event"], "stopped");
}

#[tokio::test]
async fn the_originals_flags_and_variables() {
    let origin = Origin::echo().await;
    let server = Server::start().await;
    let port = origin.address.port().to_string();
    let environment = [
        ("CTRL_HOST", "127.0.0.1".to_owned()),
        ("CTRL_PORT", server.clients.port().to_string()),
        ("CTRL_TLS_OFF", "1".to_owned()),
    ];
    let client = Client::with_environment(
        &["--port", &port, "--host", "127.0.0.1", "-s", "web", "-k", "ann"],
        &environment,
    );
    client.url().await;
    assert_eq!(get(server.visitors, "web", "/").await.status, 200);
}

#[tokio::test]
async fn localhost_is_both_loopback_addresses() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let Ok(listener) = TcpListener::bind(address).await else { continue };
        // Nobody listens there at the other address, nor does another test meanwhile.
        let port = listener.local_addr().unwrap().port();
        let other = if address.starts_with('[') { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
        let loopback = if address.starts_with('[') { "127.0.0.1" } else { "[::1]" };
        let taken = other.and_then(|other| {
            other.bind(format!("{loopback}:{port}").parse().unwrap())?;
            Ok(other)
        });
        let Ok(_taken) = taken else { continue };
        let origin = Origin::on(listener, |mut connection, _| async move {
            connection.answer("200 OK", b"here").await;
            Some(connection)
        });
        let server = Server::start().await;
        let client = Client::start(&server, &[&origin.address.port().to_string(), "-s", "web"]);
        client.url().await;
        assert_eq!(get(server.visitors, "web", "/").await.text(), "here", "{address}");
    }
}

#[tokio::test]
async fn a_folder_is_served_with_index_ranges_and_etag() {
    let folder = home();
    fs::create_dir(folder.path().join("sub")).unwrap();
    fs::write(folder.path().join("index.html"), "<p>index</p>").unwrap();
    fs::write(folder.path().join("sub/a b.txt"), "0123456789").unwrap();
    let server = Server::start().await;
    let target = format!("file://{}", folder.path().display());
    let client = Client::start(&server, &[&target, "-s", "web"]);
    client.url().await;
    let mut visitor = Visitor::connect(server.visitors).await;
    let index = visitor.get("web", "/").await;
    assert_eq!((index.status, index.text().as_str()), (200, "<p>index</p>"));
    assert!(index.field("content-type")[0].starts_with("text/html"));
    let etag = index.field("etag").remove(0);
    visitor.send(format!("GET / HTTP/1.1\r\nHost: web.localhost\r\nIf-None-Match: {etag}\r\n\r\n")).await;
    assert_eq!(visitor.answer().await.status, 304);
    visitor.send("GET /sub/a%20b.txt HTTP/1.1\r\nHost: web.localhost\r\nRange: bytes=2-4\r\n\r\n").await;
    let part = visitor.answer().await;
    assert_eq!((part.status, part.text().as_str()), (206, "234"));
    assert_eq!(visitor.get("web", "/none").await.status, 404);
    assert_eq!(visitor.get("web", "/..%2f..%2fetc/passwd").await.status, 404);
}

#[tokio::test]
async fn a_unix_socket_is_a_target() {
    let folder = home();
    let path = folder.path().join("app.sock");
    let listener = UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut head = vec![0; 4096];
            assert!(socket.read(&mut head).await.unwrap() > 0);
            socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nunix").await.unwrap();
        }
    });
    let server = Server::start().await;
    let client = Client::start(&server, &[&format!("unix:{}", path.display()), "-s", "web"]);
    client.url().await;
    assert_eq!(get(server.visitors, "web", "/").await.text(), "unix");
}

#[tokio::test]
async fn a_local_service_behind_tls() {
    let authority = Authority::new();
    authority.certify("service", &["localhost"]);
    let (key, certificate) = (authority.path("service.key"), authority.path("service.pem"));
    let port = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap().port()
    };
    let arguments =
        ["s_server", "-quiet", "-www", "-accept", &format!("127.0.0.1:{port}"), "-key"].map(str::to_owned);
    let arguments = arguments.into_iter().chain([
        key.display().to_string(),
        "-cert".into(),
        certificate.display().to_string(),
    ]);
    let _service = Process::start("openssl".into(), arguments, &[], home());
    eventually("the service listens", || async { TcpListener::bind(("127.0.0.1", port)).await.is_err() })
        .await;
    let server = Server::start().await;
    let target = format!("https://localhost:{port}");
    let trusting = Client::start(&server, &[&target, "-s", "any", "--insecure"]);
    trusting.url().await;
    assert_eq!(get(server.visitors, "any", "/").await.status, 200);
    let strict = Client::start(&server, &[&target, "-s", "strict"]);
    strict.url().await;
    assert_eq!(get(server.visitors, "strict", "/").await.status, 502, "its certificate is nobody's");
}

#[tokio::test]
async fn exit_codes() {
    let nobody = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("ws://{}", listener.local_addr().unwrap())
    };
    let down = nobody.trim_start_matches("ws://").to_owned();
    let server = Server::start().await;
    for (url, arguments, code) in [
        (&nobody, &["1", "--no-retry"][..], 5),
        (&nobody, &["1", "--retries", "1"], 5),
        (&server.url(), &["1", "-s", "wormhole"], 4),
        (&server.url(), &["no-target"], 6),
        (&"localhost:5000".to_owned(), &["1"], 6),
        (&server.url(), &[&down, "--require-target"], 7),
        (&server.url(), &["--no-such-flag"], 2),
        (&server.url(), &["http"], 2),
    ] {
        let mut client = Client::towards(url, arguments);
        assert_eq!(client.process.exit().await, code, "{arguments:?}");
        assert!(client.process.stdout().is_empty(), "{arguments:?}");
        assert!(!client.process.stderr().is_empty(), "{arguments:?}");
    }
}

#[tokio::test]
async fn set_auth_keeps_the_key_for_later_runs() {
    use std::os::unix::fs::PermissionsExt;
    let home = home();
    let server = Server::with().env("AUTH", "keys").start().await;
    let arguments = ["keys", "create", "--owner", "ann", "--name", "laptop"];
    let made = Process::start(binary("tunnelto_server"), arguments, &[], server.home.clone());
    let key = made.line("the key", |line| Some(line.to_owned())).await;
    let mut keeping = Process::start(binary("tunnelto"), ["set-auth", "-k", &key], &[], home.clone());
    assert_eq!(keeping.exit().await, 0);
    let file = home.path().join(".tunnelto/key.token");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let environment = [("TUNNELTO_SERVER", server.url())];
    let client = Process::start(binary("tunnelto"), ["3000", "-s", "web"], &environment, home.clone());
    client.line("the public URL", |line| line.starts_with("http").then_some(())).await;
}

#[tokio::test]
async fn the_configuration_file_is_read_and_checked() {
    let server = Server::start().await;
    let run = |text: String| {
        let home = home();
        let folder = home.path().join(".config");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("tunnelto.toml"), text).unwrap();
        Process::start(binary("tunnelto"), ["3000", "-s", "web"], &[], home)
    };
    let good = run(format!("server = \"{}\"\nkey = \"ann\"\n", server.url()));
    good.line("the public URL", |line| line.starts_with("http").then_some(())).await;
    for bad in ["sever = \"ws://a\"", "Server = \"ws://a\"", "server = 1", "server"] {
        let mut process = run(bad.to_owned());
        assert_eq!(process.exit().await, 6, "{bad}");
        let said = process.stderr().join("\n");
        assert!(said.contains("tunnelto.toml") && said.contains("line 1"), "{said}");
    }
}

#[tokio::test]
async fn a_closed_standard_output_does_not_end_the_tunnel() {
    let origin = Origin::echo().await;
    let server = Server::start().await;
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut child = tokio::process::Command::new(binary("tunnelto"))
        .args([&origin.target(), "-s", "web"])
        .env("TUNNELTO_SERVER", server.url())
        .stdout(writer)
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    eventually("it serves", || async { get(server.visitors, "web", "/").await.status == 200 }).await;
    assert!(child.try_wait().unwrap().is_none());
}

#[tokio::test]
async fn a_server_that_is_busy_is_tried_again_and_its_wish_respected() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    let mut client = Client::towards(&url, &["1", "--output", "json"]);
    let (mut socket, _) = listener.accept().await.unwrap();
    let mut head = vec![0; 4096];
    assert!(socket.read(&mut head).await.unwrap() > 0);
    socket.write_all(b"HTTP/1.1 503 Busy\r\nRetry-After: 77\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    let mut wait = None;
    eventually("it says when it tries again", || {
        wait = client
            .process
            .stderr()
            .iter()
            .find_map(|line| line.split("next try in ").nth(1).map(str::to_owned));
        let said = wait.is_some();
        async move { said }
    })
    .await;
    let seconds: f64 = wait.unwrap().trim_end_matches(" s").parse().unwrap();
    assert!((77.0..97.0).contains(&seconds), "{seconds}");
    assert!(client.process.stdout().is_empty(), "the first event is `connected`");
    assert!(!client.process.has_exited());
}
