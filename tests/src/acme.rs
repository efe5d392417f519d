//! A real ACME server, pebble, with the DNS that it believes.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

use tempfile::TempDir;
use tokio::{net::TcpStream, process::Command};

use crate::{
    dns::{free_port, own_address},
    eventually::eventually,
    part,
    process::{Process, home},
    server::{Server, Starting},
    tls::Authority,
};

/// The host that tunnels get their names under.
pub const HOST: &str = "tunnels.test";

/// How an ACME server is.
#[derive(Clone, Debug)]
pub struct Habits {
    /// Seconds.
    pub validity: u32,
    /// Seconds that it takes to validate.
    pub slowness: u32,
    /// Where it finds all hosts.
    pub doors: Ipv4Addr,
}

impl Default for Habits {
    fn default() -> Self {
        Self { validity: 90 * 86_400, slowness: 0, doors: Ipv4Addr::LOCALHOST }
    }
}

pub struct Pebble {
    pub process: Process,
    _dns: Process,
    at: SocketAddr,
    management: SocketAddr,
    /// Where DNS records are set.
    pub records: SocketAddr,
    authority: Authority,
    folder: Arc<TempDir>,
    /// Where it expects visitors' doors.
    pub port: u16,
    pub tls_port: u16,
}

impl Pebble {
    /// `None` where it is missing.
    pub async fn start() -> Option<Self> {
        Self::with(Habits::default()).await
    }

    pub async fn with(habits: Habits) -> Option<Self> {
        let program = part::command("pebble", "certificates by ACME")?;
        let resolver = part::command("pebble-challtestsrv", "certificates by ACME")?;
        let (dns, records, at, management) = (own_address(), own_address(), own_address(), own_address());
        let arguments = [
            format!("-dns01={dns}"),
            format!("-management={records}"),
            format!("-defaultIPv4={}", habits.doors),
            "-defaultIPv6=".to_owned(),
            "-http01=".to_owned(),
            "-https01=".to_owned(),
            "-tlsalpn01=".to_owned(),
        ];
        let resolver = Process::start(resolver, &arguments[..], &[], home());
        let authority = Authority::new();
        authority.certify("pebble", &[&at.ip().to_string(), &management.ip().to_string()]);
        let (port, tls_port) = (free_port(), free_port());
        let folder = home();
        let settings = serde_json::json!({ "pebble": {
            "listenAddress": at.to_string(),
            "managementListenAddress": management.to_string(),
            "certificate": authority.path("pebble.pem"),
            "privateKey": authority.path("pebble.key"),
            "httpPort": port,
            "tlsPort": tls_port,
            "certificateValidityPeriod": habits.validity,
        }});
        fs::write(folder.path().join("pebble.json"), settings.to_string()).expect("written");
        let sleep = match habits.slowness {
            0 => ("PEBBLE_VA_NOSLEEP", "1".to_owned()),
            seconds => ("PEBBLE_VA_SLEEPTIME", seconds.to_string()),
        };
        let config = folder.path().join("pebble.json").display().to_string();
        let arguments = ["-config".to_owned(), config, "-dnsserver".to_owned(), dns.to_string()];
        let process = Process::start(program, arguments, &[sleep], home());
        let pebble =
            Self { process, _dns: resolver, at, management, records, authority, folder, port, tls_port };
        for door in [records, at, management] {
            eventually("the ACME server listens", || async { TcpStream::connect(door).await.is_ok() }).await;
        }
        Some(pebble)
    }

    /// A server that gets its certificates here.
    pub fn server(&self) -> Starting {
        self.used_by(Server::with())
    }

    /// `starting` gets its certificates here.
    pub fn used_by(&self, starting: Starting) -> Starting {
        starting
            .env("ALLOWED_HOSTS", HOST)
            .env("AUTH", "open")
            .env("PORT", self.port.to_string())
            .env("TLS_PORT", self.tls_port.to_string())
            .env("TLS", "acme")
            .env("ACME_DIRECTORY", format!("https://{}/dir", self.at))
            .env("ACME_CA", self.authority.root())
    }

    /// Certificates that it has been asked for.
    pub fn orders(&self) -> usize {
        self.process.stdout().iter().filter(|line| line.contains("Added order")).count()
    }

    /// A file with the root of what it issues.
    pub async fn root(&self) -> PathBuf {
        let path = self.folder.path().join("root.pem");
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--fail", "--cacert", &self.authority.root(), "--output"]).arg(&path);
        curl.arg(format!("https://{}/roots/0", self.management));
        assert!(curl.status().await.expect("curl runs").success(), "the root is there");
        path
    }
}
