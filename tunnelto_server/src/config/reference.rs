//! docs/configuration.md, made from the table of settings.

use std::fmt::Write;

use clap::CommandFactory;

use super::cli::Cli;

const HEAD: &str = "\
# Server settings

Each setting is an environment variable and a flag; the flag wins. A wrong value is refused at start, before
anything listens. This page is generated: `tunnelto_server settings-reference > docs/configuration.md`.

| variable | flag | default | meaning |
| --- | --- | --- | --- |
";

/// The whole page.
pub fn markdown() -> String {
    let mut page = HEAD.to_owned();
    for arg in Cli::command().get_arguments() {
        let (Some(env), Some(flag), Some(help)) = (arg.get_env(), arg.get_long(), arg.get_help()) else {
            continue;
        };
        let help = help.to_string();
        let (meaning, spoken_default) = match help.split_once(" [default: ") {
            Some((meaning, default)) => (meaning, Some(default.trim_end_matches(']'))),
            None => (help.as_str(), None),
        };
        let default = match (arg.get_default_values().first(), spoken_default) {
            (Some(value), _) => format!("`{}`", value.to_string_lossy()),
            (None, Some(default)) => default.to_owned(),
            (None, None) => "none".to_owned(),
        };
        let _ = writeln!(page, "| `{}` | `--{flag}` | {default} | {meaning} |", env.to_string_lossy());
    }
    page
}
