//! Whether a claim made here may stand among all instances.

use std::{sync::Arc, time::Duration};

use rand::RngExt;
use tokio::{task::JoinSet, time::sleep};
use tunnelto_lib::name::Label;

use super::{Holder, Peers};
use crate::{
    connected_clients::{Contest, Held},
    limits::{CLAIM_TRIES, PROBE_TIME, QUESTION_TIME},
    network::{
        asking::AskError,
        peer::{Down, Peer},
        question::{About, SignedName},
    },
};

/// What a claim came to among all instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contested {
    Won { since: u64, took_over: bool },
    Lost,
}

/// Pauses between tries to write a name that others write at the same time.
const PAUSE_MS: std::ops::Range<u64> = 1..50;

impl Peers {
    /// `name` was claimed here: asks whoever may hold it whether the claim may stand, and writes it down where names are
    /// written down, so that of two claims at once the second sees the first.
    pub async fn contest(self: &Arc<Self>, name: &Label, mine: Held, takeover: bool) -> Contested {
        for _ in 0..CLAIM_TRIES {
            let (page, holders) = match self.indexed(name).await {
                Some(indexed) => (Some(indexed.page), indexed.holders),
                None => (None, Vec::new()),
            };
            let won = self.weigh(name, &mine, takeover, holders).await;
            let (Contested::Won { since, took_over }, Some(page)) = (won, page) else { return won };
            let took_over = mine.took_over || took_over;
            let held = Held { since, took_over, pending: false, away_ms: None, ..mine.clone() };
            match self.write(name, &page, Some(&held)).await {
                Ok(true) => return won,
                Ok(false) => {
                    let pause = rand::rng().random_range(PAUSE_MS);
                    sleep(Duration::from_millis(pause)).await;
                }
                // It is written later; until then others must hear of it, so all are asked, as without a store.
                Err(_) => return self.weigh(name, &mine, takeover, Vec::new()).await,
            }
        }
        tracing::warn!(%name, "too many claim it at once");
        Contested::Lost
    }

    /// An instance's own word counts; what is written down of it only where it gives none.
    async fn weigh(
        self: &Arc<Self>,
        name: &Label,
        mine: &Held,
        takeover: bool,
        mut written: Vec<Holder>,
    ) -> Contested {
        let me = &self.setting.introduction.instance;
        let (mut since, mut took_over) = (mine.since, false);
        let mut to_probe = JoinSet::new();
        let about = About::Claim(mine.clone());
        let also = written.iter().map(|holder| holder.peer.clone()).collect();
        let mut answers = self.ask_each(self.to_ask(also), name, Some(&about), &mut None);
        loop {
            let (peer, instance, theirs) = match answers.join_next().await {
                Some(Ok((peer, Ok(Some(SignedName { held, introduction, .. }))))) => {
                    let written = written.extract_if(.., |holder| Arc::ptr_eq(&holder.peer, &peer)).last();
                    let Some(mut held) = held else { continue };
                    // What it has written has won; it is about to hear so.
                    let has_won = |written: Holder| {
                        (written.held.owner, written.held.session) == (held.owner, held.session)
                    };
                    if held.pending && written.is_some_and(has_won) {
                        held.pending = false;
                    }
                    (peer, introduction.instance, held)
                }
                Some(Ok((peer, Err(AskError::Refused(_))))) => {
                    written.retain(|holder| !Arc::ptr_eq(&holder.peer, &peer));
                    continue;
                }
                Some(_) => continue,
                None => match written.pop() {
                    Some(holder) if holder.peer.down() == Some(Down::Refuses) => continue,
                    Some(holder) => (holder.peer, holder.instance, holder.held),
                    None => break,
                },
            };
            self.setting.clients.saw(theirs.since);
            match mine.contest(me, &theirs, &instance, takeover) {
                Contest::Lost => return Contested::Lost,
                Contest::Stands { since: theirs } => since = since.min(theirs),
                Contest::TakesOver => took_over = true,
                Contest::Alive => {
                    to_probe.spawn(self.clone().is_alive(peer, name.clone()));
                }
            }
        }
        while let Some(is_alive) = to_probe.join_next().await {
            if matches!(is_alive, Ok(true)) {
                return Contested::Lost;
            }
            took_over = true;
        }
        // Whoever did not answer hears of it later, and a split heals then.
        if took_over {
            since = self.setting.clients.now_on_the_common_clock();
        }
        Contested::Won { since, took_over }
    }

    /// Whether a client of `peer` that has `name` shows life.
    async fn is_alive(self: Arc<Self>, peer: Arc<Peer>, name: Label) -> bool {
        let limit = PROBE_TIME + QUESTION_TIME;
        let answer = self.ask_name(&peer, &name, Some(About::Life), limit).await;
        matches!(answer, Ok(Some(SignedName { alive: Some(true), .. })))
    }
}
