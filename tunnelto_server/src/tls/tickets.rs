//! Tickets by which a visitor goes on with the TLS it had (RFC 5077, RFC 8446 section 4.6.1). Their keys follow from the master
//! key and the time, so that every instance takes what another gave.

use std::time::{SystemTime, UNIX_EPOCH};

use rustls::server::ProducesTickets;

use crate::sign::{MasterKeys, Purpose};

/// Seconds for which one key gives tickets. They are taken as long again.
const TURN: u64 = 6 * 3600;

/// A ticket is the turn's number and the session, encrypted by that turn's key.
#[derive(Debug)]
pub struct Tickets(MasterKeys);

impl Tickets {
    pub fn new(keys: MasterKeys) -> Self {
        Self(keys)
    }

    fn give(&self, plain: &[u8], turn: u64) -> Vec<u8> {
        let sealed = self.0.encrypt(Purpose::TlsTicket, &turn.to_string(), plain);
        [&turn.to_be_bytes()[..], &sealed].concat()
    }

    fn take(&self, ticket: &[u8], now: u64) -> Option<Vec<u8>> {
        let (turn, sealed) = ticket.split_first_chunk::<8>()?;
        let turn = u64::from_be_bytes(*turn);
        // An instance whose clock is ahead may have begun the next.
        if turn.abs_diff(now) > 1 {
            return None;
        }
        self.0.decrypt(Purpose::TlsTicket, &turn.to_string(), sealed)
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        u32::try_from(TURN).unwrap_or(u32::MAX)
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        Some(self.give(plain, turn()))
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.take(ticket, turn())
    }
}

fn turn() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / TURN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_taken_by_every_instance_for_two_turns() {
        let tickets = || Tickets::new(MasterKeys::new([1; 32], None));
        let ticket = tickets().give(b"session", 7);
        for (now, taken) in [(5, false), (6, true), (7, true), (8, true), (9, false)] {
            assert_eq!(tickets().take(&ticket, now).is_some(), taken, "{now}");
        }
        assert_eq!(tickets().take(&ticket, 7).unwrap(), b"session");
        let others = Tickets::new(MasterKeys::new([2; 32], None));
        assert_eq!(others.take(&ticket, 7), None);
    }

    #[test]
    fn a_ticket_that_was_changed_or_cut_is_none() {
        let tickets = Tickets::new(MasterKeys::new([1; 32], None));
        let ticket = tickets.give(b"session", 7);
        for at in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[at] ^= 1;
            assert_eq!(tickets.take(&changed, 7), None, "{at}");
            assert_eq!(tickets.take(&ticket[..at], 7), None, "{at}");
        }
    }
}
