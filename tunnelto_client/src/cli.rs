//! The command line. Every flag that the published 0.1 client lists is understood.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::ui::Output;

/// Expose a local web service to the internet with a public URL.
#[derive(Parser, Debug)]
#[command(name = "tunnelto", version, args_conflicts_with_subcommands = true, max_term_width = 100)]
#[command(after_help = "Examples:
  tunnelto 3000 -s web          a web service on port 3000 as `web`
  tunnelto file://./public      a folder of files
  tunnelto set-auth -k KEY      keep a key for all later runs")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,

    /// What to expose: a port, host:port, http(s):// URL, file://FOLDER or unix:PATH [default: --host and --port]
    #[arg(conflicts_with_all = ["host", "port"])]
    pub target: Option<String>,

    #[command(flatten)]
    pub options: HttpOptions,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Expose a web service
    Http {
        /// A port, host:port, http(s):// URL, file://FOLDER or unix:PATH
        #[arg(conflicts_with_all = ["host", "port"])]
        target: String,
        #[command(flatten)]
        options: HttpOptions,
    },
    /// Keep a key for all later runs
    SetAuth {
        /// The key, as the server's operator gave it
        #[arg(short, long)]
        key: String,
    },
}

#[derive(Args, Clone, Debug)]
pub struct HttpOptions {
    /// The name to ask for; without it the server picks one
    #[arg(short, long, value_name = "NAME")]
    pub subdomain: Option<String>,

    /// The key to authenticate with
    #[arg(short, long, env = "TUNNELTO_KEY", hide_env_values = true)]
    pub key: Option<String>,

    /// The server, as ws://HOST:PORT or wss://HOST; several instances of one server are separated by commas
    #[arg(long, env = "TUNNELTO_SERVER", value_name = "URL")]
    pub server: Option<String>,

    /// Trust only the certificates in this PEM file to vouch for the server, instead of the system's
    #[arg(long, env = "TUNNELTO_CA", value_name = "FILE")]
    pub ca: Option<PathBuf>,

    /// The host of the local service
    #[arg(long, default_value = "localhost")]
    pub host: String,

    /// The port of the local service
    #[arg(short, long, default_value_t = 8000)]
    pub port: u16,

    /// Speak TLS to the local service
    #[arg(short = 't', long)]
    pub use_tls: bool,

    /// Accept any certificate of the local service
    #[arg(long)]
    pub insecure: bool,

    /// Share the name with the owner's other clients
    #[arg(long)]
    pub pool: bool,

    /// Take the name from the owner's other client
    #[arg(long)]
    pub takeover: bool,

    /// End when nothing listens at the target, instead of waiting for it
    #[arg(long)]
    pub require_target: bool,

    /// End after so many failed tries in a row to reach the server [default: never]
    #[arg(long, value_name = "N", conflicts_with = "no_retry")]
    pub retries: Option<u32>,

    /// End at the first failure to reach the server
    #[arg(long)]
    pub no_retry: bool,

    /// What standard output carries
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,

    /// Don't start the inspector
    #[arg(long)]
    pub no_inspect: bool,

    /// The port of the inspector
    #[arg(long, value_name = "PORT")]
    pub dashboard_port: Option<u16>,

    /// Log more; can be given several times
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

impl Cli {
    pub fn verbosity(&self) -> u8 {
        match &self.command {
            Some(Command::Http { options, .. }) => options.verbose,
            Some(Command::SetAuth { .. }) => 0,
            None => self.options.verbose,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_of_the_published_client_parses() {
        let line = "tunnelto -t -vv --dashboard-port 1 -k K --host h -p 1 -s name";
        let cli = Cli::try_parse_from(line.split(' ')).unwrap();
        assert_eq!(cli.options.subdomain.as_deref(), Some("name"));
        assert_eq!(cli.verbosity(), 2);
        let long = "tunnelto --use-tls --verbose --key K --port 1 --subdomain name";
        assert!(Cli::try_parse_from(long.split(' ')).is_ok());
        assert!(Cli::try_parse_from(["tunnelto", "set-auth", "--key", "K"]).is_ok());
        assert_eq!(Cli::try_parse_from(["tunnelto"]).unwrap().options.port, 8000);
    }

    #[test]
    fn the_target_may_stand_alone_or_behind_http() {
        let cli = Cli::try_parse_from(["tunnelto", "3000", "-s", "web"]).unwrap();
        assert_eq!(cli.target.as_deref(), Some("3000"));
        let cli = Cli::try_parse_from(["tunnelto", "http", "3000", "-s", "web"]).unwrap();
        assert!(matches!(cli.command, Some(Command::Http { target, .. }) if target == "3000"));
        assert!(Cli::try_parse_from(["tunnelto", "http"]).is_err());
        assert!(
            Cli::try_parse_from(["tunnelto", "3000", "--port", "3001"]).is_err(),
            "one of them would be ignored"
        );
    }
}
