//! Who may open tunnels.

use tests::{
    client::Client,
    eventually::eventually,
    origin::Origin,
    process::{Process, binary},
    server::Server,
    visitor::get,
    wormhole::{ScriptedClient, guest_hello, published_hello},
};

async fn create_key(server: &Server, owner: &str) -> String {
    let arguments = ["keys", "create", "--owner", owner, "--name", "laptop"];
    let mut process = Process::start(binary("tunnelto_server"), arguments, &[], server.home.clone());
    assert_eq!(process.exit().await, 0);
    let key = process.line("the key", |line| Some(line.to_owned())).await;
    assert_eq!(process.stdout().len(), 1, "the key alone");
    key
}

#[tokio::test]
async fn keys_are_signed_by_the_server_and_by_nobody_else() {
    let server = Server::with().env("AUTH", "keys").start().await;
    let ours = create_key(&server, "ann").await;
    let (_, answer) = ScriptedClient::connect(&server, &guest_hello(None, None)).await;
    assert_eq!(answer, "auth_failed");
    let (_, answer) = ScriptedClient::connect(&server, &published_hello("hunter2", None)).await;
    assert_eq!(answer, "auth_failed");
    let foreign = create_key(&Server::start().await, "ann").await;
    let (_, answer) = ScriptedClient::connect(&server, &published_hello(&foreign, None)).await;
    assert_eq!(answer, "auth_failed");
    let (_kept, answer) = ScriptedClient::connect(&server, &published_hello(&ours, Some("web"))).await;
    assert_eq!(answer["success"]["sub_domain"], "web");
}

#[tokio::test]
async fn our_client_without_a_good_key_ends_with_code_3() {
    let server = Server::with().env("AUTH", "keys").start().await;
    for arguments in [vec!["1"], vec!["1", "-k", "hunter2"]] {
        let mut client = Client::start(&server, &arguments);
        assert_eq!(client.process.exit().await, 3);
        assert!(client.process.stderr()[0].contains("set-auth"), "it says what helps");
    }
}

#[tokio::test]
async fn two_keys_of_one_owner_share_its_names() {
    let server = Server::with().env("AUTH", "keys").start().await;
    let (one, two) = (create_key(&server, "ann").await, create_key(&server, "ann").await);
    let bob = create_key(&server, "bob").await;
    let origin = Origin::echo().await;
    let target = origin.target();
    let first = Client::start(&server, &[&target, "-s", "web", "-k", &one]);
    first.url().await;
    let mut other = Client::start(&server, &[&target, "-s", "web", "-k", &bob, "--takeover"]);
    assert_eq!(other.process.exit().await, 4, "nobody takes over another owner's name");
    let second = Client::start(&server, &[&target, "-s", "web", "-k", &two, "--takeover"]);
    second.url().await;
    assert_eq!(get(server.visitors, "web", "/").await.status, 200);
}

#[tokio::test]
async fn the_first_start_makes_a_key_and_shows_it_once() {
    let server = Server::with().env("ALLOWED_HOSTS", "tunnel.test").start().await;
    let mut key = None;
    eventually("a key is shown", || {
        key = server
            .process
            .stderr()
            .iter()
            .map(|line| line.trim().to_owned())
            .find(|word| word.starts_with("tto_"));
        let found = key.is_some();
        async move { found }
    })
    .await;
    let (_kept, answer) =
        ScriptedClient::connect(&server, &published_hello(&key.unwrap(), Some("web"))).await;
    assert_eq!(answer["success"]["hostname"], "web.tunnel.test");
    let again = server.restart("TERM").await;
    assert!(!again.process.stderr().iter().any(|line| line.contains("tto_")), "shown once");
}

#[tokio::test]
async fn secrets_are_private_files_and_never_logged() {
    use std::os::unix::fs::PermissionsExt;
    let server = Server::with().env("RUST_LOG", "trace").start().await;
    let origin = Origin::echo().await;
    let client = Client::start(&server, &[&origin.target(), "-s", "web", "-k", "client-secret", "-vvv"]);
    client.url().await;
    assert_eq!(get(server.visitors, "web", "/").await.status, 200);
    let key = walk(server.home.path()).into_iter().find(|path| path.ends_with("master.key")).unwrap();
    assert_eq!(key.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let master = std::fs::read_to_string(key).unwrap();
    let mut printed = String::new();
    eventually("both have said something", || {
        let all =
            [&server.process, &client.process].map(|process| [process.stdout(), process.stderr()].concat());
        printed = all.concat().join("\n");
        let is_all = printed.matches("tunnel open").count() == 2 && printed.contains("access");
        async move { is_all }
    })
    .await;
    assert!(!printed.contains(master.trim()) && !printed.contains("client-secret"));
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

#[tokio::test]
async fn wrong_settings_are_refused_whole_and_by_name() {
    for (name, value, wanted) in [
        ("PORT", "http", "--port"),
        ("PORT", "", "--port"),
        ("ALLOWED_HOSTS", "https://a.b", "--allowed-hosts"),
        ("MASTER_SIG_KEY", "", "--master-sig-key"),
        ("MASTER_SIG_KEY", "abc", "64 hexadecimal digits"),
        ("MASTER_SIG_KEY", "hush-hush", "--master-sig-key"),
        ("CLUSTER", "redis://u:hush-hush@host/nonsense", "--cluster"),
        ("CLUSTER", "etcd://u:hush-hush@host", "--cluster"),
        ("CLUSTER", "gossip:x", "dns:NAME"),
        ("LEASE", "1s", "--lease"),
        ("PEER_RATE", "fast", "--peer-rate"),
        ("GRACE", "10", "--grace"),
        ("AUTH", "maybe", "--auth"),
        ("TUNNEL_HOST", "other.test", "ALLOWED_HOSTS"),
        ("BLOCKED_IPS", "10.0.0.0/99", "--blocked-ips"),
    ] {
        let mut process = Server::with().env(name, value).spawn();
        assert_eq!(process.exit().await, 2, "{name}={value}");
        let said = process.stderr().join("\n");
        assert!(said.contains(wanted), "{name}={value}: {said}");
        assert!(!said.contains("hush-hush"), "a secret was printed: {said}");
        assert!(process.stdout().is_empty(), "no door was opened");
    }
}
