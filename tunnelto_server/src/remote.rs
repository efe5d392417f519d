//! The visitors' way: accept, classify, route, admit, choose, open, carry. Each verb is a module; this is the
//! list of them and nothing else.

use std::{rc::Rc, sync::Arc};

use tokio::{io::AsyncWriteExt, net::TcpStream};
use tunnelto_lib::{name::Hostname, read_buffer::ReadBuffer};

use crate::{
    active_stream::{Reuse, ShardId},
    config::Config,
    control_server::ControlServer,
    edge::{
        classify::{Kind, NO_TLS_HERE, classify},
        forwarded::TrustedProxies,
        h1::{self, Elsewhere, HandOver},
        h2,
        handler::{Handler, Health, Opening},
        handover::{Mailboxes, MovedVisitor, Parcel},
        listener::Accepted,
    },
    error::Refusal,
    exchange::Exchange,
    gauge::{Counted, Gauge},
    policy::Chain,
    pool::{Moving, Pool},
    routing::{Destination, Table},
    shutdown::Shutdown,
    upstream::tunnel::{self, Opened},
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
    pub shutdown: Shutdown,
    /// Exchanges under way.
    pub in_progress: Gauge,
}

impl Remote {
    pub async fn serve(self: Rc<Self>, accepted: Accepted) {
        let Some(classified) = classify(accepted).await else { return };
        let accepted = classified.accepted;
        match classified.kind {
            Kind::Http2 => h2::serve(accepted, classified.first, self).await,
            Kind::Http1 | Kind::Unknown => self.serve_http1(accepted, classified.first, None).await,
            Kind::Tls => {
                let mut socket = accepted.socket;
                // Whoever speaks TLS to a plain port may be gone already.
                let _ = socket.write_all(&NO_TLS_HERE).await;
            }
        }
    }

    /// A visitor whose request was read on another shard.
    pub async fn serve_moved(self: Rc<Self>, moved: MovedVisitor) {
        let MovedVisitor { socket, first, peer, place, busy } = moved;
        // Fails only where the runtime is at its end.
        let Ok(socket) = TcpStream::from_std(socket) else { return };
        let first = ReadBuffer { bytes: first.into() };
        self.serve_http1(Accepted { socket, peer, place }, first, Some(busy)).await;
    }

    async fn serve_http1(&self, accepted: Accepted, first: ReadBuffer, moved: Option<Counted>) {
        let Some(handed) = h1::serve(accepted, first, moved, self).await else { return };
        let HandOver { to, socket, first, peer, place, busy } = handed;
        match to {
            Elsewhere::Control => self.control.clone().serve(socket, first, peer).await,
            Elsewhere::Shard(shard) => {
                let Ok(socket) = socket.into_std() else { return };
                let moved = MovedVisitor { socket, first, peer, place, busy };
                self.hand_over(shard, Parcel::Visitor(Box::new(moved))).await;
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
        exchange.name = Some(routed.name.clone());
        let admitted = self.chain.admit(exchange, routed)?;
        let moving = if exchange.has_moved { Moving::Unwelcome } else { Moving::Allowed };
        let chosen = self.pool.choose(admitted, moving).await?;
        Ok(match tunnel::open(chosen, reuse, exchange.visitor, host.as_str())? {
            Opened::Stream(stream) => Opening::Stream(stream),
            Opened::Elsewhere(shard) => Opening::Elsewhere(shard),
        })
    }

    async fn hand_over(&self, to: ShardId, parcel: Parcel) {
        self.mailboxes.send(to, parcel).await;
    }

    fn health(&self) -> Health {
        if self.shutdown.is_draining() { Health::Draining } else { Health::Ok }
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
