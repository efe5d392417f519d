//! How many names have been asked for: authorities count by the week, and what is used up keeps everybody waiting.

use std::{
    collections::VecDeque,
    fs,
    io::{self, ErrorKind},
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::tls::files;

const WEEK: Duration = Duration::from_secs(7 * 86_400);

/// When names were asked for that had no certificate before, the older first: seconds since 1970, one on each line.
pub struct Ledger {
    path: PathBuf,
    most: usize,
    entries: VecDeque<u64>,
}

impl Ledger {
    /// What is no number does not count.
    pub fn open(path: PathBuf, most: usize) -> io::Result<Self> {
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            read => read?,
        };
        let entries = text.lines().filter_map(|line| line.trim().parse().ok()).collect();
        Ok(Self { path, most, entries })
    }

    /// Whether one more may be asked for; if so, it counts from now on.
    pub fn enter(&mut self, now: SystemTime) -> io::Result<bool> {
        let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let oldest = seconds(now - WEEK);
        self.entries.retain(|entry| *entry > oldest);
        if self.entries.len() >= self.most {
            return Ok(false);
        }
        self.entries.push_back(seconds(now));
        let lines: String = self.entries.iter().map(|entry| format!("{entry}\n")).collect();
        files::put(&self.path, &lines)?;
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
        let mut ledger = Ledger::open(path.clone(), 2).unwrap();
        assert!(ledger.enter(now).unwrap());
        assert!(ledger.enter(now + WEEK / 2).unwrap());
        let mut ledger = Ledger::open(path, 2).unwrap();
        assert!(!ledger.enter(now + WEEK / 2).unwrap());
        assert!(ledger.enter(now + WEEK + Duration::from_secs(1)).unwrap());
        assert!(!ledger.enter(now + WEEK + Duration::from_secs(1)).unwrap());
    }
}
