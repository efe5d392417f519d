//! A name as one instance tells another of it, and who keeps it when two hold it. Pure.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Reason;

/// What an instance says of a name that it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// [`super::Owner::tag`]
    pub owner: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Uuid>,
    /// When it was claimed, on the instances' common clock; kept over reconnects.
    pub since: u64,
    #[serde(default, skip_serializing_if = "is_false")]
    pub pool: bool,
    /// It was taken from the owner's other session, which asked for it or had shown no life.
    #[serde(default, skip_serializing_if = "is_false")]
    pub took_over: bool,
    /// Other instances are being asked; no client was told yet that it has the name.
    #[serde(default, skip_serializing_if = "is_false")]
    pub pending: bool,
    /// Its connections: number in the session, and when it came.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub connections: Vec<(u16, u64)>,
    /// None of them serves it just now; milliseconds for which the name is still kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub away_ms: Option<u64>,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// What a new claim comes to against what another instance holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contest {
    /// It stands, and counts from `since`.
    Stands {
        since: u64,
    },
    /// It stands, and the owner's other session there goes.
    TakesOver,
    Lost,
    /// The owner's other session has the name there and may be dead.
    Alive,
}

/// What becomes of a name here when another instance holds it as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Healing {
    Keep,
    /// It stays here, and the other instance must hear of it again: it may have heard before it had a claim of its own.
    Insist,
    /// All its connections go.
    Yield(Reason),
    /// These of its connections, by number, have come back there.
    Replaced(Vec<u16>),
}

impl Held {
    /// One connection serves it, since it was claimed.
    #[cfg(test)]
    pub fn sample(owner: u64, session: Option<Uuid>, since: u64) -> Self {
        Self {
            owner,
            session,
            since,
            pool: false,
            took_over: false,
            pending: false,
            connections: vec![(0, since)],
            away_ms: None,
        }
    }

    pub fn is_away(&self) -> bool {
        self.connections.is_empty()
    }

    fn same_client(&self, other: &Self) -> bool {
        (self.session.is_some() && self.session == other.session) || (self.pool && other.pool)
    }

    /// Whether this one comes first where owners differ; `instance` decides a tie.
    fn is_before(&self, instance: &str, other: &Self, other_instance: &str) -> bool {
        (self.since, instance) < (other.since, other_instance)
    }

    /// This is a claim that is still pending; `theirs` is what another instance answers.
    pub fn contest(&self, instance: &str, theirs: &Self, their_instance: &str, takeover: bool) -> Contest {
        let stands = Contest::Stands { since: self.since.min(theirs.since) };
        if self.owner != theirs.owner {
            let first = theirs.pending && self.is_before(instance, theirs, their_instance);
            return if first { Contest::Stands { since: self.since } } else { Contest::Lost };
        }
        match self.same_client(theirs) || theirs.is_away() {
            true => stands,
            // Neither has a client that could be asked for life.
            false if theirs.pending => match self.is_before(instance, theirs, their_instance) {
                true => Contest::Stands { since: self.since },
                false => Contest::Lost,
            },
            false if takeover => Contest::TakesOver,
            false => Contest::Alive,
        }
    }

    /// Both are held: after a split, or while news is on its way.
    pub fn heal(&self, instance: &str, theirs: &Self, their_instance: &str) -> Healing {
        if theirs.pending {
            return Healing::Keep;
        }
        let first = self.is_before(instance, theirs, their_instance);
        if self.owner != theirs.owner {
            return if first { Healing::Insist } else { Healing::Yield(Reason::LostClaim) };
        }
        if theirs.is_away() {
            return Healing::Keep;
        }
        if self.same_client(theirs) {
            // A pool's connections have numbers of their own sessions.
            let newer = |(number, joined): &&(u16, u64)| {
                self.session == theirs.session
                    && theirs.connections.iter().any(|(other, later)| other == number && later > joined)
            };
            let gone: Vec<_> = self.connections.iter().filter(newer).map(|(number, _)| *number).collect();
            return if gone.is_empty() { Healing::Keep } else { Healing::Replaced(gone) };
        }
        // The older one stays, unless the newer has taken over from it.
        let yields = if first { theirs.took_over } else { !self.took_over };
        if self.is_away() || yields { Healing::Yield(Reason::TakenOver) } else { Healing::Insist }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(owner: u64, session: u128, since: u64) -> Held {
        Held::sample(owner, Some(Uuid::from_u128(session)), since)
    }

    fn pending(held: Held) -> Held {
        Held { pending: true, ..held }
    }

    fn away(held: Held) -> Held {
        Held { connections: vec![], away_ms: Some(500), ..held }
    }

    #[test]
    fn another_owners_name_is_lost_whatever_the_clocks_say() {
        let mine = pending(held(1, 1, 5));
        for theirs in [held(2, 2, 9), held(2, 2, 1), away(held(2, 2, 9))] {
            assert_eq!(mine.contest("a", &theirs, "b", true), Contest::Lost);
        }
    }

    #[test]
    fn of_two_pending_claims_exactly_one_stands() {
        for (mine, theirs) in [(5, 6), (6, 5), (5, 5)] {
            let (mine, theirs) = (pending(held(1, 1, mine)), pending(held(2, 2, theirs)));
            let here = mine.contest("a", &theirs, "b", false);
            let there = theirs.contest("b", &mine, "a", false);
            assert_ne!(here == Contest::Lost, there == Contest::Lost, "{mine:?} {theirs:?}");
        }
    }

    #[test]
    fn of_two_pending_sessions_of_one_owner_exactly_one_stands() {
        let (mine, theirs) = (pending(held(1, 1, 5)), pending(held(1, 2, 6)));
        for takeover in [false, true] {
            assert_eq!(mine.contest("a", &theirs, "b", takeover), Contest::Stands { since: 5 });
            assert_eq!(theirs.contest("b", &mine, "a", takeover), Contest::Lost);
        }
    }

    #[test]
    fn a_session_finds_its_age_again() {
        let mine = pending(held(1, 1, 9));
        assert_eq!(mine.contest("a", &held(1, 1, 3), "b", false), Contest::Stands { since: 3 });
        assert_eq!(mine.contest("a", &away(held(1, 2, 3)), "b", false), Contest::Stands { since: 3 });
        assert_eq!(mine.contest("a", &held(1, 2, 3), "b", false), Contest::Alive);
        assert_eq!(mine.contest("a", &held(1, 2, 3), "b", true), Contest::TakesOver);
    }

    #[test]
    fn after_a_split_exactly_one_owner_keeps_the_name() {
        for (mine, theirs) in [(5, 6), (6, 5), (5, 5)] {
            let (mine, theirs) = (held(1, 1, mine), held(2, 2, theirs));
            let here = mine.heal("a", &theirs, "b");
            let there = theirs.heal("b", &mine, "a");
            assert_ne!(here == Healing::Insist, there == Healing::Insist);
            assert_eq!(here == Healing::Insist, mine.since <= theirs.since, "the older one stays");
        }
    }

    #[test]
    fn who_took_over_keeps_what_it_took() {
        let (old, new) = (held(1, 1, 3), Held { took_over: true, ..held(1, 2, 7) });
        assert_eq!(old.heal("a", &new, "b"), Healing::Yield(Reason::TakenOver));
        assert_eq!(new.heal("b", &old, "a"), Healing::Insist);
        let again = Held { took_over: true, ..held(1, 3, 9) };
        assert_eq!(new.heal("a", &again, "b"), Healing::Yield(Reason::TakenOver));
        assert_eq!(again.heal("b", &new, "a"), Healing::Insist);
    }

    #[test]
    fn a_connection_that_came_back_elsewhere_leaves_its_shadow() {
        let old = Held { connections: vec![(0, 3), (1, 4)], ..held(1, 1, 3) };
        let new = Held { connections: vec![(0, 8)], ..held(1, 1, 3) };
        assert_eq!(old.heal("a", &new, "b"), Healing::Replaced(vec![0]));
        assert_eq!(new.heal("b", &old, "a"), Healing::Keep);
    }

    #[test]
    fn a_name_that_is_away_goes_with_its_owner() {
        let (gone, there) = (away(held(1, 1, 3)), held(1, 2, 7));
        assert_eq!(gone.heal("a", &there, "b"), Healing::Yield(Reason::TakenOver));
        assert_eq!(there.heal("b", &gone, "a"), Healing::Keep);
    }
}
