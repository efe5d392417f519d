//! Instances that turned out not to serve a name which they are said to have: for a moment they are not believed to.

use std::{net::SocketAddr, time::Instant};

use dashmap::DashMap;
use tunnelto_lib::name::Label;

use super::peer::Peer;
use crate::limits::DOUBT;

#[derive(Default)]
pub struct Doubts(DashMap<Label, Vec<(SocketAddr, Instant)>>);

impl Doubts {
    pub fn add(&self, peer: &Peer, name: &Label, now: Instant) {
        let mut doubted = self.0.entry(name.clone()).or_default();
        doubted.retain(|(at, _)| *at != peer.at);
        doubted.push((peer.at, now + DOUBT));
    }

    /// There is news of it from there.
    pub fn remove(&self, peer: &Peer, name: &Label) {
        if let Some(mut doubted) = self.0.get_mut(name) {
            doubted.retain(|(at, _)| *at != peer.at);
        }
    }

    pub fn contains(&self, peer: &Peer, name: &Label, now: Instant) -> bool {
        let doubted = self.0.get(name);
        doubted.is_some_and(|doubted| doubted.iter().any(|(at, until)| *at == peer.at && *until > now))
    }

    pub fn forget_expired(&self, now: Instant) {
        self.0.retain(|_, doubted| {
            doubted.retain(|(_, until)| *until > now);
            !doubted.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_instance_is_doubted_for_a_moment() {
        let (doubts, now, name) = (Doubts::default(), Instant::now(), Label::parse("web").unwrap());
        let [a, b] = [1, 2].map(|last| Peer::new(([10, 0, 0, last], 6000).into()));
        doubts.add(&a, &name, now);
        assert!(doubts.contains(&a, &name, now) && !doubts.contains(&b, &name, now));
        assert!(!doubts.contains(&a, &name, now + DOUBT));
        doubts.forget_expired(now + DOUBT - Duration::from_millis(1));
        assert!(doubts.contains(&a, &name, now));
        doubts.remove(&a, &name);
        assert!(!doubts.contains(&a, &name, now));
        doubts.forget_expired(now);
        assert!(doubts.0.is_empty());
    }
}
