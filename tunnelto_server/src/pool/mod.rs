//! Which connection serves an exchange. A visitor of a name whose client is just away is parked until the
//! client is back or its grace is over.

use std::{rc::Rc, sync::Arc, time::Instant};

use crate::{
    active_stream::Connection,
    connected_clients::{ConnectedClients, Found},
    error::Refusal,
    policy::Admitted,
    routing::Routed,
    shard::Shard,
};

pub struct Pool {
    clients: Arc<ConnectedClients>,
    shard: Rc<Shard>,
}

/// The connection that an exchange goes to.
pub struct Chosen {
    connection: Rc<Connection>,
}

impl Chosen {
    pub fn into_connection(self) -> Rc<Connection> {
        self.connection
    }
}

impl Pool {
    pub fn new(clients: Arc<ConnectedClients>, shard: Rc<Shard>) -> Self {
        Self { clients, shard }
    }

    /// The less busy of a name's connections; waits while there are none but one may come.
    pub async fn choose(&self, admitted: Admitted<Routed>) -> Result<Chosen, Refusal> {
        let Routed { name } = admitted.into_inner();
        let mut waited = false;
        loop {
            match self.clients.find(&name, Instant::now()) {
                Found::Here(connections) => {
                    let here = connections.iter().filter_map(|id| self.shard.connection(*id));
                    return match here.min_by_key(|connection| connection.in_flight()) {
                        Some(connection) => Ok(Chosen { connection }),
                        None => Err(Refusal::TunnelOffline),
                    };
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
