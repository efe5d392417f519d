//! Between shards: what arrived on one and belongs on another, and the mailboxes that carry it there.

use std::{io, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use h2::{RecvStream, server::SendResponse};
use http::Request;
use tokio::sync::{
    mpsc::{self, OwnedPermit},
    oneshot,
};

use crate::{
    active_stream::ShardId,
    edge::listener::{Arrival, Place},
    exchange::Way,
    gauge::{Counted, Gauge},
    socket::{Detached, Socket},
};

/// Parcels that wait for a shard. Whoever has more waits with them; clients are told to come again.
const WAITING: usize = 256;

/// What a shard is given by others.
pub enum Parcel {
    Client(Box<Client>),
    Visitor(Box<MovedVisitor>),
    Request(Box<MovedRequest>),
}

/// A client's socket behind the opening handshake, and what was read of it.
pub struct Client {
    pub socket: Detached,
    pub first: Bytes,
    /// One of a bounded number of clients, and one of its shard's.
    pub places: (Counted, Counted),
}

/// A visitor whose next request goes to a client of the receiving shard.
pub struct MovedVisitor {
    pub socket: Detached,
    /// The request, as far as it was read.
    pub first: Bytes,
    pub peer: SocketAddr,
    pub place: Place,
    pub arrival: Arrival,
    /// The exchange, until the receiving shard counts it.
    pub busy: Counted,
}

/// A request of an HTTP/2 connection, which itself stays where it is: h2's handles work from any thread.
pub struct MovedRequest {
    pub request: Request<RecvStream>,
    pub respond: SendResponse<Bytes>,
    pub peer: SocketAddr,
    pub way: Way,
    pub busy: Counted,
    pub ending: oneshot::Sender<Ending>,
}

/// How a request ended, as far as its HTTP/2 connection is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Answered,
    /// The visitor took it back before it had an answer.
    Reset,
}

/// The way into every shard.
#[derive(Clone)]
pub struct Mailboxes(Arc<[Mailbox]>);

struct Mailbox {
    parcels: mpsc::Sender<Parcel>,
    clients: Gauge,
}

/// A free place in a shard's mailbox, with the client counted there.
pub struct Slot {
    permit: OwnedPermit<Parcel>,
    counted: Counted,
}

impl Mailboxes {
    /// The mailboxes, and each shard's end of its own.
    pub fn new(shards: usize) -> (Self, Vec<mpsc::Receiver<Parcel>>) {
        let both = (0..shards).map(|_| {
            let (parcels, inbox) = mpsc::channel(WAITING);
            (Mailbox { parcels, clients: Gauge::default() }, inbox)
        });
        let (mailboxes, inboxes): (Vec<_>, Vec<_>) = both.unzip();
        (Self(mailboxes.into()), inboxes)
    }

    /// A slot on the shard with the fewest clients; `None` while it is full.
    pub fn for_client(&self) -> Option<Slot> {
        let emptiest = self.0.iter().min_by_key(|mailbox| mailbox.clients.count())?;
        let permit = emptiest.parcels.clone().try_reserve_owned().ok()?;
        Some(Slot { permit, counted: emptiest.clients.enter() })
    }

    /// Waits while the mailbox is full. A shard that is gone takes its parcels with it: then the server has stopped.
    pub async fn send(&self, to: ShardId, parcel: Parcel) {
        let _ = self.0[to.0].parcels.send(parcel).await;
    }
}

impl Slot {
    pub fn send(self, socket: Socket, first: Bytes, place: Counted) -> io::Result<()> {
        let places = (place, self.counted);
        self.permit.send(Parcel::Client(Box::new(Client { socket: socket.detach()?, first, places })));
        Ok(())
    }
}
