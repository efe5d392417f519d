//! Leaves an instance alone that does not answer, and tries it again now and then. Pure: `now` is passed in.

use std::time::{Duration, Instant};

/// Failures in a row after which an instance is left alone.
const FAILURES: u32 = 2;

const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// So that a healed line is found again within seconds.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub struct Breaker {
    failures: u32,
    /// Nobody tries before.
    until: Option<Instant>,
}

impl Breaker {
    /// Whether a try is due. While the instance does not answer only one comes through after each pause.
    pub fn may_try(&mut self, now: Instant) -> bool {
        match self.until {
            Some(until) if now < until => false,
            Some(_) => {
                self.until = Some(now + self.pause());
                true
            }
            None => true,
        }
    }

    pub fn is_open(&self) -> bool {
        self.until.is_some()
    }

    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    pub fn failed(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        if self.failures >= FAILURES {
            self.until = Some(now + self.pause());
        }
    }

    fn pause(&self) -> Duration {
        let doublings = self.failures.saturating_sub(FAILURES).min(8);
        (FIRST_PAUSE * 2u32.pow(doublings)).min(LONGEST_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_two_failures_one_try_in_each_pause() {
        let (mut breaker, now) = (Breaker::default(), Instant::now());
        breaker.failed(now);
        assert!(breaker.may_try(now) && breaker.may_try(now));
        breaker.failed(now);
        assert!(breaker.is_open() && !breaker.may_try(now));
        let later = now + FIRST_PAUSE;
        assert!(breaker.may_try(later));
        assert!(!breaker.may_try(later), "the others wait for what the first finds out");
        breaker.succeeded();
        assert!(breaker.may_try(later) && breaker.may_try(later));
    }

    #[test]
    fn pauses_have_an_end() {
        let (mut breaker, now) = (Breaker::default(), Instant::now());
        (0..100).for_each(|_| breaker.failed(now));
        assert!(breaker.may_try(now + LONGEST_PAUSE));
    }
}
