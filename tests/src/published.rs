//! The published client, `cargo install tunnelto --version 0.1.19`, where scripts/test has installed it.

use std::net::SocketAddr;

use crate::{
    part,
    process::{Process, home},
    server::Server,
};

pub struct Published {
    pub process: Process,
}

impl Published {
    /// With a key as most use it, or as a guest.
    pub fn start(server: &Server, port: u16, arguments: &[&str]) -> Option<Self> {
        Self::towards(server.clients, port, arguments)
    }

    /// `port` is the local service's.
    pub fn towards(clients: SocketAddr, port: u16, arguments: &[&str]) -> Option<Self> {
        let program = part::published_client()?;
        let environment = [
            ("CTRL_HOST", "127.0.0.1".to_owned()),
            ("CTRL_PORT", clients.port().to_string()),
            ("CTRL_TLS_OFF", "1".to_owned()),
            // Its search for updates fails at once.
            ("HTTPS_PROXY", "http://127.0.0.1:9".to_owned()),
        ];
        let port = port.to_string();
        let arguments = [&["--host", "127.0.0.1", "--port", &port][..], arguments].concat();
        Some(Self { process: Process::start(program, arguments, &environment, home()) })
    }

    pub fn lives(&mut self) -> bool {
        !self.process.has_exited()
    }
}
