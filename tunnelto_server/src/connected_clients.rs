//! Who is here: names, their owners and the connections that serve them. One record per name; every change is
//! one operation on one map entry, anything else is derived.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use dashmap::{DashMap, Entry};
use tokio::{
    sync::{
        Notify,
        futures::OwnedNotified,
        mpsc::{self, error::TrySendError},
        oneshot,
    },
    time::timeout_at,
};
use tunnelto_lib::name::Label;
use uuid::Uuid;

use crate::{
    active_stream::{ConnectionId, ShardId},
    gauge::{Counted, Gauge},
    limits::{MAX_PARKED, MAX_PARKED_NAME},
};

/// Whoever a key belongs to; several keys may be one owner's. A client without a key is an owner of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner(pub Arc<str>);

pub struct ConnectedClients {
    names: DashMap<Label, Record>,
    last_id: AtomicU64,
    parked: Gauge,
    grace: Duration,
}

struct Record {
    owner: Owner,
    session: Option<Uuid>,
    pool: bool,
    members: Vec<Member>,
    /// Since when there are no members.
    away_since: Option<Instant>,
    /// Told when a member comes, or when the name is given up.
    returned: Arc<Notify>,
    parked: Gauge,
}

/// One connection that serves a name.
#[derive(Clone, Debug)]
pub struct Member {
    pub connection: ConnectionId,
    /// Exchanges under way on it.
    pub load: Gauge,
    /// Which of its session's connections it is.
    pub number: u16,
    pub client_id: Arc<str>,
    pub orders: mpsc::Sender<Order>,
}

/// What a connection's session is asked to do.
#[derive(Debug)]
pub enum Order {
    /// Ping the client; answer when it shows life.
    Probe(oneshot::Sender<()>),
    /// Another connection has taken the name's place.
    Leave(Reason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The same client is connected anew.
    Replaced,
    /// Another session of the owner has the name now.
    TakenOver,
}

/// A claim on a name, from a client that has proved who it is.
#[derive(Clone, Debug)]
pub struct Claim {
    pub name: Label,
    pub owner: Owner,
    pub session: Option<Uuid>,
    pub pool: bool,
    pub takeover: bool,
    pub member: Member,
}

/// What is known about the present holder of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    Unknown,
    /// These connections were asked and showed no life.
    Silent(Vec<ConnectionId>),
}

#[derive(Debug)]
pub enum Verdict {
    Granted,
    /// Another owner's.
    Taken,
    /// The same owner's other session serves it; it may be dead.
    Held(Vec<Member>),
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Farewell {
    /// On purpose: the name is free at once.
    Said,
    /// Without a word: the name is kept for its owner for a while.
    None,
}

pub enum Found<T> {
    /// What was chosen among the connections that serve it.
    Here(T),
    /// Nobody serves it just now.
    Away(Parking),
    /// Nobody serves it, and nobody else can wait for it.
    Full,
    Nowhere,
}

/// A place to wait for a name's return.
pub struct Parking {
    returned: OwnedNotified,
    until: Instant,
    /// Of the name's, and of all.
    _places: (Counted, Counted),
}

impl ConnectedClients {
    pub fn new(grace: Duration) -> Self {
        Self { names: DashMap::new(), last_id: AtomicU64::new(0), parked: Gauge::default(), grace }
    }

    pub fn next_id(&self, shard: ShardId) -> ConnectionId {
        ConnectionId { shard, number: self.last_id.fetch_add(1, Ordering::Relaxed) + 1 }
    }

    /// Grants a name by the rules of docs/protocol.md, "Names survive".
    pub fn claim(&self, claim: Claim, holder: Holder, now: Instant) -> Verdict {
        let mut record = match self.names.entry(claim.name) {
            Entry::Vacant(vacant) => {
                vacant.insert(Record::new(claim.owner, claim.session, claim.pool, claim.member));
                return Verdict::Granted;
            }
            Entry::Occupied(occupied) => occupied,
        };
        if record.get().is_over(self.grace, now) {
            record.get().returned.notify_waiters();
            record.insert(Record::new(claim.owner, claim.session, claim.pool, claim.member));
            return Verdict::Granted;
        }
        let record = record.get_mut();
        if record.owner != claim.owner {
            return Verdict::Taken;
        }
        let same_session = claim.session.is_some() && record.session == claim.session;
        if same_session {
            record.dismiss(Reason::Replaced, |member| member.number == claim.member.number);
        } else if record.pool && claim.pool {
            // Pools share.
        } else if claim.takeover || record.members.iter().all(|member| holder.is_silent(member.connection)) {
            record.dismiss(Reason::TakenOver, |_| true);
            record.session = claim.session;
            record.pool = claim.pool;
        } else {
            return Verdict::Held(record.members.clone());
        }
        record.members.push(claim.member);
        record.away_since = None;
        record.returned.notify_waiters();
        Verdict::Granted
    }

    /// A connection is gone.
    pub fn depart(&self, name: &Label, connection: ConnectionId, farewell: Farewell, now: Instant) {
        let Entry::Occupied(mut record) = self.names.entry(name.clone()) else { return };
        let members = &mut record.get_mut().members;
        let before = members.len();
        members.retain(|member| member.connection != connection);
        if members.len() == before || !members.is_empty() {
            return;
        }
        match farewell {
            Farewell::None => record.get_mut().away_since = Some(now),
            Farewell::Said => {
                record.get().returned.notify_waiters();
                record.remove();
            }
        }
    }

    /// Who serves `name`; `choose` is shown its connections, of which there is at least one.
    pub fn find<T>(&self, name: &Label, now: Instant, choose: impl FnOnce(&[Member]) -> T) -> Found<T> {
        let Some(record) = self.names.get(name) else { return Found::Nowhere };
        let Some(since) = record.away_since else {
            return Found::Here(choose(&record.members));
        };
        if record.is_over(self.grace, now) {
            return Found::Nowhere;
        }
        let of_name = record.parked.try_enter(MAX_PARKED_NAME);
        let Some(places) = of_name.zip(self.parked.try_enter(MAX_PARKED)) else { return Found::Full };
        Found::Away(Parking {
            returned: record.returned.clone().notified_owned(),
            until: since + self.grace,
            _places: places,
        })
    }

    /// The client that serves `name`, as peers and operators may know it.
    pub fn client_id(&self, name: &Label) -> Option<Arc<str>> {
        Some(self.names.get(name)?.members.first()?.client_id.clone())
    }

    /// Whether `name` is free or `owner`'s own.
    pub fn may_belong_to(&self, name: &Label, owner: &Owner, now: Instant) -> bool {
        match self.names.get(name) {
            None => true,
            Some(record) => record.is_over(self.grace, now) || record.owner == *owner,
        }
    }

    /// Forgets names whose grace is over.
    pub fn forget_gone(&self, now: Instant) {
        self.names.retain(|_, record| {
            let over = record.is_over(self.grace, now);
            if over {
                record.returned.notify_waiters();
            }
            !over
        });
    }
}

impl Record {
    fn new(owner: Owner, session: Option<Uuid>, pool: bool, member: Member) -> Self {
        Self {
            owner,
            session,
            pool,
            members: vec![member],
            away_since: None,
            returned: Arc::default(),
            parked: Gauge::default(),
        }
    }

    fn is_over(&self, grace: Duration, now: Instant) -> bool {
        self.away_since.is_some_and(|since| now.duration_since(since) >= grace)
    }

    fn dismiss(&mut self, reason: Reason, which: impl Fn(&Member) -> bool) {
        self.members.retain(|member| {
            let out = which(member);
            if out {
                member.order(Order::Leave(reason));
            }
            !out
        });
    }
}

impl Holder {
    fn is_silent(&self, connection: ConnectionId) -> bool {
        matches!(self, Self::Silent(connections) if connections.contains(&connection))
    }
}

impl Member {
    /// A session that has its hands full is busy with earlier orders, which end it as well.
    pub fn order(&self, order: Order) {
        if let Err(TrySendError::Full(order)) = self.orders.try_send(order) {
            tracing::debug!(?order, "order dropped: session has its queue full");
        }
    }
}

impl Parking {
    /// Whether the name may have come back before the grace was over.
    pub async fn wait(self) -> bool {
        let Self { returned, until, _places } = self;
        timeout_at(until.into(), returned).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(10);

    struct Client {
        claim: Claim,
        orders: mpsc::Receiver<Order>,
    }

    fn client(clients: &ConnectedClients, owner: &str, session: Option<u128>) -> Client {
        let (sender, orders) = mpsc::channel(4);
        let member = Member {
            connection: clients.next_id(ShardId(0)),
            load: Gauge::default(),
            number: 0,
            client_id: "id".into(),
            orders: sender,
        };
        let claim = Claim {
            name: Label::parse("web").unwrap(),
            owner: Owner(owner.into()),
            session: session.map(Uuid::from_u128),
            pool: false,
            takeover: false,
            member,
        };
        Client { claim, orders }
    }

    fn claim(clients: &ConnectedClients, client: &Client, now: Instant) -> Verdict {
        clients.claim(client.claim.clone(), Holder::Unknown, now)
    }

    fn find(clients: &ConnectedClients, client: &Client, now: Instant) -> Found<()> {
        clients.find(&client.claim.name, now, |_| ())
    }

    fn here(clients: &ConnectedClients, now: Instant) -> Vec<ConnectionId> {
        let all = |members: &[Member]| members.iter().map(|member| member.connection).collect();
        match clients.find(&Label::parse("web").unwrap(), now, all) {
            Found::Here(connections) => connections,
            _ => vec![],
        }
    }

    #[test]
    fn another_owner_is_refused_while_the_name_is_served_or_away() {
        let (clients, now) = (ConnectedClients::new(GRACE), Instant::now());
        let ann = client(&clients, "ann", None);
        let bob = client(&clients, "bob", None);
        assert!(matches!(claim(&clients, &ann, now), Verdict::Granted));
        assert!(matches!(claim(&clients, &bob, now), Verdict::Taken));
        clients.depart(&ann.claim.name, ann.claim.member.connection, Farewell::None, now);
        assert!(matches!(claim(&clients, &bob, now + GRACE / 2), Verdict::Taken));
        assert!(matches!(claim(&clients, &bob, now + GRACE), Verdict::Granted));
    }

    #[test]
    fn the_same_session_replaces_its_own_connection() {
        let (clients, now) = (ConnectedClients::new(GRACE), Instant::now());
        let mut old = client(&clients, "ann", Some(1));
        let new = client(&clients, "ann", Some(1));
        assert!(matches!(claim(&clients, &old, now), Verdict::Granted));
        assert!(matches!(claim(&clients, &new, now), Verdict::Granted));
        assert!(matches!(old.orders.try_recv(), Ok(Order::Leave(Reason::Replaced))));
        assert_eq!(here(&clients, now), [new.claim.member.connection]);
        // The old connection's end must not take the name away.
        clients.depart(&old.claim.name, old.claim.member.connection, Farewell::Said, now);
        assert_eq!(here(&clients, now), [new.claim.member.connection]);
    }

    #[test]
    fn another_session_of_the_owner_gets_the_name_only_from_a_silent_holder_or_by_takeover() {
        let (clients, now) = (ConnectedClients::new(GRACE), Instant::now());
        let old = client(&clients, "ann", Some(1));
        let mut new = client(&clients, "ann", Some(2));
        assert!(matches!(claim(&clients, &old, now), Verdict::Granted));
        assert!(matches!(claim(&clients, &new, now), Verdict::Held(members) if members.len() == 1));
        new.claim.takeover = true;
        assert!(matches!(claim(&clients, &new, now), Verdict::Granted));
        assert_eq!(here(&clients, now), [new.claim.member.connection]);
        let third = client(&clients, "ann", Some(3));
        let asked = |client: &Client| Holder::Silent(vec![client.claim.member.connection]);
        let by = |holder| clients.claim(third.claim.clone(), holder, now);
        assert!(
            matches!(by(asked(&old)), Verdict::Held(_)),
            "another one was asked than the one that is here"
        );
        assert!(matches!(by(asked(&new)), Verdict::Granted));
        assert_eq!(here(&clients, now), [third.claim.member.connection]);
    }

    #[test]
    fn pools_share_a_name() {
        let (clients, now) = (ConnectedClients::new(GRACE), Instant::now());
        let mut one = client(&clients, "ann", Some(1));
        let mut two = client(&clients, "ann", Some(2));
        one.claim.pool = true;
        two.claim.pool = true;
        assert!(matches!(claim(&clients, &one, now), Verdict::Granted));
        assert!(matches!(claim(&clients, &two, now), Verdict::Granted));
        assert_eq!(here(&clients, now).len(), 2);
    }

    #[test]
    fn a_said_farewell_frees_the_name_at_once() {
        let (clients, now) = (ConnectedClients::new(GRACE), Instant::now());
        let ann = client(&clients, "ann", None);
        assert!(matches!(claim(&clients, &ann, now), Verdict::Granted));
        clients.depart(&ann.claim.name, ann.claim.member.connection, Farewell::Said, now);
        assert!(matches!(find(&clients, &ann, now), Found::Nowhere));
    }

    #[test]
    fn parking_has_a_bound_and_gives_its_places_back() {
        let (clients, now) = (ConnectedClients::new(GRACE), Instant::now());
        let ann = client(&clients, "ann", None);
        assert!(matches!(claim(&clients, &ann, now), Verdict::Granted));
        clients.depart(&ann.claim.name, ann.claim.member.connection, Farewell::None, now);
        let places: Vec<_> = (0..MAX_PARKED_NAME).map(|_| find(&clients, &ann, now)).collect();
        assert!(places.iter().all(|found| matches!(found, Found::Away(_))));
        assert!(matches!(find(&clients, &ann, now), Found::Full));
        drop(places);
        assert!(matches!(find(&clients, &ann, now), Found::Away(_)));
    }
}
