//! A tunnelto client.

use crate::{
    hosts::Host,
    process::{Process, binary, home},
    server::Server,
};

/// A client that has been started; whether it is connected is the test's question.
pub struct Client {
    pub process: Process,
}

impl Client {
    /// `tunnelto ARGUMENTS` towards `server`.
    pub fn start(server: &Server, arguments: &[&str]) -> Self {
        Self::towards(&server.url(), arguments)
    }

    pub fn towards(url: &str, arguments: &[&str]) -> Self {
        Self::with_environment(arguments, &[("TUNNELTO_SERVER", url.to_owned())])
    }

    /// On a host of its own.
    pub fn on(host: &Host, server: &Server, arguments: &[&str]) -> Self {
        Self::towards_on(host, &server.url(), arguments)
    }

    pub fn towards_on(host: &Host, url: &str, arguments: &[&str]) -> Self {
        let (program, arguments) = host.command("tunnelto", arguments);
        let environment = [("TUNNELTO_SERVER", url.to_owned())];
        Self { process: Process::start(program, arguments, &environment, home()) }
    }

    pub fn with_environment(arguments: &[&str], environment: &[(&str, String)]) -> Self {
        Self { process: Process::start(binary("tunnelto"), arguments, environment, home()) }
    }

    /// Waits for the public URL, which stands alone on a line.
    pub async fn url(&self) -> String {
        self.process.line("the public URL", |line| line.starts_with("http").then(|| line.to_owned())).await
    }
}
