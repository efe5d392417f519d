//! The directory that asks: who else holds a name, by what others have told and, where that says nothing, by asking
//! all of them at once.

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};

use dashmap::{DashMap, Entry};
use serde::de::DeserializeOwned;
use tokio::{sync::watch, task::JoinSet};
use tokio_util::task::TaskTracker;
use tunnelto_lib::name::Label;

use super::{
    asking::{AskError, Asker},
    discovery::Discovered,
    lookup::{Located, LookupError, unknown},
    mirror::{Known, Mirror},
    peer::{Down, Introduction, Peer},
    question::{About, NameAnswer, SignedName},
};
use crate::{
    connected_clients::{ConnectedClients, Contest, Held},
    gauge::Gauge,
    limits::{KNOW_NO, KNOW_YES, MAX_KNOWN, MAX_LOOKUPS, PROBE_TIME, QUESTION_TIME},
    observability::metrics::{Lookup, Metrics},
    parking::Lot,
    shutdown::Shutdown,
};

/// What a directory works with.
pub struct Setting {
    pub introduction: Introduction,
    pub asker: Asker,
    pub clients: Arc<ConnectedClients>,
    pub lot: Arc<Lot>,
    pub metrics: Arc<Metrics>,
    pub shutdown: Shutdown,
    pub grace: Duration,
}

pub struct Peers {
    pub(super) setting: Setting,
    pub(super) mirror: Mirror,
    membership: RwLock<Arc<Membership>>,
    answers: DashMap<Label, (Located, Instant)>,
    flights: DashMap<Label, watch::Receiver<Option<Result<Located, LookupError>>>>,
    asked: Gauge,
    tasks: TaskTracker,
}

/// The other instances, and this one until it has recognised itself.
struct Membership {
    peers: Vec<Arc<Peer>>,
    problem: Option<Arc<str>>,
}

/// `None` is an answer by this instance itself.
type Answered = Result<Option<SignedName>, AskError>;

/// What a claim came to among all instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contested {
    Won { since: u64, took_over: bool },
    Lost,
}

impl Peers {
    pub fn new(setting: Setting) -> Self {
        let membership = Membership { peers: Vec::new(), problem: Discovered::default().problem };
        Self {
            setting,
            mirror: Mirror::default(),
            membership: RwLock::new(Arc::new(membership)),
            answers: DashMap::new(),
            flights: DashMap::new(),
            asked: Gauge::default(),
            tasks: TaskTracker::new(),
        }
    }

    /// How this instance names itself just now.
    pub fn introduction(&self) -> Introduction {
        Introduction { draining: self.setting.shutdown.is_draining(), ..self.setting.introduction.clone() }
    }

    pub fn is_me(&self, introduction: &Introduction) -> bool {
        introduction.instance == self.setting.introduction.instance
    }

    fn membership(&self) -> Arc<Membership> {
        self.membership.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All instances that are known, as they are asked for news.
    pub fn all(&self) -> Vec<Arc<Peer>> {
        self.membership().peers.clone()
    }

    pub fn others(&self) -> Vec<Arc<Peer>> {
        let me = &self.setting.introduction.instance;
        self.membership().peers.iter().filter(|peer| !peer.is_instance(me)).cloned().collect()
    }

    /// Asked with each answer to a visitor whom that instance has brought.
    pub fn is_draining(&self, instance: &str) -> bool {
        self.membership().peers.iter().any(|peer| peer.is_instance_draining(instance))
    }

    /// Takes what discovery has found. Instances that it no longer lists stay as long as they answer: they may be
    /// draining. Returns those that are gone.
    pub fn update(&self, found: &Discovered, now: Instant) -> Vec<Arc<Peer>> {
        let known = self.membership();
        let of = |at| known.peers.iter().find(|peer| peer.at == at).cloned();
        let mut peers: Vec<_> =
            found.at.iter().map(|at| of(*at).unwrap_or_else(|| Arc::new(Peer::new(*at)))).collect();
        let mut gone = Vec::new();
        for peer in known.peers.iter().filter(|peer| !found.at.contains(&peer.at)) {
            let is_over = peer.introduction().is_none()
                || peer.away_until(self.setting.grace).is_some_and(|until| until <= now);
            if is_over { gone.push(peer.clone()) } else { peers.push(peer.clone()) }
        }
        let next = Membership { peers, problem: found.problem.clone() };
        *self.membership.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
        gone
    }

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
        let result = self.ask_all(name).await;
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

    /// The first yes wins; all must have said no for a no.
    async fn ask_all(self: &Arc<Self>, name: &Label) -> Result<Located, LookupError> {
        let membership = self.membership();
        let mut problem = membership.problem.clone().map(LookupError::Resolver);
        if !membership.peers.is_empty() {
            // Those that were found may well be all.
            problem = None;
        }
        let mut answers = self.ask_others(name, None, &mut problem);
        let mut away: Option<Instant> = None;
        while let Some(answer) = answers.join_next().await {
            let Ok((peer, answer)) = answer else { continue };
            match answer {
                Ok(Some(SignedName { held: Some(held), .. })) => match held.away_ms {
                    None if !held.pending => return Ok(Located::At(vec![peer])),
                    None => {}
                    Some(left) => {
                        let until = Instant::now() + Duration::from_millis(left);
                        away = Some(away.map_or(until, |known| known.max(until)));
                    }
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

    /// Asks every other instance that may be tried. `problem` becomes why one may not.
    fn ask_others(
        self: &Arc<Self>,
        name: &Label,
        about: Option<&About>,
        problem: &mut Option<LookupError>,
    ) -> JoinSet<(Arc<Peer>, Answered)> {
        let now = Instant::now();
        let mut answers = JoinSet::new();
        for peer in self.others() {
            if !peer.may_try(now) {
                if peer.down() == Some(Down::Silent) {
                    let text = format!("{} has not answered of late", peer.at);
                    problem.get_or_insert(LookupError::Io(text.into()));
                }
                continue;
            }
            let (peers, name, about) = (self.clone(), name.clone(), about.cloned());
            answers.spawn(async move {
                let answer = peers.ask_name(&peer, &name, about, QUESTION_TIME).await;
                (peer, answer)
            });
        }
        answers
    }

    async fn ask_name(
        &self,
        peer: &Arc<Peer>,
        name: &Label,
        about: Option<About>,
        limit: Duration,
    ) -> Answered {
        let answer: NameAnswer = self.ask(peer, format!("/?host={name}"), about, limit).await?;
        let signed =
            answer.signed.ok_or_else(|| AskError::Request("an answer without a name of its own".into()))?;
        self.answered(peer, &signed.introduction);
        Ok((!self.is_me(&signed.introduction)).then_some(signed))
    }

    /// Asks, and keeps in mind who did not answer.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        peer: &Peer,
        path: String,
        about: Option<About>,
        limit: Duration,
    ) -> Result<T, AskError> {
        let answer = self.setting.asker.ask(peer, path, about, limit).await;
        if let Err(error) = &answer {
            let is_news = match error.down() {
                Some(down) => peer.failed(down, Instant::now()),
                None => peer.complains(Instant::now()),
            };
            if is_news {
                tracing::warn!(%error, "another instance does not answer as it should");
            }
        }
        answer
    }

    pub(super) fn answered(&self, peer: &Peer, introduction: &Introduction) {
        if peer.answered(introduction) {
            tracing::info!(at = %peer.at, instance = introduction.instance, "another instance answers again");
        }
    }

    /// `name` was claimed here: asks all others whether it may stand.
    pub async fn contest(self: &Arc<Self>, name: &Label, mine: Held, takeover: bool) -> Contested {
        let mut problem = None;
        let (mut since, mut took_over) = (mine.since, false);
        let mut to_probe = JoinSet::new();
        let me = self.setting.introduction.instance.clone();
        let about = About::Claim(mine.clone());
        let mut answers = self.ask_others(name, Some(&about), &mut problem);
        while let Some(answer) = answers.join_next().await {
            let Ok((peer, answer)) = answer else { continue };
            let Ok(Some(SignedName { held: Some(theirs), introduction, .. })) = answer else { continue };
            self.setting.clients.saw(theirs.since);
            match mine.contest(&me, &theirs, &introduction.instance, takeover) {
                Contest::Lost => return Contested::Lost,
                Contest::Stands { since: theirs } => since = since.min(theirs),
                Contest::TakesOver => took_over = true,
                Contest::Alive => {
                    let (peers, name) = (self.clone(), name.clone());
                    to_probe.spawn(async move {
                        let limit = PROBE_TIME + QUESTION_TIME;
                        let answer = peers.ask_name(&peer, &name, Some(About::Life), limit).await;
                        matches!(answer, Ok(Some(SignedName { alive: Some(true), .. })))
                    });
                }
            }
        }
        while let Some(is_alive) = to_probe.join_next().await {
            if matches!(is_alive, Ok(true)) {
                return Contested::Lost;
            }
            took_over = true;
        }
        // Whoever did not answer hears of it with the news, and a split heals then.
        if took_over {
            since = self.setting.clients.now_on_the_common_clock();
        }
        Contested::Won { since, took_over }
    }

    /// `peer` turned out not to serve `name`.
    pub fn doubt(&self, peer: &Arc<Peer>, name: &Label) {
        self.mirror.doubt(peer, name, Instant::now());
        self.answers.remove(name);
    }

    /// There is news of `name`: what was remembered may be wrong, and whoever waits for it looks again.
    pub(super) fn has_changed(&self, name: &Label) {
        self.answers.remove(name);
        self.setting.lot.wake(name);
    }

    pub(super) fn forget_expired(&self, now: Instant) {
        self.answers.retain(|_, (_, until)| *until > now);
    }
}
