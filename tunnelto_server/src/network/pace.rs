//! Bytes per second between two instances, over all visitors that are brought from one to the other.

use std::{
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::time::sleep;

/// What may be ahead of its time, so that short bursts are not held up.
const BURST: Duration = Duration::from_millis(100);

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// When the line is free again, in nanoseconds since the start; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Line(Arc<AtomicU64>);

/// A line and how fast it may be.
#[derive(Clone, Debug)]
pub struct Pace {
    line: Line,
    /// Bytes per second; `None` is as fast as it can.
    rate: Option<u64>,
}

impl Line {
    /// So many bytes go now at so many in a second; returns how long it takes until more may.
    fn take(&self, bytes: usize, rate: u64, now: Duration) -> Option<Duration> {
        let takes = (bytes as u64).saturating_mul(1_000_000_000) / rate;
        let now = now.as_nanos() as u64;
        let free_after = |free: u64| free.max(now).saturating_add(takes);
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| Some(free_after(free)));
        let free = free_after(before.unwrap_or_else(|free| free));
        let wait = Duration::from_nanos(free - now).saturating_sub(BURST);
        (!wait.is_zero()).then_some(wait)
    }
}

impl Pace {
    pub fn new(line: &Line, rate: Option<u64>) -> Self {
        Self { line: line.clone(), rate }
    }

    /// So many bytes go now; returns how long it takes until more may.
    pub fn take(&self, bytes: usize) -> Option<Duration> {
        self.line.take(bytes, self.rate?, START.elapsed())
    }

    /// Waits as long as so many bytes ask for.
    pub async fn took(&self, bytes: usize) {
        if let Some(wait) = self.take(bytes) {
            sleep(wait).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_one_line_together_are_as_fast_as_allowed() {
        let (a, now) = (Line::default(), Duration::from_secs(5));
        let b = a.clone();
        assert_eq!(a.take(100, 1000, now), None, "a burst");
        assert_eq!(b.take(500, 1000, now), Some(Duration::from_millis(500)));
        assert_eq!(a.take(1000, 1000, now), Some(Duration::from_millis(1500)));
        assert_eq!(a.take(100, 1000, now + Duration::from_secs(2)), None, "it has been free since");
    }

    #[test]
    fn without_a_rate_nobody_waits() {
        assert_eq!(Pace::new(&Line::default(), None).take(usize::MAX), None);
    }
}
