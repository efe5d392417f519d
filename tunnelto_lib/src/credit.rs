//! Flow control of one stream (protocol 2): pure accounting, `now` is passed in.
//!
//! The receiver grants what it has written onward. Its window grows only when the sender was seen to wait a
//! round trip for a grant, and shrinks when the receiver's own side stalls.

use std::time::{Duration, Instant};

/// A wait shorter than this is scheduling, not a line's delay.
const LEAST_WAIT: Duration = Duration::from_millis(5);

/// A sender silent for longer than this had nothing to say.
const MOST_WAIT: Duration = Duration::from_secs(1);

/// Half a window unread for this long is a stall.
const STALL: Duration = Duration::from_secs(1);

/// The largest window of one stream, in bytes: 40 ms of three gigabits per second. Grants come at half a window, so twice what
/// is on the way.
pub const MAX_WINDOW: u32 = 16 * 1024 * 1024;

/// What this side may still send.
#[derive(Debug)]
pub struct SendCredit {
    left: u64,
}

/// What the other side may still send, and when to tell it.
#[derive(Debug)]
pub struct ReceiveWindow {
    initial: u64,
    window: u64,
    /// Totals since the stream began.
    granted: u64,
    received: u64,
    consumed: u64,
    last_data: Instant,
    /// A grant under observation: the first byte past this total answers it, and when it was given.
    probe: Option<(u64, Instant)>,
    waits_seen: u8,
    full_since: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("more bytes than were granted")]
pub struct Overrun;

impl SendCredit {
    pub fn new(window: u32) -> Self {
        Self { left: u64::from(window) }
    }

    /// Protocol 1 knows no credit.
    pub fn unlimited() -> Self {
        Self { left: u64::MAX }
    }

    pub fn left(&self) -> usize {
        usize::try_from(self.left).unwrap_or(usize::MAX)
    }

    pub fn spend(&mut self, bytes: usize) {
        if self.left != u64::MAX {
            self.left -= bytes as u64;
        }
    }

    /// A peer that grants without end does not overflow it.
    pub fn grant(&mut self, bytes: u32) {
        self.left = self.left.saturating_add(u64::from(bytes));
    }
}

impl ReceiveWindow {
    pub fn new(initial: u32, now: Instant) -> Self {
        let initial = u64::from(initial);
        Self {
            initial,
            window: initial,
            granted: initial,
            received: 0,
            consumed: 0,
            last_data: now,
            probe: None,
            waits_seen: 0,
            full_since: None,
        }
    }

    /// Bytes that this window is larger than it began.
    pub fn grown(&self) -> u64 {
        self.window - self.initial
    }

    pub fn size(&self) -> u64 {
        self.window
    }

    /// Begins with a larger window, on a connection whose line is known to be long. Returns what to grant for it.
    pub fn widen(&mut self, window: u64) -> u32 {
        let more = window.min(u64::from(MAX_WINDOW)).saturating_sub(self.window);
        self.window += more;
        self.granted += more;
        u32::try_from(more).unwrap_or(u32::MAX)
    }

    /// Counts data that came in. `may_grow` is the connection's word that its own bound allows it.
    pub fn received(&mut self, bytes: usize, now: Instant, may_grow: bool) -> Result<(), Overrun> {
        let total = self.received + bytes as u64;
        if total > self.granted {
            return Err(Overrun);
        }
        if let Some((limit, granted_at)) = self.probe
            && total > limit
        {
            self.probe = None;
            // Since the grant, or else a receiver that is slow to grant would look like a long line; and since the last
            // byte, or else a sender that never ran dry would.
            let waited = now.duration_since(self.last_data).min(now.duration_since(granted_at));
            let is_a_round_trip = waited > LEAST_WAIT && waited < MOST_WAIT;
            self.waits_seen = if is_a_round_trip { self.waits_seen.saturating_add(1) } else { 0 };
            // From the second in a row on every one doubles it, as TCP's slow start does.
            if self.waits_seen >= 2 && may_grow {
                self.window = (self.window * 2).min(u64::from(MAX_WINDOW).max(self.initial));
            }
        }
        self.received = total;
        self.last_data = now;
        if self.received - self.consumed >= self.window / 2 {
            self.full_since.get_or_insert(now);
        }
        Ok(())
    }

    /// Counts data that was written onward. Returns what to grant now; 0 means nothing yet.
    pub fn consumed(&mut self, bytes: usize, now: Instant) -> u32 {
        self.consumed += bytes as u64;
        if self.received - self.consumed < self.window / 2
            && let Some(since) = self.full_since.take()
            && now.duration_since(since) > STALL
        {
            self.window = self.initial;
        }
        let due = (self.consumed + self.window).saturating_sub(self.granted);
        if due < self.window / 2 {
            return 0;
        }
        let grant = u32::try_from(due).unwrap_or(u32::MAX);
        self.probe.get_or_insert((self.granted, now));
        self.granted += u64::from(grant);
        grant
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KIB: usize = 1024;

    #[test]
    fn grants_come_at_half_a_window() {
        let now = Instant::now();
        let mut window = ReceiveWindow::new(256 * KIB as u32, now);
        window.received(200 * KIB, now, true).unwrap();
        assert_eq!(window.consumed(100 * KIB, now), 0);
        assert_eq!(window.consumed(28 * KIB, now), 128 * KIB as u32);
    }

    #[test]
    fn too_much_is_an_overrun() {
        let now = Instant::now();
        let mut window = ReceiveWindow::new(100, now);
        assert_eq!(window.received(101, now, true), Err(Overrun));
        assert_eq!(window.received(100, now, true), Ok(()));
        assert_eq!(window.received(1, now, true), Err(Overrun));
    }

    /// A sender that always uses all it was granted, `rtt` after the grant.
    fn run(rtt: Duration, rounds: usize, may_grow: bool) -> ReceiveWindow {
        let mut now = Instant::now();
        let mut window = ReceiveWindow::new(256 * KIB as u32, now);
        let mut credit = 256 * KIB;
        for _ in 0..rounds {
            window.received(credit, now, may_grow).unwrap();
            credit = window.consumed(credit, now) as usize;
            now += rtt;
        }
        window
    }

    #[test]
    fn the_window_grows_on_a_long_line_only() {
        assert_eq!(run(Duration::from_millis(40), 40, true).window, u64::from(MAX_WINDOW));
        assert_eq!(run(Duration::from_millis(2), 40, true).grown(), 0);
        assert_eq!(run(Duration::from_secs(3), 40, true).grown(), 0);
        assert_eq!(run(Duration::from_millis(40), 40, false).grown(), 0);
    }

    #[test]
    fn a_slow_receiver_does_not_grow_its_window() {
        let mut now = Instant::now();
        let mut window = ReceiveWindow::new(256 * KIB as u32, now);
        let (mut credit, mut held) = (256 * KIB, 0);
        for _ in 0..200 {
            // A quick line: what was granted comes at once.
            window.received(credit, now, true).unwrap();
            held += credit;
            now += Duration::from_millis(50);
            let used = held.min(64 * KIB);
            held -= used;
            credit = window.consumed(used, now) as usize;
        }
        assert_eq!(window.grown(), 0);
    }

    #[test]
    fn a_wider_beginning_is_granted() {
        let mut window = ReceiveWindow::new(256 * KIB as u32, Instant::now());
        assert_eq!(window.widen(1024 * KIB as u64), 768 * KIB as u32);
        assert_eq!(window.widen(512 * KIB as u64), 0);
        window.received(1024 * KIB, Instant::now(), true).unwrap();
        assert_eq!(window.grown(), 768 * KIB as u64);
    }

    #[test]
    fn a_stall_shrinks_later_grants() {
        let mut window = run(Duration::from_millis(40), 40, true);
        let mut now = Instant::now() + Duration::from_secs(10);
        let credit = (window.granted - window.received) as usize;
        window.received(credit, now, true).unwrap();
        now += Duration::from_secs(2);
        let grant = window.consumed(credit, now) as usize;
        assert!(grant <= 256 * KIB, "{grant}");
        assert_eq!(window.grown(), 0);
    }

    proptest! {
        /// Whatever the order, the receiver never holds more than its window and never grants itself dry.
        #[test]
        fn credit_is_neither_lost_nor_made(steps in proptest::collection::vec((1usize..300_000, 1usize..300_000, 0u64..60), 1..200)) {
            let mut now = Instant::now();
            let mut window = ReceiveWindow::new(256 * KIB as u32, now);
            let mut credit = SendCredit::new(256 * KIB as u32);
            let mut held = 0;
            for (send, consume, wait) in steps {
                now += Duration::from_millis(wait);
                let sent = send.min(credit.left());
                credit.spend(sent);
                prop_assert_eq!(window.received(sent, now, true), Ok(()));
                held += sent;
                prop_assert!(held as u64 <= u64::from(MAX_WINDOW));
                let used = consume.min(held);
                held -= used;
                credit.grant(window.consumed(used, now));
                prop_assert!(held > 0 || credit.left() > 0, "a stream that can never go on");
            }
        }
    }
}
