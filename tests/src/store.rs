//! Real stores: Redis and etcd, which may be stopped, frozen and started again with or without what they had.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use tempfile::TempDir;

use crate::{
    dns::{free_port, own_address},
    eventually::eventually,
    part,
    process::{Process, quick_home},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Redis,
    Etcd,
}

pub struct Store {
    pub kind: Kind,
    pub process: Process,
    pub at: SocketAddr,
    program: PathBuf,
    folder: Arc<TempDir>,
}

impl Store {
    /// `None` where its program is missing.
    pub async fn start(kind: Kind) -> Option<Self> {
        let program = match kind {
            Kind::Redis => part::command("redis-server", "names in Redis")?,
            Kind::Etcd => part::command("etcd", "names in etcd")?,
        };
        let at = own_address();
        Some(Self::start_at(kind, program, at, quick_home()).await)
    }

    async fn start_at(kind: Kind, program: PathBuf, at: SocketAddr, folder: Arc<TempDir>) -> Self {
        let process = spawn(kind, program.clone(), at, folder.clone());
        let store = Self { kind, process, at, program, folder };
        eventually("the store serves", || store.serves()).await;
        store
    }

    /// It has answered. Merely listening is not enough: an etcd that is killed before its first election does not
    /// come up again.
    async fn serves(&self) -> bool {
        match self.kind {
            Kind::Redis => self.ask(&["PING"]).await.contains("PONG"),
            Kind::Etcd => self.ask(&["get", "any", "--write-out=json"]).await.contains("revision"),
        }
    }

    /// CLUSTER
    pub fn setting(&self) -> String {
        self.setting_at(self.at)
    }

    /// The same through something between.
    pub fn setting_at(&self, at: SocketAddr) -> String {
        match self.kind {
            Kind::Redis => format!("redis://{at}"),
            Kind::Etcd => format!("etcd://{at}"),
        }
    }

    /// Ends it where it stands.
    pub async fn kill(&mut self) {
        self.process.signal("KILL");
        self.process.exit().await;
    }

    /// Starts it again with what it has kept.
    pub async fn again(self) -> Self {
        let Self { kind, at, program, folder, .. } = self;
        Self::start_at(kind, program, at, folder).await
    }

    /// Starts it again with nothing.
    pub async fn again_empty(self) -> Self {
        let Self { kind, at, program, .. } = self;
        Self::start_at(kind, program, at, quick_home()).await
    }

    /// A command of the store's own client, such as `redis-cli KEYS '*'`.
    pub async fn ask(&self, arguments: &[&str]) -> String {
        let (name, to) = match self.kind {
            Kind::Redis => (
                "redis-cli",
                ["-h", &self.at.ip().to_string(), "-p", &self.at.port().to_string()]
                    .map(str::to_owned)
                    .to_vec(),
            ),
            Kind::Etcd => ("etcdctl", vec![format!("--endpoints={}", self.at)]),
        };
        let mut command = tokio::process::Command::new(name);
        command.args(to).args(arguments).env("ETCDCTL_API", "3");
        let output = command.output().await.unwrap_or_else(|error| panic!("{name}: {error}"));
        String::from_utf8(output.stdout).expect("text")
    }

    /// All its keys and what it has of names.
    pub async fn keys(&self) -> String {
        match self.kind {
            Kind::Redis => self.ask(&["--raw", "KEYS", "*"]).await,
            Kind::Etcd => self.ask(&["get", "", "--prefix", "--keys-only"]).await,
        }
    }
}

fn spawn(kind: Kind, program: PathBuf, at: SocketAddr, folder: Arc<TempDir>) -> Process {
    let place = folder.path().display().to_string();
    let (ip, port) = (at.ip().to_string(), at.port().to_string());
    let arguments = match kind {
        Kind::Redis => ["--bind", &ip, "--port", &port, "--dir", &place, "--save", "", "--appendonly", "no"]
            .map(str::to_owned)
            .to_vec(),
        Kind::Etcd => {
            let peers = format!("http://{ip}:{}", free_port());
            vec![
                "--name=one".into(),
                format!("--data-dir={place}/data"),
                format!("--listen-client-urls=http://{at}"),
                format!("--advertise-client-urls=http://{at}"),
                format!("--listen-peer-urls={peers}"),
                format!("--initial-advertise-peer-urls={peers}"),
                format!("--initial-cluster=one={peers}"),
            ]
        }
    };
    Process::start(program, arguments, &[], folder)
}
