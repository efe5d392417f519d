//! Who is here: names, their owners and the connections that serve them. One record per name; every change is
//! one operation on one map entry, anything else is derived.

mod changes;
mod claim;
mod clock;
mod held;
mod orders;
mod probe;
mod record;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use dashmap::{DashMap, Entry, mapref::entry::OccupiedEntry};
use tunnelto_lib::name::Label;

use crate::{
    active_stream::{ConnectionId, ShardId},
    limits::HELLO_TIME,
    parking::Lot,
};
use changes::Changes;
pub use changes::News;
pub use claim::{Claim, Farewell, Granted, Holder, Member, Owner, Verdict};
use clock::Clock;
pub use held::{Contest, Healing, Held};
pub use orders::{Order, Orders, Reason};
pub use probe::any_alive;
use record::{Record, Seated};

pub struct ConnectedClients {
    names: DashMap<Label, Record>,
    last_id: AtomicU64,
    clock: Clock,
    /// Written down only where another instance may ask.
    changes: Option<Mutex<Changes>>,
    lot: Arc<Lot>,
    grace: Duration,
}

/// Where a name is.
#[derive(Debug, PartialEq, Eq)]
pub enum Found<T> {
    /// What was chosen among the connections that serve it.
    Here(T),
    /// Nobody serves it just now; until then its client may be back.
    Away(Instant),
    Nowhere,
}

impl ConnectedClients {
    /// `has_peers` tells whether changes must be remembered for other instances.
    pub fn new(grace: Duration, lot: Arc<Lot>, has_peers: bool) -> Self {
        Self {
            names: DashMap::new(),
            last_id: AtomicU64::new(0),
            clock: Clock::default(),
            changes: has_peers.then(Mutex::default),
            lot,
            grace,
        }
    }

    pub fn next_id(&self, shard: ShardId) -> ConnectionId {
        ConnectionId { shard, number: self.last_id.fetch_add(1, Ordering::Relaxed) + 1 }
    }

    /// Grants a name by the rules of docs/protocol.md, "Names survive". Exchanges find the connection once it is
    /// [`Self::ready`].
    pub fn claim(&self, claim: Claim, holder: &Holder, now: Instant) -> Verdict {
        let Claim { name, owner, session, pool, takeover, member } = claim;
        let at = self.clock.next();
        let seated = Seated { member, joined: at, is_ready: false };
        let mut entry = match self.names.entry(name) {
            Entry::Vacant(vacant) => {
                self.changed(vacant.key());
                vacant.insert(Record::new(owner, session, pool, seated));
                return Verdict::Granted(Granted { is_settled: false });
            }
            Entry::Occupied(occupied) => occupied,
        };
        if entry.get().is_over(self.grace, now) {
            self.changed(entry.key());
            entry.insert(Record::new(owner, session, pool, seated));
            return Verdict::Granted(Granted { is_settled: false });
        }
        let record = entry.get_mut();
        if record.owner != owner {
            return if record.pending { Verdict::Undecided } else { Verdict::Taken };
        }
        let same_session = session.is_some() && record.session == session;
        let is_settled = same_session && !record.pending && !record.members.is_empty();
        if same_session {
            record.dismiss(Reason::Replaced, |old| old.number == seated.member.number);
        } else if record.pool && pool {
            // Pools share.
        } else if takeover || record.members.iter().all(|old| holder.is_silent(old.member.connection)) {
            if !record.members.is_empty() {
                (record.took_over, record.since) = (true, at);
            }
            record.dismiss(Reason::TakenOver, |_| true);
            record.session = session;
            record.pool = pool;
            // Other instances have not agreed to this session.
            record.pending = true;
        } else {
            return Verdict::Held(record.members.iter().map(|old| old.member.clone()).collect());
        }
        record.members.push(seated);
        record.away_since = None;
        self.changed(entry.key());
        Verdict::Granted(Granted { is_settled })
    }

    /// The claim has won against other instances' and counts from `since`.
    pub fn settle(&self, name: &Label, connection: ConnectionId, since: u64, took_over: bool) {
        if let Some(mut record) = self.names.get_mut(name)
            && record.members.iter().any(|seated| seated.member.connection == connection)
        {
            record.pending = false;
            record.since = since;
            record.took_over |= took_over;
            self.changed(name);
        }
    }

    /// The connection's client has its answer: from now on exchanges may go there.
    pub fn ready(&self, name: &Label, connection: ConnectionId) {
        if let Some(mut record) = self.names.get_mut(name) {
            let mut seated =
                record.members.iter_mut().filter(|seated| seated.member.connection == connection);
            if let Some(seated) = seated.next() {
                seated.is_ready = true;
                record.pending = false;
                self.changed(name);
            }
        }
        self.lot.wake(name);
    }

    /// A connection is gone.
    pub fn depart(&self, name: &Label, connection: ConnectionId, farewell: Farewell, now: Instant) {
        let Entry::Occupied(mut entry) = self.names.entry(name.clone()) else { return };
        let members = &mut entry.get_mut().members;
        let before = members.len();
        members.retain(|seated| seated.member.connection != connection);
        if members.len() == before {
            return;
        }
        self.emptied(entry, farewell, now);
    }

    /// What becomes of a record that has lost members.
    fn emptied(&self, mut entry: OccupiedEntry<'_, Label, Record>, farewell: Farewell, now: Instant) {
        if !entry.get().members.is_empty() {
            return self.changed(entry.key());
        }
        match farewell {
            Farewell::None => {
                entry.get_mut().away_since = Some(now);
                self.changed(entry.key());
            }
            Farewell::Said => {
                // While nobody can claim it.
                self.removed(entry.key());
                let (name, _) = entry.remove_entry();
                self.lot.wake(&name);
            }
        }
    }

    /// Who serves `name`; `choose` is shown its connections and may find none of them fit.
    pub fn find<T>(
        &self,
        name: &Label,
        now: Instant,
        choose: impl FnOnce(&mut dyn Iterator<Item = &Member>) -> Option<T>,
    ) -> Found<T> {
        let Some(record) = self.names.get(name) else { return Found::Nowhere };
        if let Some(since) = record.away_since {
            return match record.is_over(self.grace, now) {
                true => Found::Nowhere,
                false => Found::Away(since + self.grace),
            };
        }
        let mut ready =
            record.members.iter().filter(|seated| seated.is_ready).map(|seated| &seated.member).peekable();
        if ready.peek().is_none() {
            return Found::Away(now + HELLO_TIME);
        }
        choose(&mut ready).map_or(Found::Nowhere, Found::Here)
    }

    /// The client that serves `name`, as peers and operators may know it.
    pub fn client_id(&self, name: &Label) -> Option<Arc<str>> {
        Some(self.names.get(name)?.members.first()?.member.client_id.clone())
    }

    /// The name as other instances are told of it.
    pub fn held(&self, name: &Label, now: Instant) -> Option<Held> {
        let record = self.names.get(name)?;
        (!record.is_over(self.grace, now)).then(|| record.held(self.grace, now))
    }

    /// Whether exchanges for `name` can go on here.
    pub fn serves(&self, name: &Label) -> bool {
        self.names.get(name).is_some_and(|record| record.members.iter().any(|seated| seated.is_ready))
    }

    /// The connections of `name`, for whoever wants to know whether they live.
    pub fn members(&self, name: &Label) -> Vec<Member> {
        let record = self.names.get(name);
        record.map_or_else(Vec::new, |record| {
            record.members.iter().map(|seated| seated.member.clone()).collect()
        })
    }

    /// Another instance holds a name as well: `decide` what becomes of it here.
    pub fn heal(&self, name: &Label, now: Instant, decide: impl FnOnce(&Held) -> Healing) -> Healing {
        let Entry::Occupied(mut entry) = self.names.entry(name.clone()) else { return Healing::Keep };
        let record = entry.get_mut();
        if record.is_over(self.grace, now) || record.pending {
            return Healing::Keep;
        }
        let healing = decide(&record.held(self.grace, now));
        match &healing {
            Healing::Keep => return healing,
            Healing::Insist => {
                self.changed(entry.key());
                return healing;
            }
            Healing::Yield(reason) => record.dismiss(*reason, |_| true),
            Healing::Replaced(numbers) => {
                record.dismiss(Reason::Replaced, |member| numbers.contains(&member.number));
            }
        }
        // The client is elsewhere, so nothing is kept for it here.
        self.emptied(entry, Farewell::Said, now);
        healing
    }

    /// A number that is later than all that were seen.
    pub fn now_on_the_common_clock(&self) -> u64 {
        self.clock.next()
    }

    /// Heard of a claim elsewhere: the next one here is later.
    pub fn saw(&self, since: u64) {
        self.clock.saw(since);
    }

    /// What has changed after `since`.
    pub fn news(&self, since: u64, goes_on: bool, most: usize) -> Option<News> {
        Some(lock(self.changes.as_ref()?).news(since, goes_on, most))
    }

    /// Others may believe that `name` is here: if it is not, that is news.
    pub fn told_wrongly(&self, name: &Label) {
        if let Entry::Vacant(vacant) = self.names.entry(name.clone()) {
            self.removed(vacant.key());
        }
    }

    /// Whether `name` is free or `owner`'s own.
    pub fn may_belong_to(&self, name: &Label, owner: &Owner, now: Instant) -> bool {
        match self.names.get(name) {
            None => true,
            Some(record) => record.is_over(self.grace, now) || record.owner == *owner,
        }
    }

    /// Whether no client is here, nor expected back.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Forgets names whose grace is over.
    pub fn forget_gone(&self, now: Instant) {
        self.names.retain(|name, record| {
            let over = record.is_over(self.grace, now);
            if over {
                self.removed(name);
                self.lot.wake(name);
            }
            !over
        });
    }

    fn changed(&self, name: &Label) {
        if let Some(changes) = &self.changes {
            lock(changes).changed(name);
        }
    }

    fn removed(&self, name: &Label) {
        if let Some(changes) = &self.changes {
            lock(changes).removed(name);
        }
    }
}

/// Nothing that can panic happens under this lock.
fn lock(changes: &Mutex<Changes>) -> MutexGuard<'_, Changes> {
    changes.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::mpsc;
    use uuid::Uuid;

    use super::*;
    use crate::gauge::Gauge;

    const GRACE: Duration = Duration::from_secs(10);

    struct Client {
        claim: Claim,
        orders: mpsc::Receiver<Order>,
    }

    fn client(clients: &ConnectedClients, owner: &str, session: Option<u128>) -> Client {
        let (way, orders) = Orders::new();
        let member = Member {
            connection: clients.next_id(ShardId(0)),
            load: Gauge::default(),
            number: 0,
            client_id: "id".into(),
            orders: way,
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

    fn registry() -> ConnectedClients {
        ConnectedClients::new(GRACE, Arc::default(), true)
    }

    fn claim_as(clients: &ConnectedClients, client: &Client, holder: &Holder, now: Instant) -> Verdict {
        let verdict = clients.claim(client.claim.clone(), holder, now);
        if matches!(verdict, Verdict::Granted(_)) {
            clients.ready(&client.claim.name, client.claim.member.connection);
        }
        verdict
    }

    fn claim(clients: &ConnectedClients, client: &Client, now: Instant) -> Verdict {
        claim_as(clients, client, &Holder::Unknown, now)
    }

    fn find(clients: &ConnectedClients, client: &Client, now: Instant) -> Found<()> {
        clients.find(&client.claim.name, now, |_| Some(()))
    }

    fn here(clients: &ConnectedClients, now: Instant) -> Vec<ConnectionId> {
        let name = Label::parse("web").unwrap();
        match clients.find(&name, now, |members| Some(members.map(|member| member.connection).collect())) {
            Found::Here(connections) => connections,
            _ => vec![],
        }
    }

    #[test]
    fn another_owner_is_refused_while_the_name_is_served_or_away() {
        let (clients, now) = (registry(), Instant::now());
        let ann = client(&clients, "ann", None);
        let bob = client(&clients, "bob", None);
        assert!(matches!(claim(&clients, &ann, now), Verdict::Granted(_)));
        assert!(matches!(claim(&clients, &bob, now), Verdict::Taken));
        clients.depart(&ann.claim.name, ann.claim.member.connection, Farewell::None, now);
        assert!(matches!(claim(&clients, &bob, now + GRACE / 2), Verdict::Taken));
        assert!(matches!(claim(&clients, &bob, now + GRACE), Verdict::Granted(_)));
    }

    #[test]
    fn the_same_session_replaces_its_own_connection() {
        let (clients, now) = (registry(), Instant::now());
        let mut old = client(&clients, "ann", Some(1));
        let new = client(&clients, "ann", Some(1));
        assert!(matches!(claim(&clients, &old, now), Verdict::Granted(_)));
        assert!(matches!(claim(&clients, &new, now), Verdict::Granted(_)));
        assert!(matches!(old.orders.try_recv(), Ok(Order::Leave(Reason::Replaced))));
        assert_eq!(here(&clients, now), [new.claim.member.connection]);
        // The old connection's end must not take the name away.
        clients.depart(&old.claim.name, old.claim.member.connection, Farewell::Said, now);
        assert_eq!(here(&clients, now), [new.claim.member.connection]);
    }

    #[test]
    fn another_session_of_the_owner_gets_the_name_only_from_a_silent_holder_or_by_takeover() {
        let (clients, now) = (registry(), Instant::now());
        let old = client(&clients, "ann", Some(1));
        let mut new = client(&clients, "ann", Some(2));
        assert!(matches!(claim(&clients, &old, now), Verdict::Granted(_)));
        assert!(matches!(claim(&clients, &new, now), Verdict::Held(members) if members.len() == 1));
        new.claim.takeover = true;
        assert!(matches!(claim(&clients, &new, now), Verdict::Granted(_)));
        assert_eq!(here(&clients, now), [new.claim.member.connection]);
        let third = client(&clients, "ann", Some(3));
        let asked = |client: &Client| Holder::Silent(vec![client.claim.member.connection]);
        let by = |holder| claim_as(&clients, &third, &holder, now);
        assert!(
            matches!(by(asked(&old)), Verdict::Held(_)),
            "another one was asked than the one that is here"
        );
        assert!(matches!(by(asked(&new)), Verdict::Granted(_)));
        assert_eq!(here(&clients, now), [third.claim.member.connection]);
    }

    #[test]
    fn pools_share_a_name() {
        let (clients, now) = (registry(), Instant::now());
        let mut one = client(&clients, "ann", Some(1));
        let mut two = client(&clients, "ann", Some(2));
        one.claim.pool = true;
        two.claim.pool = true;
        assert!(matches!(claim(&clients, &one, now), Verdict::Granted(_)));
        assert!(matches!(claim(&clients, &two, now), Verdict::Granted(_)));
        assert_eq!(here(&clients, now).len(), 2);
    }

    #[test]
    fn a_said_farewell_frees_the_name_at_once() {
        let (clients, now) = (registry(), Instant::now());
        let ann = client(&clients, "ann", None);
        assert!(matches!(claim(&clients, &ann, now), Verdict::Granted(_)));
        clients.depart(&ann.claim.name, ann.claim.member.connection, Farewell::Said, now);
        assert!(matches!(find(&clients, &ann, now), Found::Nowhere));
    }

    #[test]
    fn a_name_is_waited_for_until_its_client_has_its_answer() {
        let (clients, now) = (registry(), Instant::now());
        let ann = client(&clients, "ann", None);
        assert!(matches!(clients.claim(ann.claim.clone(), &Holder::Unknown, now), Verdict::Granted(_)));
        assert!(matches!(find(&clients, &ann, now), Found::Away(_)));
        assert!(clients.held(&ann.claim.name, now).unwrap().pending);
        clients.ready(&ann.claim.name, ann.claim.member.connection);
        assert!(matches!(find(&clients, &ann, now), Found::Here(())));
        assert!(!clients.held(&ann.claim.name, now).unwrap().pending);
    }

    #[test]
    fn another_owners_undecided_claim_refuses_nobody_for_good() {
        let (clients, now) = (registry(), Instant::now());
        let (ann, bob) = (client(&clients, "ann", None), client(&clients, "bob", None));
        clients.claim(ann.claim.clone(), &Holder::Unknown, now);
        assert!(matches!(claim(&clients, &bob, now), Verdict::Undecided));
        // Other instances say that it is bob's.
        clients.depart(&ann.claim.name, ann.claim.member.connection, Farewell::Said, now);
        assert!(matches!(claim(&clients, &bob, now), Verdict::Granted(_)));
    }

    #[test]
    fn other_instances_must_agree_to_another_session_first() {
        let (clients, now) = (registry(), Instant::now());
        let held = || clients.held(&Label::parse("web").unwrap(), now).unwrap();
        let (old, new) = (client(&clients, "ann", Some(1)), client(&clients, "ann", Some(2)));
        claim(&clients, &old, now);
        clients.depart(&old.claim.name, old.claim.member.connection, Farewell::None, now);
        clients.claim(new.claim.clone(), &Holder::Unknown, now);
        assert!(held().pending && held().away_ms.is_some());
        // What is pending is decided by whoever asked, not by news that comes meanwhile.
        assert_eq!(clients.heal(&new.claim.name, now, |_| unreachable!()), Healing::Keep);
        clients.settle(&new.claim.name, new.claim.member.connection, held().since, false);
        assert!(!held().pending);
    }

    #[test]
    fn what_stays_against_another_claim_is_told_again() {
        let (clients, now) = (registry(), Instant::now());
        let ann = client(&clients, "ann", None);
        claim(&clients, &ann, now);
        let heard = clients.news(0, false, 10).unwrap().next;
        clients.heal(&ann.claim.name, now, |_| Healing::Insist);
        assert_eq!(clients.news(heard, false, 10).unwrap().names, [ann.claim.name]);
    }

    #[test]
    fn a_name_that_is_lost_to_another_instance_is_gone_at_once_and_told() {
        let (clients, now) = (registry(), Instant::now());
        let mut ann = client(&clients, "ann", Some(1));
        claim(&clients, &ann, now);
        let heard = clients.news(0, false, 10).unwrap().next;
        clients.heal(&ann.claim.name, now, |_| Healing::Yield(Reason::LostClaim));
        assert!(matches!(ann.orders.try_recv(), Ok(Order::Leave(Reason::LostClaim))));
        assert_eq!(find(&clients, &ann, now), Found::Nowhere);
        assert_eq!(clients.news(heard, false, 10).unwrap().names, [ann.claim.name.clone()]);
        assert!(clients.held(&ann.claim.name, now).is_none());
    }

    #[test]
    fn age_is_kept_over_a_reconnect_and_renewed_by_a_takeover() {
        let (clients, now) = (registry(), Instant::now());
        let since = |client: &Client| clients.held(&client.claim.name, now).unwrap().since;
        let ann = client(&clients, "ann", Some(1));
        claim(&clients, &ann, now);
        let first = since(&ann);
        clients.depart(&ann.claim.name, ann.claim.member.connection, Farewell::None, now);
        claim(&clients, &client(&clients, "ann", Some(1)), now);
        assert_eq!(since(&ann), first);
        let mut other = client(&clients, "ann", Some(2));
        other.claim.takeover = true;
        claim(&clients, &other, now);
        assert!(since(&ann) > first);
    }
}
