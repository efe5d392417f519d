//! Who serves an exchange: a connection here, or another instance. A visitor of a name whose client is just away is
//! parked until the client is back somewhere or its grace is over.

use std::{rc::Rc, sync::Arc, time::Instant};

use tunnelto_lib::name::Label;

use crate::{
    active_stream::{Connection, ConnectionId, ShardId},
    connected_clients::{ConnectedClients, Found, Member},
    error::Refusal,
    exchange::{Exchange, Reach},
    limits::PARKED_LOOK,
    network::{Directory, Located, LookupError, peer::Peer},
    observability::metrics::{Lookup, Metrics},
    parking::{Lot, Parking},
    policy::Admitted,
    routing::Routed,
    shard::Shard,
    shutdown::Shutdown,
};

/// Exchanges by which a connection of another shard must be less busy before a visitor moves there for it.
const WORTH_MOVING: usize = 8;

pub struct Pool {
    pub clients: Arc<ConnectedClients>,
    pub shard: Rc<Shard>,
    pub directory: Directory,
    pub lot: Arc<Lot>,
    pub metrics: Arc<Metrics>,
    pub shutdown: Shutdown,
}

/// Who serves an exchange.
pub enum Chosen {
    Here(Rc<Connection>),
    /// On another shard, which will choose again.
    Elsewhere(ShardId),
    /// On another instance.
    Peer(Arc<Peer>),
}

/// What one look came to.
enum Look {
    Chosen(Chosen),
    /// Nobody just now; until then its client may be back.
    Away(Instant),
    Nowhere,
}

/// Whether a visitor may move to another shard though a connection of this one would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moving {
    Allowed,
    /// It has just come from there.
    Unwelcome,
}

impl Pool {
    /// Connections here before other instances, the less busy first; waits while there are none but one may come.
    pub async fn choose(&self, admitted: &Admitted<Routed>, exchange: &Exchange) -> Result<Chosen, Refusal> {
        let mut parking: Option<Parking> = None;
        loop {
            let until = match self.look(admitted.routed(), exchange).await? {
                Look::Chosen(chosen) => return Ok(chosen),
                Look::Away(until) => until,
                Look::Nowhere if parking.is_some() => return Err(Refusal::TunnelOffline),
                Look::Nowhere => return Err(Refusal::TunnelNotFound),
            };
            match &mut parking {
                // It may have come meanwhile, so there is another look before the wait.
                None => {
                    let name = &admitted.routed().name;
                    parking = Some(self.lot.park(name).ok_or(Refusal::TunnelOffline)?);
                }
                Some(parking) => parking.wait(until, PARKED_LOOK).await,
            }
        }
    }

    /// Whether exchanges for a name can go on here.
    pub fn serves(&self, name: &Label) -> bool {
        self.clients.serves(name)
    }

    /// The instance that serves what is not served here, if that can be known at once. Nobody waits for a client here.
    pub async fn elsewhere(&self, admitted: &Admitted<Routed>) -> Option<Arc<Peer>> {
        let name = &admitted.routed().name;
        if self.directory.is_alone() || (self.serves(name) && !self.shutdown.is_draining()) {
            return None;
        }
        match self.directory.locate(name).await {
            Ok(Located::At(peers)) => best(peers),
            _ => None,
        }
    }

    async fn look(&self, Routed { name }: &Routed, exchange: &Exchange) -> Result<Look, Refusal> {
        let now = Instant::now();
        let moving = if exchange.has_moved { Moving::Unwelcome } else { Moving::Allowed };
        // A refused exchange moves once at most: the shard that it goes to does not know who has refused it before.
        let stays = exchange.has_moved && !exchange.avoid.is_empty();
        let is_fit = |member: &&Member| {
            let here = member.connection.shard == self.shard.id;
            !exchange.avoid.contains(&member.connection) && (here || !stays)
        };
        let pick =
            |members: &mut dyn Iterator<Item = &Member>| pick(members.filter(is_fit), self.shard.id, moving);
        let here = match self.clients.find(name, now, pick) {
            Found::Here(id) if id.shard != self.shard.id => Look::Chosen(Chosen::Elsewhere(id.shard)),
            // One that has just ended is out of the list in a moment.
            Found::Here(id) => self
                .shard
                .connection(id)
                .map_or(Look::Away(now + PARKED_LOOK), |connection| Look::Chosen(Chosen::Here(connection))),
            Found::Away(until) => Look::Away(until),
            Found::Nowhere => Look::Nowhere,
        };
        if exchange.reach == Reach::Here || self.directory.is_alone() {
            return Ok(here);
        }
        // Connections of an instance that stops come last.
        if matches!(here, Look::Chosen(_)) && !self.shutdown.is_draining() {
            self.metrics.looked_up(Lookup::Local, None);
            return Ok(here);
        }
        match (self.directory.locate(name).await, here) {
            (Ok(Located::At(peers)), here) => {
                Ok(best(peers).map_or(here, |peer| Look::Chosen(Chosen::Peer(peer))))
            }
            (_, here @ (Look::Chosen(_) | Look::Away(_))) => Ok(here),
            (Ok(Located::Away(until)), Look::Nowhere) => Ok(Look::Away(until)),
            (Ok(Located::Nowhere), Look::Nowhere) => Ok(Look::Nowhere),
            (Err(LookupError::Busy), Look::Nowhere) => Err(Refusal::TooMany),
            (Err(_), Look::Nowhere) => Err(Refusal::LocatingFailed),
        }
    }
}

fn best(peers: Vec<Arc<Peer>>) -> Option<Arc<Peer>> {
    peers.into_iter().min_by_key(|peer| (peer.is_draining(), peer.load()))
}

/// The less busy one, and rather one of this shard.
fn pick<'m>(
    members: impl Iterator<Item = &'m Member>,
    shard: ShardId,
    moving: Moving,
) -> Option<ConnectionId> {
    let cost = |member: &&Member| {
        let load = member.load.count();
        match moving {
            _ if member.connection.shard == shard => load,
            Moving::Allowed => load.saturating_add(WORTH_MOVING),
            Moving::Unwelcome => usize::MAX,
        }
    };
    members.min_by_key(cost).map(|member| member.connection)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{connected_clients::Orders, gauge::Gauge};

    fn member(shard: usize, number: u64) -> Member {
        Member {
            connection: ConnectionId { shard: ShardId(shard), number },
            load: Gauge::default(),
            number: 0,
            client_id: "id".into(),
            orders: Orders::new().0,
        }
    }

    #[test]
    fn a_visitor_moves_only_where_it_is_worth_it() {
        let members = [member(1, 1), member(0, 2)];
        let picked = |moving| pick(members.iter(), ShardId(0), moving).unwrap().number;
        assert_eq!(picked(Moving::Allowed), 2, "as busy as the other, and here");
        let busy: Vec<_> = (0..=WORTH_MOVING).map(|_| members[1].load.enter()).collect();
        assert_eq!(picked(Moving::Allowed), 1, "much less busy");
        assert_eq!(picked(Moving::Unwelcome), 2, "it would go to and fro");
        drop(busy);
        assert_eq!(
            pick(members[..1].iter(), ShardId(0), Moving::Unwelcome).unwrap().number,
            1,
            "there is no other"
        );
    }

    #[test]
    fn the_less_busy_of_one_shard_is_picked() {
        let members = [member(0, 1), member(0, 2)];
        let _busy = members[0].load.enter();
        assert_eq!(pick(members.iter(), ShardId(0), Moving::Allowed).unwrap().number, 2);
    }
}
