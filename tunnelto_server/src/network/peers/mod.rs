//! The directory: who else holds a name, by what others have told or written down and, where that says nothing, by
//! asking all of them at once.

mod claiming;
mod indexed;
mod locating;

use std::{
    net::SocketAddr,
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};

use dashmap::DashMap;
use rustc_hash::FxHashMap;
use serde::de::DeserializeOwned;
use tokio::{sync::watch, task::JoinSet};
use tokio_util::task::TaskTracker;
use tunnelto_lib::name::Label;

pub use claiming::Contested;
use indexed::Holder;

use super::{
    asking::{AskError, Asker},
    discovery::{Discovered, Listed, Spotted},
    index::Index,
    lookup::{Located, LookupError},
    mirror::Mirror,
    peer::{Down, Introduction, Peer},
    question::{About, CertificateAnswer, NameAnswer, Question, SignedName},
};
use crate::{
    connected_clients::{ConnectedClients, Healing, Held, Reason},
    gauge::Gauge,
    limits::{QUESTION_TIME, WITHOUT_STORE},
    observability::metrics::{Metrics, Store},
    parking::Lot,
    shutdown::Shutdown,
    sign::MasterKeys,
    tls::acme::sharing::Theirs,
};

/// What a directory works with.
pub struct Setting {
    pub introduction: Introduction,
    pub asker: Asker,
    /// Where names are written down, if they are.
    pub index: Option<Index>,
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
#[derive(Clone, Default)]
struct Membership {
    peers: Vec<Arc<Peer>>,
    /// Those that a store lists.
    by_instance: FxHashMap<String, Arc<Peer>>,
    problem: Option<Arc<str>>,
}

/// `None` is an answer by this instance itself.
type Answered = Result<Option<SignedName>, AskError>;

impl Peers {
    pub fn new(setting: Setting) -> Self {
        let membership = Membership { problem: Discovered::default().problem, ..Membership::default() };
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
        let membership = self.membership();
        match membership.by_instance.get(instance) {
            Some(peer) => peer.is_instance_draining(instance),
            None => membership.peers.iter().any(|peer| peer.is_instance_draining(instance)),
        }
    }

    /// Takes what discovery has found, if that is `new`. Instances that it no longer lists stay as long as they answer: they
    /// may be draining. Returns those that are gone.
    pub fn update(&self, found: &Discovered, new: bool, now: Instant) -> Vec<Arc<Peer>> {
        let mut membership = self.membership.write().unwrap_or_else(PoisonError::into_inner);
        let mut known: FxHashMap<_, _> =
            membership.peers.iter().map(|peer| (peer.at, peer.clone())).collect();
        // Of two instances at one address the later one is there.
        let spotted: FxHashMap<_, _> = found.spotted.iter().map(|spotted| (spotted.at, spotted)).collect();
        let mut peers = Vec::with_capacity(spotted.len());
        for (at, Spotted { listed, .. }) in spotted {
            let peer = known.remove(&at).unwrap_or_else(|| Arc::new(Peer::new(at)));
            if new {
                peer.list(listed.as_ref());
            }
            peers.push(peer);
        }
        let mut gone = Vec::new();
        for peer in known.into_values() {
            if new {
                peer.list(None);
            }
            let is_over = peer.introduction().is_none()
                || peer.away_until(self.setting.grace).is_some_and(|until| until <= now);
            if is_over { gone.push(peer) } else { peers.push(peer) }
        }
        let by_instance =
            peers.iter().filter_map(|peer| Some((peer.listed_instance()?, peer.clone()))).collect();
        *membership = Arc::new(Membership { peers, by_instance, problem: found.problem.clone() });
        gone
    }

    /// The index has a name by an instance that has not been listed yet. `None` where another one is known at its address.
    fn meet(&self, at: SocketAddr, listed: &Listed) -> Option<Arc<Peer>> {
        let mut membership = self.membership.write().unwrap_or_else(PoisonError::into_inner);
        let instance = &listed.introduction.instance;
        let known = membership.peers.iter().find(|peer| peer.at == at).cloned();
        if known
            .as_ref()
            .and_then(|peer| peer.introduction())
            .is_some_and(|known| known.instance != *instance)
        {
            return None;
        }
        let membership = Arc::make_mut(&mut membership);
        let peer = known.unwrap_or_else(|| {
            let peer = Arc::new(Peer::new(at));
            membership.peers.push(peer.clone());
            peer
        });
        peer.list(Some(listed));
        membership.by_instance.insert(instance.clone(), peer.clone());
        Some(peer)
    }

    /// `instance` in this life, if it is listed so.
    fn listed(&self, instance: &str, life: u64) -> Option<Arc<Peer>> {
        let peer = self.membership().by_instance.get(instance)?.clone();
        let is_it = |known: Introduction| known.instance == instance && known.life == life;
        peer.introduction().is_some_and(is_it).then_some(peer)
    }

    /// `instance` has said that what it holds is not all in the store.
    pub(super) fn is_without_store(&self, instance: &str) {
        if let Some(peer) = self.membership().by_instance.get(instance) {
            peer.without_store(Instant::now() + WITHOUT_STORE);
        }
    }

    /// Whether the index can be trusted to have all that `peer` holds.
    pub(super) fn is_indexed(&self, peer: &Peer) -> bool {
        // While others cannot rely on the store for what is here, they must hear so from here.
        let relies = |index: &Index| index.is_trusted() && index.is_complete();
        self.setting.index.as_ref().is_some_and(relies) && peer.is_in_store(Instant::now())
    }

    /// The instance `by` holds `name` as well, as `theirs` says: what becomes of it here?
    pub(super) fn heal(&self, name: &Label, theirs: &Held, by: &str) {
        let Setting { clients, metrics, introduction, .. } = &self.setting;
        let joined = theirs.connections.iter().map(|(_, joined)| *joined);
        clients.saw(joined.fold(theirs.since, u64::max));
        let healing =
            clients.heal(name, Instant::now(), |mine| mine.heal(&introduction.instance, theirs, by));
        if healing == Healing::Yield(Reason::LostClaim) {
            metrics.claim_lost();
            tracing::warn!(%name, to = by, "name lost: another owner had it first");
        }
    }

    /// Asks those of `peers` that may be tried. `problem` becomes why one may not.
    fn ask_each(
        self: &Arc<Self>,
        peers: Vec<Arc<Peer>>,
        name: &Label,
        about: Option<&About>,
        problem: &mut Option<LookupError>,
    ) -> JoinSet<(Arc<Peer>, Answered)> {
        let now = Instant::now();
        let mut answers = JoinSet::new();
        for peer in peers {
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

    /// Those of whose names nothing is written down, and `also`.
    fn to_ask(&self, also: Vec<Arc<Peer>>) -> Vec<Arc<Peer>> {
        let mut all = also;
        for peer in self.others() {
            if !self.is_indexed(&peer) && !all.iter().any(|other| Arc::ptr_eq(other, &peer)) {
                all.push(peer);
            }
        }
        all
    }

    pub(super) async fn ask_name(
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

    /// What the others say of the certificate for `host`, as far as they answer.
    pub(super) async fn certificate(self: Arc<Self>, host: String, keys: MasterKeys) -> Vec<Theirs> {
        let now = Instant::now();
        let mut answers = JoinSet::new();
        for peer in self.others().into_iter().filter(|peer| peer.may_try(now)) {
            let (peers, path) = (self.clone(), format!("/certificate?host={host}"));
            answers.spawn(async move {
                let answer = peers.ask::<CertificateAnswer>(&peer, path, None, QUESTION_TIME).await.ok()?;
                (!peers.is_me(&answer.introduction)).then_some(answer)
            });
        }
        let answers = answers.join_all().await.into_iter().flatten();
        answers.map(|answer| answer.open(&host, &keys)).collect()
    }

    /// Asks, and keeps in mind who did not answer.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        peer: &Peer,
        path: String,
        about: Option<About>,
        limit: Duration,
    ) -> Result<T, AskError> {
        let Setting { asker, introduction, index, .. } = &self.setting;
        let question = Question {
            without_store: index.as_ref().is_some_and(|index| !index.is_complete()),
            by_store: index.as_ref().is_some_and(Index::is_trusted),
            ..Question::new(path, &introduction.instance, about)
        };
        let answer = asker.ask(peer, question, limit).await;
        self.setting.metrics.asked(answer.is_ok());
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

    pub(super) fn store(&self) -> Store {
        match &self.setting.index {
            Some(index) if index.is_trusted() => Store::Trusted,
            Some(index) if index.is_up() => Store::Up,
            _ => Store::Away,
        }
    }

    /// What the store says of `name` and this instance may be wrong.
    pub(super) fn write_again(&self, name: &Label) {
        if self.setting.index.is_some() {
            self.setting.clients.told_wrongly(name);
        }
    }

    /// Takes this instance out of the index.
    pub(super) async fn leave(&self) {
        if let Some(index) = &self.setting.index {
            index.leave(&self.setting.introduction.instance).await;
        }
    }

    /// `peer` turned out not to serve `name`.
    pub fn doubt(&self, peer: &Arc<Peer>, name: &Label) {
        self.mirror.doubts.add(peer, name, Instant::now());
        self.answers.remove(name);
    }

    /// There is news of `name`: what was remembered may be wrong, and whoever waits for it looks again.
    pub(super) fn has_changed(&self, name: &Label) {
        self.answers.remove(name);
        self.setting.lot.wake(name);
    }

    pub(super) fn forget_expired(&self, now: Instant) {
        self.answers.retain(|_, (_, until)| *until > now);
        self.mirror.doubts.forget_expired(now);
    }
}
