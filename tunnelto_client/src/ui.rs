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

    /// Scripts that have seen `connected` see the end as well; people get their line from [`complain`].
    pub fn failed(&mut self, error: &ClientError) {
        if self.output == Output::Json {
            self.tell(&Event::Stopped { reason: error.code() });
        }
    }

    /// In JSON the first event is `connected`; what happens before goes to standard error.
    pub fn tell(&mut self, event: &Event<'_>) {
        let has_connected = self.last_url.is_some();
        if let Event::Connected { url, .. } = event {
            let is_new = self.last_url.as_deref() != Some(url);
            self.last_url = Some((*url).to_owned());
            if is_new && self.output == Output::Text {
                print(url);
            }
        }
        match (self.output, event) {
            (Output::Json, event) if has_connected || matches!(event, Event::Connected { .. }) => {
                print(&serde_json::to_string(event).unwrap_or_default())
            }
            (_, Event::Connected { url, target, .. }) => say(&format!("tunnel open: {url} -> {target}")),
            (_, Event::Reconnecting { reason, wait_ms }) => {
                say(&format!("not connected ({reason}); next try in {:.1} s", *wait_ms as f64 / 1000.0));
            }
            (_, Event::Stopped { reason }) => say(&format!("stopped: {reason}")),
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
