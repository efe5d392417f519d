//! The instances' common clock: the time of day, moved on wherever another instance is seen to be ahead, so that what
//! happens after something has a later number than it on every instance (Lamport 1978).

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

#[derive(Default)]
pub struct Clock(AtomicU64);

impl Clock {
    /// Milliseconds since 1970 where nobody is ahead of us; never the same number twice.
    pub fn next(&self) -> u64 {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = since_1970.as_millis() as u64;
        let later = |last: u64| now.max(last.saturating_add(1));
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(later(last)));
        later(before.unwrap_or_else(|last| last))
    }

    pub fn saw(&self, number: u64) {
        self.0.fetch_max(number, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::Clock;

    #[test]
    fn what_was_seen_is_earlier_than_what_follows() {
        let clock = Clock::default();
        let first = clock.next();
        assert!(clock.next() > first);
        clock.saw(first + 1_000_000);
        assert!(clock.next() > first + 1_000_000);
    }
}
