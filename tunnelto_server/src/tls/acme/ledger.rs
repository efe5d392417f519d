//! How many names have been asked for: authorities count by the week, and what is used up keeps everybody waiting.

use std::{
    collections::HashMap,
    fs,
    io::{self, ErrorKind},
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::tls::files;

const WEEK: Duration = Duration::from_secs(7 * 86_400);

/// When each name was asked for that had no certificate before: seconds since 1970 and the name, one on each line.
pub struct Ledger {
    path: PathBuf,
    most: usize,
    entries: HashMap<String, u64>,
}

impl Ledger {
    /// Lines that are not understood do not count.
    pub fn open(path: PathBuf, most: usize) -> io::Result<Self> {
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            read => read?,
        };
        let entry = |line: &str| {
            let (seconds, host) = line.split_once(' ')?;
            Some((host.to_owned(), seconds.parse().ok()?))
        };
        Ok(Self { path, most, entries: text.lines().filter_map(entry).collect() })
    }

    /// Whether `host` may be asked for; if so, it counts from now on, once a week.
    pub fn enter(&mut self, host: &str, now: SystemTime) -> io::Result<bool> {
        let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let (oldest, now) = (seconds(now - WEEK), seconds(now));
        // What is of the future was written by a clock that was wrong.
        self.entries.retain(|_, at| *at > oldest && *at <= now);
        if self.entries.contains_key(host) {
            return Ok(true);
        }
        if self.entries.len() >= self.most {
            return Ok(false);
        }
        self.entries.insert(host.to_owned(), now);
        let mut lines: Vec<_> = self.entries.iter().map(|(host, at)| format!("{at} {host}\n")).collect();
        lines.sort();
        files::put(&self.path, &lines.concat())?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_week_has_its_number_and_a_restart_is_no_new_week() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("orders");
        let now = SystemTime::now();
        let late = now + WEEK + Duration::from_secs(1);
        let mut ledger = Ledger::open(path.clone(), 2).unwrap();
        assert!(ledger.enter("a", now).unwrap());
        assert!(ledger.enter("b", now + WEEK / 2).unwrap());
        let mut ledger = Ledger::open(path, 2).unwrap();
        assert!(!ledger.enter("c", now + WEEK / 2).unwrap());
        assert!(ledger.enter("a", now + WEEK / 2).unwrap(), "again is not new");
        assert!(ledger.enter("c", late).unwrap());
        assert!(!ledger.enter("d", late).unwrap());
        // A clock that was ahead is no reason to wait for it.
        assert!(ledger.enter("d", now).unwrap());
    }
}
