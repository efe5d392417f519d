//! What other instances have said of their names. It is at most as old as the last news, and may be wrong: whoever
//! relies on it is told so by the instance itself, and doubts it then.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use dashmap::DashMap;
use rustc_hash::FxHashSet;
use tunnelto_lib::name::Label;

use super::{doubts::Doubts, peer::Peer};
use crate::connected_clients::Held;

#[derive(Default)]
pub struct Mirror {
    names: DashMap<Label, Vec<Entry>>,
    pub doubts: Doubts,
}

/// A name at one instance.
struct Entry {
    peer: Arc<Peer>,
    owner: u64,
    since: u64,
    /// It has no connections there, and is kept until then.
    away_until: Option<Instant>,
    /// In which round of hearing everything it was told last.
    round: u32,
}

/// What is known of a name without asking.
#[derive(Debug)]
pub enum Known {
    /// The instances whose clients serve it, all of one owner.
    At(Vec<Arc<Peer>>),
    /// Its client has gone without a word, or its instance has.
    Away(Instant),
    /// Nothing, or nothing certain.
    Nothing,
}

impl Mirror {
    /// `peer` holds `name` so, or not at all.
    pub fn hear(&self, peer: &Arc<Peer>, name: &Label, held: Option<&Held>, round: u32, now: Instant) {
        // A pending claim may yet be lost, and exchanges cannot go there.
        let Some(held) = held.filter(|held| !held.pending) else { return self.forget(peer, name) };
        let entry = Entry {
            peer: peer.clone(),
            owner: held.owner,
            since: held.since,
            away_until: held.away_ms.map(|left| now + Duration::from_millis(left)),
            round,
        };
        self.doubts.remove(peer, name);
        let mut entries = self.names.entry(name.clone()).or_default();
        match entries.iter_mut().find(|entry| Arc::ptr_eq(&entry.peer, peer)) {
            Some(old) => *old = entry,
            None => entries.push(entry),
        }
    }

    pub fn forget(&self, peer: &Arc<Peer>, name: &Label) {
        if let Some(mut entries) = self.names.get_mut(name) {
            entries.retain(|entry| !Arc::ptr_eq(&entry.peer, peer));
        }
        self.names.remove_if(name, |_, entries| entries.is_empty());
    }

    /// Keeps of `peer`'s names those that were told in this round; returns the others.
    pub fn sweep(&self, peer: &Arc<Peer>, round: u32) -> Vec<Label> {
        self.remove_where(|entry| Arc::ptr_eq(&entry.peer, peer) && entry.round != round)
    }

    /// These are no more, or what they have said does not count any more.
    pub fn remove(&self, peers: &[Arc<Peer>]) -> Vec<Label> {
        if peers.is_empty() {
            return Vec::new();
        }
        let gone: FxHashSet<_> = peers.iter().map(Arc::as_ptr).collect();
        self.remove_where(|entry| gone.contains(&Arc::as_ptr(&entry.peer)))
    }

    fn remove_where(&self, is_over: impl Fn(&Entry) -> bool) -> Vec<Label> {
        let mut gone = Vec::new();
        self.names.retain(|name, entries| {
            let before = entries.len();
            entries.retain(|entry| !is_over(entry));
            if entries.len() < before {
                gone.push(name.clone());
            }
            !entries.is_empty()
        });
        gone
    }

    pub fn find(&self, name: &Label, grace: Duration, now: Instant) -> Known {
        let Some(entries) = self.names.get(name) else { return Known::Nothing };
        let serving: Vec<_> = entries
            .iter()
            .filter(|entry| entry.serves() && !self.doubts.contains(&entry.peer, name, now))
            .collect();
        // Two owners may have it until they hear of each other.
        if let Some(first) = serving.iter().min_by_key(|entry| entry.since) {
            let of_owner = serving.iter().filter(|entry| entry.owner == first.owner);
            return Known::At(of_owner.map(|entry| entry.peer.clone()).collect());
        }
        let away = entries.iter().filter_map(|entry| entry.away_until(grace)).filter(|until| *until > now);
        away.max().map_or(Known::Nothing, Known::Away)
    }
}

impl Entry {
    fn serves(&self) -> bool {
        self.away_until.is_none() && self.peer.down().is_none()
    }

    fn away_until(&self, grace: Duration) -> Option<Instant> {
        self.away_until.or_else(|| self.peer.away_until(grace))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{limits::DOUBT, network::peer::Down};

    const GRACE: Duration = Duration::from_secs(10);

    fn peer(last: u8) -> Arc<Peer> {
        Arc::new(Peer::new(([10, 0, 0, last], 6000).into()))
    }

    fn name() -> Label {
        Label::parse("web").unwrap()
    }

    fn held(owner: u64, since: u64) -> Held {
        Held::sample(owner, None, since)
    }

    fn found(mirror: &Mirror, now: Instant) -> Vec<std::net::SocketAddr> {
        match mirror.find(&name(), GRACE, now) {
            Known::At(peers) => peers.iter().map(|peer| peer.at).collect(),
            _ => vec![],
        }
    }

    #[test]
    fn the_older_owners_instances_serve_a_name() {
        let (mirror, now, [a, b, c]) = (Mirror::default(), Instant::now(), [1, 2, 3].map(peer));
        mirror.hear(&a, &name(), Some(&held(1, 5)), 0, now);
        mirror.hear(&b, &name(), Some(&held(2, 3)), 0, now);
        mirror.hear(&c, &name(), Some(&held(1, 9)), 0, now);
        assert_eq!(found(&mirror, now), [b.at]);
        mirror.hear(&b, &name(), None, 0, now);
        assert_eq!(found(&mirror, now), [a.at, c.at]);
    }

    #[test]
    fn what_was_wrong_is_doubted_for_a_moment() {
        let (mirror, now, a) = (Mirror::default(), Instant::now(), peer(1));
        mirror.hear(&a, &name(), Some(&held(1, 5)), 0, now);
        mirror.doubts.add(&a, &name(), now);
        assert!(found(&mirror, now).is_empty());
        assert_eq!(found(&mirror, now + DOUBT), [a.at]);
    }

    #[test]
    fn names_of_a_vanished_instance_are_away_for_their_grace() {
        let (mirror, now, a) = (Mirror::default(), Instant::now(), peer(1));
        mirror.hear(&a, &name(), Some(&held(1, 5)), 0, now);
        a.failed(Down::Refuses, now);
        a.failed(Down::Refuses, now);
        assert!(matches!(mirror.find(&name(), GRACE, now), Known::Away(until) if until == now + GRACE));
        assert!(matches!(mirror.find(&name(), GRACE, now + GRACE), Known::Nothing));
    }

    #[test]
    fn what_a_new_round_does_not_tell_is_gone() {
        let (mirror, now, a) = (Mirror::default(), Instant::now(), peer(1));
        let other = Label::parse("other").unwrap();
        mirror.hear(&a, &name(), Some(&held(1, 5)), 0, now);
        mirror.hear(&a, &other, Some(&held(1, 5)), 0, now);
        mirror.hear(&a, &other, Some(&held(1, 5)), 1, now);
        assert_eq!(mirror.sweep(&a, 1), [name()]);
        assert_eq!(mirror.names.len(), 1);
        assert_eq!(mirror.remove(&[a]), [other]);
        assert!(mirror.names.is_empty());
    }
}
