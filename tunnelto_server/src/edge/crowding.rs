//! How many connections one address may have, so that nobody takes all places.

use std::{
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use dashmap::{DashMap, mapref::entry::Entry};
use http::Method;
use tokio::io::AsyncWriteExt;

use super::{
    classify::{Classified, Kind},
    h1::request::Form,
    pages::{Connection, Page},
};
use crate::error::Refusal;

/// Who has one IPv6 address has 2⁶⁴ of them.
const PREFIX: u32 = 64;

const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// An empty SETTINGS and a GOAWAY that says ENHANCE_YOUR_CALM (RFC 9113 sections 6.5 and 6.8).
const CALM_DOWN: [u8; 26] = [0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xb];

/// Connections by address, of all shards.
pub struct Crowd {
    most: usize,
    open: DashMap<IpAddr, usize>,
    last_complaint: Mutex<Option<Instant>>,
}

/// One connection of an address, until it is dropped.
pub struct OfAddress {
    address: IpAddr,
    crowd: Arc<Crowd>,
}

impl Crowd {
    /// `most` of one address; 0 is any number.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, open: DashMap::new(), last_complaint: Mutex::default() })
    }

    /// One more of `address`; `None` if it has as many as it may. This machine's own may have any number.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Option<OfAddress>> {
        if self.most == 0 || address.is_loopback() {
            return Some(None);
        }
        let address = counted_as(address);
        let mut open = self.open.entry(address).or_insert(0);
        if *open >= self.most {
            drop(open);
            self.complain(address);
            return None;
        }
        *open += 1;
        Some(Some(OfAddress { address, crowd: self.clone() }))
    }

    /// At most once a minute, whoever it is.
    fn complain(&self, address: IpAddr) {
        let Ok(mut last) = self.last_complaint.lock() else { return };
        if last.is_none_or(|last| last.elapsed() > COMPLAIN_EVERY) {
            *last = Some(Instant::now());
            tracing::warn!(%address, most = self.most, "an address has as many connections as VISITORS_PER_ADDRESS allows");
        }
    }
}

impl Drop for OfAddress {
    fn drop(&mut self) {
        if let Entry::Occupied(mut open) = self.crowd.open.entry(self.address) {
            *open.get_mut() -= 1;
            if *open.get() == 0 {
                open.remove();
            }
        }
    }
}

fn counted_as(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> PREFIX << PREFIX).into(),
        address => address,
    }
}

/// Tells a visitor in its own language to come again.
pub async fn refuse(classified: Classified) {
    let mut socket = classified.accepted.socket;
    let page = Page::refusal(Refusal::TooMany, Form::Text).to_http1(&Method::GET, Connection::Close);
    let words: &[u8] = if classified.kind == Kind::Http2 { &CALM_DOWN } else { &page };
    // It may be gone already.
    if socket.write_all(words).await.is_ok() {
        let _ = socket.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_its_number() {
        let crowd = Crowd::new(2);
        let enter = |address: &str| crowd.enter(address.parse().unwrap());
        let (one, two) = (enter("192.0.2.1"), enter("192.0.2.1"));
        assert!(one.is_some() && two.is_some() && enter("192.0.2.1").is_none());
        assert!(enter("::ffff:192.0.2.1").is_none(), "the same in other clothes");
        assert!(enter("192.0.2.2").is_some());
        drop(one);
        assert!(enter("192.0.2.1").is_some());
        drop(two);
        assert!(crowd.open.is_empty());
        let _kept = (enter("2001:db8::1"), enter("2001:db8::2"));
        assert!(enter("2001:db8::ffff:3").is_none() && enter("2001:db8:0:1::1").is_some());
        for _ in 0..9 {
            assert!(matches!(enter("127.0.0.9"), Some(None)));
        }
    }
}
