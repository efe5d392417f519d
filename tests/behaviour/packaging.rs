//! What is shipped around the binaries fits them.

use std::{fs, path::PathBuf, process::Command, time::Duration};

use tests::{
    env,
    eventually::eventually,
    part,
    process::{Process, binary, home, workspace},
    server::Server,
    visitor::{Visitor, get},
};
use tokio::net::TcpListener;

fn read(path: &str) -> String {
    fs::read_to_string(workspace().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_images_sources_exist_and_its_commands_are_the_binarys() {
    let dockerfile = read("Dockerfile");
    let copies = dockerfile
        .lines()
        .filter_map(|line| line.strip_prefix("COPY "))
        .filter(|line| !line.starts_with("--"));
    for copy in copies {
        let mut words: Vec<_> = copy.split(' ').collect();
        words.pop();
        for source in words {
            assert!(workspace().join(source).exists(), "COPY {source}");
        }
    }
    let members = read("Cargo.toml");
    for member in ["tunnelto_lib", "tunnelto_server", "tunnelto_client", "tests"] {
        assert!(
            members.contains(&format!("\"{member}\""))
                && dockerfile.contains(&format!("COPY {member} {member}"))
        );
    }
    let healthcheck = dockerfile.lines().find(|line| line.starts_with("HEALTHCHECK")).unwrap();
    assert!(
        healthcheck.contains("[\"/usr/local/bin/tunnelto_server\", \"healthcheck\"]"),
        "no shell is needed"
    );
}

#[tokio::test]
async fn the_health_check_tells_well_from_unwell() {
    let server = Server::start().await;
    let check = |port: u16| {
        let environment = [("CTRL_PORT", port.to_string())];
        Process::start(binary("tunnelto_server"), ["healthcheck"], &environment, home())
    };
    assert_eq!(check(server.clients.port()).exit().await, 0);
    let nobody = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap().port()
    };
    assert_eq!(check(nobody).exit().await, 1);
}

#[test]
fn deployment_files_name_settings_that_exist() {
    let page = read("docs/configuration.md");
    let known = |name: &str| page.contains(&format!("| `{name}` |"));
    let fly = read("fly.toml");
    let env = fly.split("[env]").nth(1).unwrap().split("\n[").next().unwrap();
    let compose = read("deploy/compose.yaml");
    let environment = compose.split("environment:").nth(1).unwrap().split("ports:").next().unwrap();
    let names = |text: &str, mark: char| {
        let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
        lines.filter_map(|line| Some(line.split_once(mark)?.0.trim().to_owned())).collect::<Vec<_>>()
    };
    let all = [names(env, '='), names(environment, ':')].concat();
    assert!(all.len() > 5, "{all:?}");
    for name in all {
        assert!(known(&name), "{name} is no setting");
    }
}

/// `make demo`, as a newcomer runs it: a URL that works, nothing left behind.
#[tokio::test]
async fn the_demo() {
    let holder = TcpListener::bind("127.0.0.1:8080").await;
    let mut demo = demo("demo");
    let url = demo
        .line("the URL", |line| {
            line.trim().starts_with("http://demo.localhost:").then(|| line.trim().to_owned())
        })
        .await;
    let port: u16 = url.rsplit(':').next().unwrap().parse().unwrap();
    if holder.is_ok() {
        assert_ne!(port, 8080);
        assert!(
            demo.stderr().iter().any(|line| line.contains("port 8080 is taken, trying 8081")),
            "{:?}",
            demo.stderr()
        );
    }
    let door = ([127, 0, 0, 1], port).into();
    let answer = get(door, "demo", "/").await;
    assert_eq!(answer.status, 200);
    assert!(answer.text().contains("It works."));
    assert_eq!(Visitor::connect(door).await.get("demo", "/style.css").await.status, 200);
    let children = children_of(demo.id());
    assert_eq!(children.len(), 2, "a server and a client");
    demo.signal("INT");
    assert_eq!(demo.exit().await, 0);
    let gone = async || {
        let alive = children.iter().any(|id| fs::exists(format!("/proc/{id}/exe")).unwrap_or(false));
        !alive && TcpListener::bind(("127.0.0.1", port)).await.is_ok()
    };
    tokio::time::timeout(Duration::from_secs(5), eventually("nothing is left", gone))
        .await
        .expect("within 5 s");
}

fn children_of(id: u32) -> Vec<String> {
    let output =
        Command::new("ps").args(["-o", "pid=", "--ppid", &id.to_string()]).output().expect("ps runs");
    let all =
        String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    // A shell's own helpers come and go.
    all.into_iter()
        .filter(|id| {
            fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|name| name.starts_with("tunnelto"))
        })
        .collect()
}

/// `make cluster-demo`: one of three instances is stopped under load, and no request fails.
#[tokio::test]
async fn the_cluster_demo() {
    if part::command("dnsmasq", "the cluster demo").is_none() {
        return;
    }
    let mut demo = demo("cluster-demo");
    let requests = demo.line("the count", |line| Some(line.strip_prefix("requests: ")?.to_owned())).await;
    assert!(requests.ends_with(", failed: 0"), "{requests}");
    demo.signal("INT");
    demo.exit().await;
}

/// A demo with the binaries that are built already.
fn demo(script: &str) -> Process {
    // The toolchain lies in the real home.
    let toolchain = |name: &str, folder: &str| {
        let path = env(name).map(PathBuf::from);
        path.unwrap_or_else(|| PathBuf::from(env("HOME").unwrap_or_default()).join(folder))
            .display()
            .to_string()
    };
    let environment = [
        ("DEMO_PROFILE", "dev".to_owned()),
        ("CARGO_HOME", toolchain("CARGO_HOME", ".cargo")),
        ("RUSTUP_HOME", toolchain("RUSTUP_HOME", ".rustup")),
    ];
    Process::start(workspace().join("scripts").join(script), [""; 0], &environment, home())
}
