//! Where a name is: what has been heard, what is remembered, what is written down; then all are asked at once.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use dashmap::Entry;
use tokio::sync::watch;
use tunnelto_lib::name::Label;

use super::{Holder, Peers};
use crate::{
    limits::{KNOW_NO, KNOW_YES, MAX_KNOWN, MAX_LOOKUPS},
    network::{
        lookup::{Located, LookupError, unknown},
        mirror::Known,
        peer::Peer,
        question::SignedName,
    },
    observability::metrics::Lookup,
};

impl Peers {
    /// Where `name` is, besides here.
    pub async fn locate(self: &Arc<Self>, name: &Label) -> Result<Located, LookupError> {
        let now = Instant::now();
        let told = self.mirror.find(name, self.setting.grace, now);
        if let Known::At(peers) = told {
            self.setting.metrics.looked_up(Lookup::Peer, Some(now.elapsed()));
            return Ok(Located::At(peers));
        }
        let asked = match self.remembered(name, now) {
            Some(known) => Ok(known),
            None => self.ask_once(name).await,
        };
        match (asked, told) {
            // Nobody has it now, as far as can be known, but its client has only just gone.
            (Ok(Located::Nowhere) | Err(_), Known::Away(until)) => Ok(Located::Away(until)),
            (asked, _) => asked,
        }
    }

    fn remembered(&self, name: &Label, now: Instant) -> Option<Located> {
        let answer = self.answers.get(name)?;
        let (known, until) = &*answer;
        let is_good = *until > now
            && match known {
                Located::At(peers) => peers.iter().all(|peer| peer.down().is_none()),
                Located::Away(_) | Located::Nowhere => true,
            };
        is_good.then(|| known.clone())
    }

    /// Whoever asks for a name that is being asked for waits for the same answer.
    async fn ask_once(self: &Arc<Self>, name: &Label) -> Result<Located, LookupError> {
        let mut flight = match self.flights.entry(name.clone()) {
            Entry::Occupied(flying) => flying.get().clone(),
            Entry::Vacant(vacant) => {
                let place = self.asked.try_enter(MAX_LOOKUPS).ok_or(LookupError::Busy)?;
                let (landing, flight) = watch::channel(None);
                vacant.insert(flight.clone());
                let (peers, name) = (self.clone(), name.clone());
                self.tasks.spawn(async move {
                    let _place = place;
                    let result = peers.ask_and_remember(&name).await;
                    peers.flights.remove(&name);
                    // Nobody may be waiting any more.
                    let _ = landing.send(Some(result));
                });
                flight
            }
        };
        let landed = flight.wait_for(Option::is_some).await;
        let landed = landed.ok().and_then(|result| result.clone());
        landed.unwrap_or_else(|| Err(LookupError::Io("this instance stops".into())))
    }

    async fn ask_and_remember(self: &Arc<Self>, name: &Label) -> Result<Located, LookupError> {
        let began = Instant::now();
        let result = self.find_out(name).await;
        let took = began.elapsed();
        let kind = match &result {
            Ok(located) => located.kind(),
            Err(error) => error.kind(),
        };
        self.setting.metrics.looked_up(kind, Some(took));
        match &result {
            Ok(Located::At(at)) => {
                tracing::debug!(%name, ?took, result = kind.label(), at = %at[0].at, "looked up")
            }
            Ok(_) => tracing::debug!(%name, ?took, result = kind.label(), "looked up"),
            Err(error) => tracing::debug!(%name, ?took, result = kind.label(), %error, "looked up"),
        }
        if let Ok(located) = &result
            && self.answers.len() < MAX_KNOWN
        {
            let life = if matches!(located, Located::At(_)) { KNOW_YES } else { KNOW_NO };
            self.answers.insert(name.clone(), (located.clone(), Instant::now() + life));
        }
        result
    }

    /// What is written down, and where that says nothing certain the word of the instances themselves.
    async fn find_out(self: &Arc<Self>, name: &Label) -> Result<Located, LookupError> {
        let now = Instant::now();
        let holders = self.indexed(name).await.map_or_else(Vec::new, |indexed| indexed.holders);
        let is_serving = |holder: &&Holder| {
            holder.held.away_ms.is_none()
                && holder.peer.down().is_none()
                && !self.mirror.doubts.contains(&holder.peer, name, now)
        };
        let serving: Vec<_> = holders.iter().filter(is_serving).collect();
        if let Some(first) = serving.iter().min_by_key(|holder| holder.held.since) {
            let of_owner = serving.iter().filter(|holder| holder.held.owner == first.held.owner);
            return Ok(Located::At(of_owner.map(|holder| holder.peer.clone()).collect()));
        }
        let away = holders.iter().filter_map(|holder| holder.peer.away_until(self.setting.grace));
        let away = away.filter(|until| *until > now).max();
        self.ask_all(name, holders.into_iter().map(|holder| holder.peer).collect(), away).await
    }

    /// The first yes wins; all must have said no for a no.
    async fn ask_all(
        self: &Arc<Self>,
        name: &Label,
        holders: Vec<Arc<Peer>>,
        mut away: Option<Instant>,
    ) -> Result<Located, LookupError> {
        let membership = self.membership();
        // Those that were found may well be all.
        let nobody_known = membership.peers.is_empty();
        let mut problem = membership.problem.clone().filter(|_| nobody_known).map(LookupError::Resolver);
        let mut answers = self.ask_each(self.to_ask(holders), name, None, &mut problem);
        while let Some(answer) = answers.join_next().await {
            let Ok((peer, answer)) = answer else { continue };
            match answer {
                Ok(Some(SignedName { held: Some(held), .. })) => match held.away_ms {
                    None if !held.pending => return Ok(Located::At(vec![peer])),
                    None => {}
                    Some(left) => away = away.max(Some(Instant::now() + Duration::from_millis(left))),
                },
                Ok(_) => {}
                Err(error) => problem = problem.or(unknown(error)),
            }
        }
        match (away, problem) {
            (Some(until), _) => Ok(Located::Away(until)),
            (None, Some(problem)) => Err(problem),
            (None, None) => Ok(Located::Nowhere),
        }
    }
}
