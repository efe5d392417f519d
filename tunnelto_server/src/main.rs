//! Parse, log, run, exit code.

use std::process::ExitCode;

use clap::Parser;
use tunnelto_server::{
    commands,
    config::cli::{Cli, Command},
};

fn main() -> ExitCode {
    let Cli { settings, command } = Cli::parse();
    commands::log(&settings.rust_log);
    let outcome = match command.unwrap_or(Command::Serve) {
        Command::Serve => commands::serve(settings),
        Command::Healthcheck => commands::healthcheck(&settings),
        Command::Check { host } => commands::check(settings, host.as_ref()),
        Command::Keys(command) => commands::keys(settings, command),
        Command::SettingsReference => commands::settings_reference(),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::from(commands::BAD_SETTINGS)
        }
    }
}
