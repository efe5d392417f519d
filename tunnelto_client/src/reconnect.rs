//! When to try again. Pure: time and chance are passed in.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(30);

/// What a server may ask for at most.
const MOST_PATIENCE: Duration = Duration::from_secs(600);

/// A connection that held this long shows that the server is well.
const GOOD: Duration = Duration::from_secs(10);

/// The pauses between tries: doubling, with a random part, so that many clients don't come back at once.
#[derive(Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// A connection ended after `held`.
    pub fn ended(&mut self, held: Duration) {
        if held >= GOOD {
            self.failures = 0;
        }
    }

    /// The pause before the next try; `chance` is from 0 to 1, `asked` what the server asked for at least.
    pub fn next(&mut self, chance: f64, asked: Option<Duration>) -> Duration {
        let whole = FIRST.saturating_mul(1 << self.failures.min(6)).min(LONGEST);
        self.failures += 1;
        let chance = chance.clamp(0.0, 1.0);
        match asked {
            None => whole.mul_f64(0.5 + chance / 2.0),
            // Not all at once either, and never so long that nobody believes it.
            Some(asked) => asked.min(MOST_PATIENCE).mul_f64(1.0 + chance / 4.0).max(whole),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_thirty_seconds() {
        let mut backoff = Backoff::default();
        let pauses: Vec<_> = (0..8).map(|_| backoff.next(1.0, None).as_millis()).collect();
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]);
    }

    #[test]
    fn at_most_ten_tries_in_the_first_minute() {
        let mut backoff = Backoff::default();
        let mut total = Duration::ZERO;
        let tries = std::iter::repeat_with(|| backoff.next(0.0, None))
            .take_while(|pause| {
                total += *pause;
                total < Duration::from_secs(60)
            })
            .count();
        assert!(tries <= 10, "{tries}");
    }

    #[test]
    fn only_a_connection_that_held_counts_as_recovery() {
        let mut backoff = Backoff::default();
        for _ in 0..5 {
            backoff.next(1.0, None);
        }
        backoff.ended(Duration::from_millis(10));
        assert_eq!(backoff.failures, 5);
        backoff.ended(GOOD);
        assert_eq!(backoff.failures, 0);
    }

    #[test]
    fn the_server_may_ask_for_more_patience() {
        let asked = |seconds, chance| Backoff::default().next(chance, Some(Duration::from_secs(seconds)));
        assert_eq!(asked(8, 0.0), Duration::from_secs(8));
        assert_eq!(asked(8, 1.0), Duration::from_secs(10));
        assert_eq!(asked(u64::MAX, 0.0), MOST_PATIENCE);
    }
}
