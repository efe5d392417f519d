//! When to ping a client, and when to give it up. Pure: `now` is passed in.

use std::time::{Duration, Instant};

use crate::limits::{MISSED_PINGS, PING_PROTOCOL_1, PING_PROTOCOL_2};

pub struct Heartbeat {
    every: Duration,
    next: Instant,
    /// Pings since the last sign of life.
    unanswered: u32,
    last_ping: Instant,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Beat {
    Ping,
    /// Too many Pings without a byte from the client.
    Dead,
    Wait,
}

impl Heartbeat {
    /// The first Ping is due at once.
    pub fn new(protocol: u8, now: Instant) -> Self {
        let every = if protocol == 1 { PING_PROTOCOL_1 } else { PING_PROTOCOL_2 };
        Self { every, next: now, unanswered: 0, last_ping: now }
    }

    /// When to ask again.
    pub fn next(&self) -> Instant {
        self.next
    }

    pub fn beat(&mut self, now: Instant, last_heard: Instant) -> Beat {
        if now < self.next {
            return Beat::Wait;
        }
        // Any byte counts as life.
        if last_heard > self.last_ping {
            self.unanswered = 0;
        }
        if self.unanswered >= MISSED_PINGS {
            return Beat::Dead;
        }
        self.unanswered += 1;
        self.last_ping = now;
        self.next = now + self.every;
        Beat::Ping
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_missed_pings_are_death() {
        let start = Instant::now();
        let mut heart = Heartbeat::new(2, start);
        let mut now = start;
        for _ in 0..3 {
            assert_eq!(heart.beat(now, start), Beat::Ping);
            now = heart.next();
        }
        assert_eq!(heart.beat(now, start), Beat::Dead);
    }

    #[test]
    fn any_byte_is_life() {
        let start = Instant::now();
        let mut heart = Heartbeat::new(2, start);
        let mut now = start;
        for _ in 0..20 {
            assert_eq!(heart.beat(now, now), Beat::Ping);
            assert_eq!(heart.beat(now, now), Beat::Wait);
            now = heart.next();
        }
    }

    #[test]
    fn protocol_1_is_pinged_every_30_seconds() {
        let start = Instant::now();
        let mut heart = Heartbeat::new(1, start);
        heart.beat(start, start);
        assert_eq!(heart.next() - start, Duration::from_secs(30));
    }
}
