//! Writes down what changes here, and tells whoever holds the same name.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use rustc_hash::FxHashSet;
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};
use tunnelto_lib::name::Label;

use super::{Index, Page, StoreError, entry};
use crate::{
    limits::{QUESTION_TIME, STORE_AT_ONCE},
    network::{peers::Peers, question::About},
};

/// How often it is looked whether anything has changed.
const LOOK: Duration = Duration::from_millis(100);

/// Names in one part.
const PART: usize = 256;

/// How often a name is tried again that could not be written, or whose other holder could not be told.
const AGAIN: Duration = Duration::from_secs(1);

/// How often one name is tried at once while others write it as well.
const TRIES: usize = 8;

/// How far the store has been told.
#[derive(Default)]
struct Told {
    since: u64,
    goes_on: bool,
    losses: u64,
    /// Pages are written anew whether they have it or not, since the store forgets them.
    in_full: bool,
    full_at: Option<Instant>,
}

/// What became of one name.
enum Done {
    Well,
    /// Another holder could not be told.
    Untold,
}

/// Names that must be tried again.
#[derive(Default)]
struct Again {
    unwritten: Queue,
    untold: Queue,
}

/// Names in the order in which they came, each once.
#[derive(Default)]
struct Queue {
    names: VecDeque<Label>,
    known: FxHashSet<Label>,
}

impl Queue {
    fn push(&mut self, name: Label) {
        if self.known.insert(name.clone()) {
            self.names.push_back(name);
        }
    }

    /// Its place in the row stays, and is passed over.
    fn remove(&mut self, name: &Label) {
        self.known.remove(name);
    }

    fn pop(&mut self) -> Option<Label> {
        while let Some(name) = self.names.pop_front() {
            if self.known.remove(&name) {
                return Some(name);
            }
        }
        None
    }

    fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

/// Never ends.
pub async fn write_changes(peers: Arc<Peers>) {
    let Some(index) = &peers.setting.index else { return };
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = Told::default();
    let mut again = Again::default();
    let mut again_at = Instant::now();
    loop {
        ticks.tick().await;
        if !index.is_up() {
            continue;
        }
        let now = Instant::now();
        told.begin_anew_if_due(index, now);
        if again_at <= now {
            again_at = now + AGAIN;
            let names = again.some();
            again.write_all(&peers, names, false).await;
        }
        let mut has_more = true;
        while has_more && index.is_up() {
            let news = peers.setting.clients.news(told.since, told.goes_on, PART).unwrap_or_default();
            let is_well = again.write_all(&peers, news.names, told.in_full).await;
            (told.goes_on, told.since, has_more) = (news.has_more, news.next, news.has_more);
            if !is_well {
                break;
            }
        }
        if !again.unwritten.is_empty() {
            index.fell_behind();
        } else if !has_more {
            told.in_full = false;
            index.caught_up(told.losses);
        }
    }
}

impl Told {
    fn begin_anew_if_due(&mut self, index: &Index, now: Instant) {
        let losses = index.state().losses;
        let is_old = index.store.page_life().is_some_and(|life| {
            // Not all instances at once, though they may have been started so.
            let began = *self.full_at.get_or_insert_with(|| {
                let ago = life / 3 * rand::random_range(0..100) / 100;
                now.checked_sub(ago).unwrap_or(now)
            });
            now.duration_since(began) >= life / 3
        });
        if is_old {
            (self.in_full, self.full_at) = (true, Some(now));
        }
        if is_old || losses != self.losses {
            (self.since, self.goes_on, self.losses) = (0, false, losses);
        }
    }
}

impl Again {
    /// What is tried next: not more at once than what is new, which must not wait for it.
    fn some(&mut self) -> Vec<Label> {
        let next = || self.unwritten.pop().or_else(|| self.untold.pop());
        std::iter::from_fn(next).take(PART).collect()
    }

    /// Returns whether everything could be written.
    async fn write_all(&mut self, peers: &Arc<Peers>, names: Vec<Label>, in_full: bool) -> bool {
        let mut writing = JoinSet::new();
        let mut names = names.into_iter();
        let mut is_well = true;
        loop {
            while writing.len() < STORE_AT_ONCE
                && let Some(name) = names.next()
            {
                let peers = peers.clone();
                writing.spawn(async move {
                    let done = write(&peers, &name, in_full).await;
                    (name, done)
                });
            }
            match writing.join_next().await {
                None => return is_well,
                Some(Ok((name, Ok(done)))) => {
                    self.unwritten.remove(&name);
                    match done {
                        Done::Well => self.untold.remove(&name),
                        Done::Untold => self.untold.push(name),
                    }
                }
                Some(Ok((name, Err(_)))) => {
                    is_well = false;
                    self.unwritten.push(name);
                }
                Some(Err(error)) => tracing::error!(%error, "writing a name down failed"),
            }
        }
    }
}

/// Makes the store say of `name` what is true here.
async fn write(peers: &Arc<Peers>, name: &Label, in_full: bool) -> Result<Done, StoreError> {
    let Some(index) = &peers.setting.index else { return Ok(Done::Well) };
    let me = &peers.setting.introduction;
    for _ in 0..TRIES {
        let page = index.read(name).await?;
        let held = peers.setting.clients.held(name, Instant::now());
        if held.as_ref().is_some_and(|held| held.pending) {
            // It is written when it has won.
            return Ok(Done::Well);
        }
        let is_there = page.entry(&me.instance) == held.as_ref().map(|held| entry(me, held)).as_deref();
        if !(is_there && (!in_full || held.is_none())) && !index.write(name, &page, me, held.as_ref()).await?
        {
            continue;
        }
        return match held {
            Some(held) => tell(peers, name, &page, About::Claim(held)).await,
            None => Ok(Done::Well),
        };
    }
    Err(StoreError("others write it all the time".into()))
}

/// Tells the other holders what is held here, and hears from them what is held there, so that both know what to do if it
/// is one too many.
async fn tell(peers: &Arc<Peers>, name: &Label, page: &Page, about: About) -> Result<Done, StoreError> {
    let mut done = Done::Well;
    for holder in peers.holders(page).await? {
        if !holder.peer.may_try(Instant::now()) {
            done = Done::Untold;
            continue;
        }
        match peers.ask_name(&holder.peer, name, Some(about.clone()), QUESTION_TIME).await {
            Ok(Some(answer)) => {
                if let Some(theirs) = answer.held {
                    peers.heal(name, &theirs, &answer.introduction.instance);
                }
            }
            Ok(None) => {}
            Err(_) => done = Done::Untold,
        }
    }
    Ok(done)
}
