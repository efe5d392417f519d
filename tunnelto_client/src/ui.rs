//! What people and scripts read. Standard output is data: the public URL alone on a line, or one JSON object a
//! line. Everything else goes to standard error.

use std::io::{IsTerminal, Write};

use serde::Serialize;
use tracing_subscriber::EnvFilter;

use crate::error::ClientError;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    #[default]
    Text,
    Json,
}

/// One line of `--output json`.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event<'a> {
    Connected { url: &'a str, name: &'a str, target: &'a str, server: &'a str },
    Reconnecting { reason: String, wait_ms: u64 },
    Stopped { reason: &'a str },
}

/// Tells the user what happens, in the form that was asked for.
#[derive(Debug, Default)]
pub struct Ui {
    output: Output,
    /// Printed already; printed again only when it changes.
    last_url: Option<String>,
}

impl Ui {
    pub fn new(output: Output) -> Self {
        Self { output, last_url: None }
    }

    pub fn tell(&mut self, event: &Event<'_>) {
        match (self.output, event) {
            (Output::Json, event) => print(&serde_json::to_string(event).unwrap_or_default()),
            (Output::Text, Event::Connected { url, target, .. }) => {
                if self.last_url.as_deref() != Some(url) {
                    print(url);
                    self.last_url = Some((*url).to_owned());
                }
                say(&format!("tunnel open: {url} -> {target}"));
            }
            (Output::Text, Event::Reconnecting { reason, wait_ms }) => {
                say(&format!("connection lost ({reason}); next try in {:.1} s", *wait_ms as f64 / 1000.0));
            }
            (Output::Text, Event::Stopped { reason }) => say(&format!("stopped: {reason}")),
        }
    }
}

/// The one line of reason behind an exit code.
pub fn complain(error: &ClientError) {
    say(&format!("error: {error}"));
}

/// `-v` shows more; RUST_LOG is read where it is set.
pub fn log(verbosity: u8) {
    let level = ["warn", "info", "debug", "trace"][usize::from(verbosity.min(3))];
    let filter = EnvFilter::builder().with_default_directive(tracing::Level::WARN.into());
    let filter = match verbosity {
        0 => filter.from_env_lossy(),
        _ => filter.parse_lossy(format!("tunnelto_client={level}")),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
}

pub fn say(line: &str) {
    // Whoever closed our standard error does not want to hear it.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A closed pipe (`| head -1`) is no reason to end the tunnel.
fn print(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
