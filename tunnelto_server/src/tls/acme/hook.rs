//! A command of the operator's that sets and removes DNS records (ACME_DNS_HOOK), for certificates with wildcards.

use std::{path::PathBuf, process::Stdio, time::Duration};

use tokio::{process::Command, time::timeout};

use super::order::OrderError;

/// From its start to its end, in which it waits until the record can be seen.
pub const LIMIT: Duration = Duration::from_secs(300);

#[derive(Clone, Debug)]
pub struct Hook(pub PathBuf);

/// A TXT record.
pub struct Record {
    pub name: String,
    pub value: String,
}

impl Hook {
    /// The record can be seen when this returns.
    pub async fn set(&self, record: &Record) -> Result<(), OrderError> {
        self.run("set", record).await
    }

    /// One that stays does no harm.
    pub async fn unset(&self, record: &Record) {
        if let Err(error) = self.run("unset", record).await {
            tracing::warn!(%error, record = record.name, "a DNS record was not removed");
        }
    }

    async fn run(&self, what: &str, record: &Record) -> Result<(), OrderError> {
        let failed = |why: String| OrderError::Hook { hook: self.0.display().to_string(), why };
        let mut command = Command::new(&self.0);
        command.args([what, &record.name, &record.value]);
        // What it prints may be read by others.
        command.env_remove("MASTER_SIG_KEY").env_remove("CLUSTER");
        // Standard output is the server's own.
        command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        match timeout(LIMIT, command.status()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(failed(status.to_string())),
            Ok(Err(error)) => Err(failed(error.to_string())),
            Err(_) => Err(failed(format!("it took longer than {LIMIT:?}"))),
        }
    }
}
