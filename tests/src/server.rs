//! A tunnelto_server on free ports.

use std::{net::SocketAddr, sync::Arc};

use tempfile::TempDir;

use crate::{
    hosts::Host,
    process::{Process, binary, home},
    visitor::Visitor,
};

pub struct Server {
    pub process: Process,
    pub visitors: SocketAddr,
    /// The door for TLS.
    pub tls: Option<SocketAddr>,
    pub clients: SocketAddr,
    pub peers: SocketAddr,
    pub admin: SocketAddr,
    pub home: Arc<TempDir>,
    pub host: Option<Host>,
}

/// How a server is started.
pub struct Starting {
    environment: Vec<(&'static str, String)>,
    home: Arc<TempDir>,
    descriptors: Option<u32>,
    host: Option<Host>,
}

impl Server {
    /// With defaults on loopback.
    pub async fn start() -> Self {
        Self::with().start().await
    }

    pub fn with() -> Starting {
        let any_port = ["PORT", "CTRL_PORT", "NET_PORT", "ADMIN_PORT"].map(|name| (name, "0".to_owned()));
        let mut environment = any_port.to_vec();
        environment.push(("BIND", "127.0.0.1".to_owned()));
        Starting { environment, home: home(), descriptors: None, host: None }
    }

    /// Ends this one and starts another in its place: same ports, same data.
    pub async fn restart(self, signal: &str) -> Self {
        let Self { mut process, visitors, clients, peers, home, .. } = self;
        process.signal(signal);
        process.exit().await;
        Self::with()
            .env("PORT", visitors.port().to_string())
            .env("CTRL_PORT", clients.port().to_string())
            .env("NET_PORT", peers.port().to_string())
            .home(home)
            .start()
            .await
    }

    /// What `/metrics` says of one line, such as `tunnelto_lookups_total{result="peer"}`; 0 while there is none.
    pub async fn metric(&self, line: &str) -> f64 {
        let mut operator = match &self.host {
            None => Visitor::connect(self.admin).await,
            Some(host) => host.visitor(self.admin),
        };
        operator.send("GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
        let text = operator.answer().await.text();
        let value = text.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok());
        value.unwrap_or(0.0)
    }

    /// The address that clients are given.
    pub fn url(&self) -> String {
        format!("ws://{}", self.clients)
    }
}

impl Starting {
    pub fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.retain(|(other, _)| *other != name);
        self.environment.push((name, value.into()));
        self
    }

    pub fn home(mut self, home: Arc<TempDir>) -> Self {
        self.home = home;
        self
    }

    /// On a host of its own, and on its address.
    pub fn on(mut self, host: &Host) -> Self {
        self.host = Some(host.clone());
        self.env("BIND", host.ip.to_string())
    }

    /// A hard limit, as a small machine would have.
    pub fn limit_descriptors(mut self, most: u32) -> Self {
        self.descriptors = Some(most);
        self
    }

    /// Starts without waiting for the doors.
    pub fn spawn(&self) -> Process {
        let program = binary("tunnelto_server");
        if let Some(host) = &self.host {
            let (program, arguments) = host.command("tunnelto_server", &[]);
            return Process::start(program, arguments, &self.environment, self.home.clone());
        }
        match self.descriptors {
            None => Process::start(program, [""; 0], &self.environment, self.home.clone()),
            Some(most) => {
                let script = format!("ulimit -n {most} && exec '{}'", program.display());
                Process::start("sh".into(), ["-c", &script], &self.environment, self.home.clone())
            }
        }
    }

    pub async fn start(self) -> Server {
        let process = self.spawn();
        let line =
            process.line("the listen line", |line| line.strip_prefix("listening ").map(str::to_owned)).await;
        let found = |door: &str| {
            let word = line.split(' ').find_map(|word| word.strip_prefix(door))?;
            let address: SocketAddr = word.parse().expect("an address");
            Some(address)
        };
        let address = |door: &str| found(door).expect("every door is named");
        let (visitors, clients, peers) = (address("visitors="), address("clients="), address("peers="));
        Server {
            process,
            visitors,
            tls: found("tls="),
            clients,
            peers,
            admin: address("admin="),
            home: self.home,
            host: self.host,
        }
    }
}
