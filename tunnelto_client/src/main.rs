//! Parse, run, exit code.

use std::process::ExitCode;

use clap::Parser;
use tunnelto_client::{cli::Cli, commands, ui};

fn main() -> ExitCode {
    let cli = Cli::parse();
    ui::log(cli.verbosity());
    match commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            ui::complain(&error);
            error.exit_code()
        }
    }
}
