//! Hearing of what is new on other instances, once a second from each: it heals splits, wakes parked visitors and
//! voids what was remembered.

use std::{sync::Arc, time::Instant};

use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use super::{
    discovery::Discovered,
    peer::{Heard, Peer},
    peers::Peers,
    question::NewsAnswer,
};
use crate::limits::{NEWS_AT_ONCE, NEWS_EVERY, QUESTION_TIME};

/// Never ends.
pub async fn listen(peers: Arc<Peers>, mut discovered: watch::Receiver<Discovered>) {
    let mut ticks = interval(NEWS_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let at_once = Arc::new(Semaphore::new(NEWS_AT_ONCE));
    // One for each instance at most: a silent one holds up nobody but itself.
    let mut asking = JoinSet::new();
    let mut busy: Vec<Arc<Peer>> = Vec::new();
    loop {
        let was_told = tokio::select! {
            _ = ticks.tick() => false,
            changed = discovered.changed() => match changed {
                Ok(()) => true,
                Err(_) => return,
            },
            Some(done) = asking.join_next(), if !asking.is_empty() => {
                if let Ok(done) = done {
                    busy.retain(|peer| !Arc::ptr_eq(peer, &done));
                }
                continue;
            }
        };
        let now = Instant::now();
        let found = discovered.borrow_and_update();
        let is_new = was_told || found.has_changed();
        let found = found.clone();
        let mut out_of_date = peers.update(&found, is_new, now);
        for gone in &out_of_date {
            tracing::info!(at = %gone.at, "an instance is gone");
        }
        peers.forget_expired(now);
        for peer in peers.all() {
            if peers.is_indexed(&peer) {
                // It is not heard from now on.
                if peer.heard() != Heard::default() {
                    peer.set_heard(Heard::default());
                    out_of_date.push(peer);
                }
                continue;
            }
            if busy.iter().any(|other| Arc::ptr_eq(other, &peer)) || !peer.may_try(now) {
                continue;
            }
            busy.push(peer.clone());
            let (peers, at_once) = (peers.clone(), at_once.clone());
            asking.spawn_local(async move {
                // The semaphore is never closed.
                let _permit = at_once.acquire().await;
                hear(&peers, &peer).await;
                peer
            });
        }
        // All at once, since each time all names are looked at.
        peers.mirror.remove(&out_of_date).iter().for_each(|name| peers.has_changed(name));
    }
}

/// Asks until there is nothing more. What fails is asked for again with the next tick.
async fn hear(peers: &Arc<Peers>, peer: &Arc<Peer>) {
    loop {
        let heard = peer.heard();
        let goes_on = if heard.goes_on { "&goes_on=1" } else { "" };
        let path = format!("/claims?since={}&life={}{goes_on}", heard.next, heard.life);
        let Ok(answer) = peers.ask::<NewsAnswer>(peer, path, None, QUESTION_TIME).await else { return };
        peers.answered(peer, &answer.introduction);
        if peers.is_me(&answer.introduction) || !take(peers, peer, heard, &answer) {
            return;
        }
    }
}

/// Takes a part of the news; returns whether there is more.
fn take(peers: &Arc<Peers>, peer: &Arc<Peer>, heard: Heard, answer: &NewsAnswer) -> bool {
    let now = Instant::now();
    let round = if answer.from_start { heard.round.wrapping_add(1) } else { heard.round };
    for (name, held) in &answer.claims {
        peers.mirror.hear(peer, name, held.as_ref(), round, now);
        if let Some(theirs) = held {
            peers.heal(name, theirs, &answer.introduction.instance);
        }
        peers.has_changed(name);
    }
    let from_start = answer.from_start || heard.goes_on;
    if from_start && !answer.has_more {
        peers.mirror.sweep(peer, round).iter().for_each(|name| peers.has_changed(name));
    }
    let goes_on = from_start && answer.has_more;
    peer.set_heard(Heard { life: answer.introduction.life, next: answer.next, goes_on, round });
    answer.has_more
}
