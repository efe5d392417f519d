//! A real DNS server, dnsmasq, that answers for one name.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    sync::Arc,
};

use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::{
    eventually::eventually,
    part,
    process::{Process, home},
};

/// The instances' name.
pub const NAME: &str = "global.demo.internal";
/// The same as a service, with ports.
pub const SERVICE: &str = "_net._tcp.demo.internal";

pub struct Dns {
    pub process: Process,
    pub at: SocketAddr,
    folder: Arc<TempDir>,
}

/// A port that is free on every address of this machine, for programs that cannot choose one themselves.
pub fn free_port() -> u16 {
    let probe = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a free port");
    probe.local_addr().expect("bound").port()
}

/// A loopback address of one's own, so that nobody takes the port of a program that is just being restarted.
pub fn own_address() -> SocketAddr {
    let [a, b, c, ..] = uuid::Uuid::new_v4().into_bytes();
    (Ipv4Addr::new(127, a.clamp(16, 250), b, c.clamp(1, 254)), free_port()).into()
}

impl Dns {
    /// `None` where dnsmasq is missing.
    pub async fn start(instances: &[SocketAddr]) -> Option<Self> {
        let at = own_address();
        Self::start_at(at, instances, home()).await
    }

    async fn start_at(at: SocketAddr, instances: &[SocketAddr], folder: Arc<TempDir>) -> Option<Self> {
        let program = part::command("dnsmasq", "DNS")?;
        let hosts = folder.path().join("hosts");
        write_hosts(&folder, instances);
        let mut arguments = vec![
            "--keep-in-foreground".to_owned(),
            "--conf-file=/dev/null".to_owned(),
            "--pid-file".to_owned(),
            "--no-resolv".to_owned(),
            "--no-hosts".to_owned(),
            "--bind-interfaces".to_owned(),
            "--local-ttl=1".to_owned(),
            "--user=root".to_owned(),
            "--local=/internal/".to_owned(),
            format!("--listen-address={}", at.ip()),
            format!("--port={}", at.port()),
            format!("--addn-hosts={}", hosts.display()),
        ];
        for (number, instance) in instances.iter().enumerate() {
            arguments.push(format!("--srv-host={SERVICE},i{number}.demo.internal,{}", instance.port()));
        }
        let process = Process::start(program, arguments, &[], folder.clone());
        let dns = Self { process, at, folder };
        eventually("the DNS server listens", || async { TcpStream::connect(at).await.is_ok() }).await;
        Some(dns)
    }

    /// From now on the name means these.
    pub fn are(&self, instances: &[SocketAddr]) {
        write_hosts(&self.folder, instances);
        self.process.signal("HUP");
    }

    pub async fn stop(mut self) -> Stopped {
        self.process.signal("KILL");
        self.process.exit().await;
        Stopped { at: self.at, folder: self.folder }
    }
}

/// A DNS server that may come back.
pub struct Stopped {
    at: SocketAddr,
    folder: Arc<TempDir>,
}

impl Stopped {
    pub async fn start(self, instances: &[SocketAddr]) -> Dns {
        Dns::start_at(self.at, instances, self.folder).await.expect("it was there before")
    }
}

fn write_hosts(folder: &TempDir, instances: &[SocketAddr]) {
    let lines: String = instances
        .iter()
        .enumerate()
        .map(|(number, at)| format!("{} {NAME}\n{} i{number}.demo.internal\n", at.ip(), at.ip()))
        .collect();
    let draft = folder.path().join("hosts.draft");
    fs::write(&draft, lines).expect("written");
    fs::rename(draft, folder.path().join("hosts")).expect("renamed");
}
