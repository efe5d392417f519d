//! What the client does: one file per command.

mod http;
mod set_auth;

use tokio::runtime::LocalRuntime;

use crate::{
    cli::{Cli, Command},
    error::ClientError,
};

pub fn run(cli: Cli) -> Result<(), ClientError> {
    match cli.command {
        Some(Command::SetAuth { key }) => set_auth::run(&key),
        Some(Command::Http { target, options }) => block_on(http::run(Some(&target), &options)),
        None => block_on(http::run(cli.target.as_deref(), &cli.options)),
    }
}

/// The client is one thread with one runtime.
fn block_on(command: impl Future<Output = Result<(), ClientError>>) -> Result<(), ClientError> {
    let runtime = LocalRuntime::new()
        .map_err(|error| ClientError::Unexpected(format!("could not start the runtime: {error}")))?;
    let outcome = runtime.block_on(command);
    // A look-up that hangs in the system's resolver must not hold the exit.
    runtime.shutdown_background();
    outcome
}
