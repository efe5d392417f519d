//! Several instances that know each other, each with a loopback address of its own.

use std::{fs, net::SocketAddr, sync::Arc};

use tempfile::TempDir;

use crate::{
    client::Client,
    eventually::eventually,
    process::home,
    server::{Server, Starting},
};

/// The same on every instance.
pub const MASTER_KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

pub struct Cluster {
    pub servers: Vec<Server>,
    members: Members,
}

/// The file in which instances find each other.
#[derive(Clone)]
pub struct Members {
    folder: Arc<TempDir>,
}

impl Members {
    pub fn none() -> Self {
        let members = Self { folder: home() };
        members.are([]);
        members
    }

    /// These and no others, from the next look at the file on.
    pub fn are(&self, at: impl IntoIterator<Item = SocketAddr>) {
        let lines: String = at.into_iter().map(|at| format!("{at}\n")).collect();
        // Whole or not at all.
        let draft = self.folder.path().join("draft");
        fs::write(&draft, lines).expect("written");
        fs::rename(draft, self.folder.path().join("peers")).expect("renamed");
    }

    pub fn setting(&self) -> String {
        format!("static:{}", self.folder.path().join("peers").display())
    }
}

/// One of a cluster, on a loopback address of its own.
pub fn instance(number: usize, cluster: String) -> Starting {
    Server::with()
        .env("BIND", format!("127.0.0.{}", number + 2))
        .env("FLY_MACHINE_ID", format!("instance-{number}"))
        .env("MASTER_SIG_KEY", MASTER_KEY)
        .env("CLUSTER", cluster)
        .env("RUST_LOG", "info,tunnelto_server::network=debug")
}

impl Cluster {
    pub async fn start(count: usize) -> Self {
        Self::with(count, |starting, _| starting).await
    }

    /// Instances that answer each other; `change` sees each before it starts.
    pub async fn with(count: usize, change: impl Fn(Starting, usize) -> Starting) -> Self {
        let members = Members::none();
        let mut servers = Vec::new();
        for number in 0..count {
            servers.push(change(instance(number, members.setting()), number).start().await);
        }
        let cluster = Self { servers, members };
        cluster.meets().await;
        cluster
    }

    /// All that run are listed, and have heard of each other.
    pub async fn meets(&self) {
        self.members.are(self.servers.iter().map(|server| server.peers));
        for server in &self.servers {
            let others = (self.servers.len() - 1) as f64;
            eventually("instances find each other", || async {
                server.metric("tunnelto_peers").await == others
            })
            .await;
        }
    }

    /// Starts another one in the place of an instance that has ended: same address, same ports, same id.
    pub async fn again(&mut self, at: usize) {
        let old = &self.servers[at];
        let starting = instance(at, self.members.setting())
            .env("PORT", old.visitors.port().to_string())
            .env("CTRL_PORT", old.clients.port().to_string())
            .env("NET_PORT", old.peers.port().to_string())
            .home(old.home.clone());
        self.servers[at] = starting.start().await;
    }

    pub fn members(&self) -> &Members {
        &self.members
    }

    /// A client of one instance, connected.
    pub async fn client(&self, at: usize, target: &str, name: &str) -> Client {
        let client = Client::start(&self.servers[at], &[target, "-s", name]);
        client.url().await;
        client
    }
}
