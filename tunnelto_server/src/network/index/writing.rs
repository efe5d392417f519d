//! Writes down what changes here, and tells whoever holds the same name.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use rustc_hash::FxHashSet;
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};
use tunnelto_lib::name::Label;

use super::{Index, StoreError, entry};
use crate::{
    limits::{PAGE_LIFE, QUESTION_TIME, STORE_AT_ONCE},
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
    /// Everything is written anew whether it is there or not.
    in_full: bool,
    full_at: Option<Instant>,
}

/// What became of one name.
enum Done {
    Well,
    /// It must be tried again.
    NotYet,
}

/// Never ends.
pub async fn write_changes(peers: Arc<Peers>) {
    let Some(index) = &peers.setting.index else { return };
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = Told::default();
    let mut again: FxHashSet<Label> = FxHashSet::default();
    let mut again_at = Instant::now();
    loop {
        ticks.tick().await;
        if !index.is_up() {
            continue;
        }
        told.begin_anew_if_due(index, Instant::now());
        if again_at <= Instant::now() {
            again_at = Instant::now() + AGAIN;
            let names = std::mem::take(&mut again);
            again.extend(write_all(&peers, names.into_iter().collect(), false).await);
        }
        let mut has_more = true;
        while has_more {
            let news = peers.setting.clients.news(told.since, told.goes_on, PART).unwrap_or_default();
            told.goes_on = news.has_more;
            told.since = news.next;
            has_more = news.has_more;
            again.extend(write_all(&peers, news.names, told.in_full).await);
        }
        told.in_full = false;
    }
}

impl Told {
    fn begin_anew_if_due(&mut self, index: &Index, now: Instant) {
        let losses = index.state().losses;
        let is_old = self.full_at.is_none_or(|at| now.duration_since(at) >= PAGE_LIFE / 3);
        if losses != self.losses || is_old {
            *self = Self { losses, in_full: true, full_at: Some(now), ..Self::default() };
        }
    }
}

/// Returns those that must be tried again.
async fn write_all(peers: &Arc<Peers>, names: Vec<Label>, in_full: bool) -> Vec<Label> {
    let mut writing = JoinSet::new();
    let mut not_yet = Vec::new();
    let mut names = names.into_iter();
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
            None => return not_yet,
            Some(Ok((_, Ok(Done::Well)))) => {}
            Some(Ok((name, Ok(Done::NotYet) | Err(_)))) => not_yet.push(name),
            Some(Err(error)) => tracing::error!(%error, "writing a name down failed"),
        }
    }
}

/// Makes the store say of `name` what is true here.
async fn write(peers: &Arc<Peers>, name: &Label, in_full: bool) -> Result<Done, StoreError> {
    let Some(index) = &peers.setting.index else { return Ok(Done::Well) };
    let me = &peers.setting.introduction;
    for _ in 0..TRIES {
        let held = peers.setting.clients.held(name, Instant::now());
        if held.as_ref().is_some_and(|held| held.pending) {
            // It is written when it has won.
            return Ok(Done::Well);
        }
        let page = index.read(name).await?;
        let is_there = page.entry(&me.instance) == held.as_ref().map(|held| entry(me, held)).as_deref();
        if !(is_there && (!in_full || held.is_none())) && !index.write(name, &page, me, held.as_ref()).await?
        {
            continue;
        }
        return Ok(match held {
            Some(held) => tell(peers, name, &page, About::Claim(held)).await,
            None => Done::Well,
        });
    }
    Ok(Done::NotYet)
}

/// Tells the other holders what is held here, and hears from them what is held there, so that both know what to do if it
/// is one too many.
async fn tell(peers: &Arc<Peers>, name: &Label, page: &super::Page, about: About) -> Done {
    let mut done = Done::Well;
    for holder in peers.holders(page).await {
        match peers.ask_name(&holder.peer, name, Some(about.clone()), QUESTION_TIME).await {
            Ok(Some(answer)) => {
                if let Some(theirs) = answer.held {
                    peers.heal(name, &theirs, &answer.introduction.instance);
                }
            }
            Ok(None) => {}
            Err(_) => done = Done::NotYet,
        }
    }
    done
}
