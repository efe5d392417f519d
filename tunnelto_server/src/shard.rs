//! One thread's connections. A client connection lives on one shard with all its streams, so an exchange
//! never crosses threads and takes no lock.

use std::{cell::RefCell, rc::Rc};

use rustc_hash::FxHashMap;

use crate::active_stream::{Connection, ConnectionId, ShardId};

pub struct Shard {
    pub id: ShardId,
    connections: RefCell<FxHashMap<ConnectionId, Rc<Connection>>>,
}

impl Shard {
    pub fn new(id: ShardId) -> Self {
        Self { id, connections: RefCell::default() }
    }

    pub fn add(&self, connection: Rc<Connection>) {
        self.connections.borrow_mut().insert(connection.id, connection);
    }

    pub fn remove(&self, id: ConnectionId) {
        self.connections.borrow_mut().remove(&id);
    }

    pub fn connection(&self, id: ConnectionId) -> Option<Rc<Connection>> {
        self.connections.borrow().get(&id).cloned()
    }
}
