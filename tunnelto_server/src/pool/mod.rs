//! Which connection serves an exchange. A visitor of a name whose client is just away is parked until the
//! client is back or its grace is over.

use std::{rc::Rc, sync::Arc, time::Instant};

use crate::{
    active_stream::{Connection, ConnectionId, ShardId},
    connected_clients::{ConnectedClients, Found, Member},
    error::Refusal,
    policy::Admitted,
    routing::Routed,
    shard::Shard,
};

/// Exchanges by which a connection of another shard must be less busy before a visitor moves there for it.
const WORTH_MOVING: usize = 8;

pub struct Pool {
    clients: Arc<ConnectedClients>,
    shard: Rc<Shard>,
}

/// The connection that an exchange goes to.
pub enum Chosen {
    Here(Rc<Connection>),
    /// On another shard, which will choose again.
    Elsewhere(ShardId),
}

/// Whether a visitor may move to another shard though a connection of this one would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moving {
    Allowed,
    /// It has just come from there.
    Unwelcome,
}

impl Pool {
    pub fn new(clients: Arc<ConnectedClients>, shard: Rc<Shard>) -> Self {
        Self { clients, shard }
    }

    /// The less busy of a name's connections; waits while there are none but one may come.
    pub async fn choose(&self, admitted: Admitted<Routed>, moving: Moving) -> Result<Chosen, Refusal> {
        let Routed { name } = admitted.into_inner();
        let mut waited = false;
        loop {
            match self.clients.find(&name, Instant::now(), |members| pick(members, self.shard.id, moving)) {
                Found::Here(id) if id.shard != self.shard.id => return Ok(Chosen::Elsewhere(id.shard)),
                Found::Here(id) => {
                    let connection = self.shard.connection(id);
                    return connection.map(Chosen::Here).ok_or(Refusal::TunnelOffline);
                }
                Found::Away(parking) => {
                    waited = true;
                    parking.wait().await;
                }
                Found::Full => return Err(Refusal::TunnelOffline),
                Found::Nowhere if waited => return Err(Refusal::TunnelOffline),
                Found::Nowhere => return Err(Refusal::TunnelNotFound),
            }
        }
    }
}

/// The less busy one, and rather one of this shard. There is at least one member.
fn pick(members: &[Member], shard: ShardId, moving: Moving) -> ConnectionId {
    let cost = |member: &Member| {
        let load = member.load.count();
        match moving {
            _ if member.connection.shard == shard => load,
            Moving::Allowed => load.saturating_add(WORTH_MOVING),
            Moving::Unwelcome => usize::MAX,
        }
    };
    let mut best = &members[0];
    let mut least = cost(best);
    for member in &members[1..] {
        let cost = cost(member);
        if cost < least {
            (best, least) = (member, cost);
        }
    }
    best.connection
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gauge::Gauge;

    fn member(shard: usize, number: u64) -> Member {
        Member {
            connection: ConnectionId { shard: ShardId(shard), number },
            load: Gauge::default(),
            number: 0,
            client_id: "id".into(),
            orders: tokio::sync::mpsc::channel(1).0,
        }
    }

    #[test]
    fn a_visitor_moves_only_where_it_is_worth_it() {
        let members = [member(1, 1), member(0, 2)];
        let picked = |moving| pick(&members, ShardId(0), moving).number;
        assert_eq!(picked(Moving::Allowed), 2, "as busy as the other, and here");
        let busy: Vec<_> = (0..=WORTH_MOVING).map(|_| members[1].load.enter()).collect();
        assert_eq!(picked(Moving::Allowed), 1, "much less busy");
        assert_eq!(picked(Moving::Unwelcome), 2, "it would go to and fro");
        drop(busy);
        assert_eq!(pick(&members[..1], ShardId(0), Moving::Unwelcome).number, 1, "there is no other");
    }

    #[test]
    fn the_less_busy_of_one_shard_is_picked() {
        let members = [member(0, 1), member(0, 2)];
        let _busy = members[0].load.enter();
        assert_eq!(pick(&members, ShardId(0), Moving::Allowed).number, 2);
    }
}
