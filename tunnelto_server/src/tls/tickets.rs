//! Tickets by which a visitor goes on with the TLS it had (RFC 5077, RFC 8446 section 4.6.1). Their keys follow from the master
//! key and the time, so that every instance takes what another gave.

use std::time::{SystemTime, UNIX_EPOCH};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use rustls::server::ProducesTickets;

use crate::sign::{MasterKeys, Purpose};

/// Seconds for which one key gives tickets. They are taken as long again.
const TURN: u64 = 6 * 3600;

/// The bytes before the nonce: the turn's number.
const NUMBER: usize = 8;

#[derive(Debug)]
pub struct Tickets(MasterKeys);

impl Tickets {
    pub fn new(keys: MasterKeys) -> Self {
        Self(keys)
    }

    fn key(&self, turn: u64) -> Option<LessSafeKey> {
        let key = self.0.derive_key(Purpose::TlsTicket, &turn.to_string());
        UnboundKey::new(&AES_256_GCM, &key).ok().map(LessSafeKey::new)
    }

    fn give(&self, plain: &[u8], turn: u64) -> Option<Vec<u8>> {
        let nonce: [u8; NONCE_LEN] = rand::random();
        let mut sealed = plain.to_vec();
        let nonce_used = Nonce::assume_unique_for_key(nonce);
        self.key(turn)?.seal_in_place_append_tag(nonce_used, Aad::empty(), &mut sealed).ok()?;
        Some([&turn.to_be_bytes()[..], &nonce, &sealed].concat())
    }

    fn take(&self, ticket: &[u8], now: u64) -> Option<Vec<u8>> {
        let (turn, rest) = ticket.split_first_chunk::<NUMBER>()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        let turn = u64::from_be_bytes(*turn);
        // An instance whose clock is ahead may have begun the next.
        if turn.abs_diff(now) > 1 {
            return None;
        }
        let mut bytes = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let plain = self.key(turn)?.open_in_place(nonce, Aad::empty(), &mut bytes).ok()?;
        Some(plain.to_vec())
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
        self.give(plain, turn())
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
        let ticket = tickets().give(b"session", 7).unwrap();
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
        let ticket = tickets.give(b"session", 7).unwrap();
        for at in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[at] ^= 1;
            assert_eq!(tickets.take(&changed, 7), None, "{at}");
            assert_eq!(tickets.take(&ticket[..at], 7), None, "{at}");
        }
    }
}
