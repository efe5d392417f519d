//! Real parts that a test talks to: programs that this workspace does not build. Without them a test is skipped,
//! and says so at the end of the run; under CI a missing part is a failure.

use std::{fs::OpenOptions, io::Write, path::PathBuf};

use crate::{env, process::workspace};

/// A program on PATH, or `None` after noting that `what` was skipped.
pub fn command(name: &str, what: &str) -> Option<PathBuf> {
    let path = env("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.exists());
    found.or_else(|| skip(&format!("{what}: no {name}")))
}

/// The published client, 0.1.19, as scripts/test installs it.
pub fn published_client() -> Option<PathBuf> {
    let path = workspace().join("target/published/bin/tunnelto");
    if path.exists() { Some(path) } else { skip("the published client: not in target/published") }
}

pub fn skip<T>(what: &str) -> Option<T> {
    assert!(env("CI").is_none(), "missing under CI: {what}");
    let mut notes = OpenOptions::new()
        .create(true)
        .append(true)
        .open(workspace().join("target/skipped"))
        .expect("a note");
    writeln!(notes, "{what}").expect("noted");
    None
}
