//! The visitors' way: accept, classify, route, admit, choose, open, carry. Each verb is a module; this is the
//! list of them and nothing else.

use std::{rc::Rc, sync::Arc};

use tokio::io::AsyncWriteExt;
use tunnelto_lib::{
    name::{Hostname, Label},
    read_buffer::ReadBuffer,
};

use crate::{
    active_stream::{Reuse, ShardId},
    config::Config,
    control_server::ControlServer,
    edge::{
        brought,
        classify::{Classified, Kind, NO_TLS_HERE, classify, go_on},
        forwarded::TrustedProxies,
        h1::{self, Elsewhere, HandOver},
        h2,
        handler::{Bound, Handler, Health, NotBrought, Opening},
        handover::{Mailboxes, MovedVisitor, Parcel},
        listener::{Accepted, Arrival},
    },
    error::Refusal,
    exchange::{Exchange, Reach},
    gauge::{Counted, Gauge},
    limits::MAX_LOOKS,
    network::{
        hop,
        peer::Peer,
        proxy::{HopError, Hops, Reached, pipe},
    },
    policy::Chain,
    pool::{Chosen, Pool},
    routing::{Destination, Table},
    shutdown::Shutdown,
    upstream::{Upstream, peer::PeerStream, tunnel},
};

/// Serves visitors of one shard.
pub struct Remote {
    pub config: Arc<Config>,
    pub table: Table,
    pub chain: Chain,
    pub pool: Pool,
    pub proxies: TrustedProxies,
    pub control: ControlServer,
    pub mailboxes: Mailboxes,
    pub hops: Hops,
    pub shutdown: Shutdown,
    /// Exchanges under way.
    pub in_progress: Gauge,
}

impl Remote {
    pub async fn serve(self: Rc<Self>, accepted: Accepted) {
        let Some(classified) = classify(accepted).await else { return };
        let classified = match classified.kind {
            Kind::Brought => self.receive(classified).await,
            _ => Some(classified),
        };
        if let Some(classified) = classified {
            self.serve_classified(classified).await;
        }
    }

    async fn serve_classified(self: Rc<Self>, classified: Classified) {
        let accepted = classified.accepted;
        match classified.kind {
            Kind::Http2 => h2::serve(accepted, classified.first, self).await,
            // Whoever is brought twice has gone in a circle; it is read, and refused, as a request.
            Kind::Http1 | Kind::Unknown | Kind::Brought => {
                self.serve_http1(accepted, classified.first, None).await;
            }
            Kind::Tls => {
                let mut socket = accepted.socket;
                // Whoever speaks TLS to a plain port may be gone already.
                let _ = socket.write_all(&NO_TLS_HERE).await;
            }
        }
    }

    /// Takes what another instance brings, if its tunnel is here.
    async fn receive(&self, classified: Classified) -> Option<Classified> {
        let (accepted, first) =
            brought::receive(classified, &self.hops, |name| self.pool.serves(name)).await?;
        go_on(accepted, first).await
    }

    /// A visitor whose request was read on another shard.
    pub async fn serve_moved(self: Rc<Self>, moved: MovedVisitor) {
        let MovedVisitor { socket, first, peer, place, arrival, busy } = moved;
        // Fails only where the runtime is at its end.
        let Ok(socket) = socket.attach() else { return };
        let first = ReadBuffer { bytes: first.into() };
        self.serve_http1(Accepted { socket, peer, place, arrival }, first, Some(busy)).await;
    }

    async fn serve_http1(&self, accepted: Accepted, first: ReadBuffer, moved: Option<Counted>) {
        let Some(handed) = h1::serve(accepted, first, moved, self).await else { return };
        let HandOver { to, socket, first, peer, place, arrival, busy } = handed;
        match to {
            Elsewhere::Control => self.control.clone().serve(socket, first, peer).await,
            Elsewhere::Shard(shard) => {
                let Ok(socket) = socket.detach() else { return };
                let moved = MovedVisitor { socket, first, peer, place, arrival, busy };
                self.hand_over(shard, Parcel::Visitor(Box::new(moved))).await;
            }
            Elsewhere::Peer(Reached { socket: there, pace, place: _hop, header: _ }) => {
                drop(first);
                pipe(socket, there, &pace, &self.in_progress, busy).await;
                drop(place);
            }
        }
    }

    /// One request's way to another instance.
    async fn reach(&self, exchange: &Exchange, peer: Arc<Peer>, name: &Label) -> Result<Upstream, HopError> {
        let reached = self.hops.reach(&peer, hop::Kind::Request, name, exchange.peer).await;
        let directory = self.pool.directory.clone();
        match reached {
            Ok(reached) => Ok(Upstream::Peer(PeerStream::new(reached, peer, name.clone(), directory))),
            Err(error) => {
                directory.doubt(&peer, name);
                Err(error)
            }
        }
    }
}

impl Handler for Remote {
    async fn open(&self, exchange: &mut Exchange, host: &Hostname, reuse: Reuse) -> Result<Opening, Refusal> {
        let routed = match self.table.route(host)? {
            Destination::Tunnel(routed) => routed,
            Destination::Home => return Ok(Opening::Home(self.config.home_url.clone())),
            Destination::Wormhole => return Ok(Opening::Wormhole),
        };
        let name = routed.name.clone();
        exchange.name = Some(name.clone());
        let admitted = self.chain.admit(exchange, routed)?;
        for _ in 0..MAX_LOOKS {
            let connection = match self.pool.choose(&admitted, exchange).await? {
                Chosen::Here(connection) => connection,
                Chosen::Elsewhere(shard) => return Ok(Opening::Elsewhere(shard)),
                Chosen::Peer(peer) if exchange.reach == Reach::Pipe => {
                    return Ok(Opening::Pipe(Bound { peer, name }));
                }
                Chosen::Peer(peer) => match self.reach(exchange, peer, &name).await {
                    Ok(stream) => return Ok(Opening::Stream(stream)),
                    Err(HopError::Busy) => return Err(Refusal::PeerBusy),
                    Err(_) => continue,
                },
            };
            let stream = tunnel::open(&connection, reuse, exchange.visitor, host.as_str())?;
            return Ok(Opening::Stream(stream));
        }
        Err(Refusal::ProxyingFailed)
    }

    async fn bring(&self, exchange: &Exchange, to: &Bound, first: &[&[u8]]) -> Result<Reached, NotBrought> {
        let brought = self.hops.bring(&to.peer, &to.name, exchange.peer, first).await;
        brought.map_err(|error| match error {
            HopError::Busy => NotBrought { refusal: Refusal::PeerBusy, was_used: true },
            HopError::NotMine | HopError::Io(_) | HopError::Unanswered(_) => {
                self.pool.directory.doubt(&to.peer, &to.name);
                let was_used = matches!(error, HopError::Unanswered(_));
                NotBrought { refusal: Refusal::ProxyingFailed, was_used }
            }
        })
    }

    async fn hand_over(&self, to: ShardId, parcel: Parcel) {
        self.mailboxes.send(to, parcel).await;
    }

    fn health(&self) -> Health {
        if self.shutdown.is_draining() { Health::Draining } else { Health::Ok }
    }

    fn is_last(&self, arrival: &Arrival) -> bool {
        let by = arrival.brought.as_ref().map(|brought| &brought.by);
        self.shutdown.is_draining() || by.is_some_and(|by| self.pool.directory.is_draining(by))
    }

    async fn until_draining(&self) {
        self.shutdown.until_draining().await;
    }

    fn begin(&self) -> Counted {
        self.in_progress.enter()
    }

    fn trusted_proxies(&self) -> &TrustedProxies {
        &self.proxies
    }
}
