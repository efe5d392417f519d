//! The visitors' way: accept, classify, route, admit, choose, open, carry. Each verb is a module; this is the
//! list of them and nothing else.

use std::{rc::Rc, sync::Arc};

use tokio::io::AsyncWriteExt;
use tunnelto_lib::name::Hostname;

use crate::{
    active_stream::Reuse,
    config::Config,
    control_server::ControlServer,
    edge::{
        classify::{Kind, NO_TLS_HERE, classify},
        forwarded::TrustedProxies,
        h1, h2,
        handler::{Busy, Handler, Health, InProgress, Opening},
        listener::Accepted,
    },
    error::Refusal,
    exchange::Exchange,
    policy::Chain,
    pool::Pool,
    routing::{Destination, Table},
    shutdown::Shutdown,
    upstream::tunnel,
};

/// Serves visitors of one shard.
pub struct Remote {
    pub config: Arc<Config>,
    pub table: Table,
    pub chain: Chain,
    pub pool: Pool,
    pub proxies: TrustedProxies,
    pub control: ControlServer,
    pub shutdown: Shutdown,
    pub in_progress: InProgress,
}

impl Remote {
    pub async fn serve(self: Rc<Self>, accepted: Accepted) {
        let Some(classified) = classify(accepted).await else { return };
        let accepted = classified.accepted;
        match classified.kind {
            Kind::Http2 => h2::serve(accepted, classified.first, self).await,
            Kind::Http1 | Kind::Unknown => {
                if let Some(client) = h1::serve(accepted, classified.first, &*self).await {
                    self.control.clone().serve(client.socket, client.first, client.peer).await;
                }
            }
            Kind::Tls => {
                let mut socket = accepted.socket;
                // Whoever speaks TLS to a plain port may be gone already.
                let _ = socket.write_all(&NO_TLS_HERE).await;
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
        let chosen = self.pool.choose(admitted).await?;
        tunnel::open(chosen, reuse, exchange.visitor, host.as_str()).map(Opening::Stream)
    }

    fn health(&self) -> Health {
        if self.shutdown.is_draining() { Health::Draining } else { Health::Ok }
    }

    async fn until_draining(&self) {
        self.shutdown.until_draining().await;
    }

    fn begin(&self) -> Busy {
        self.in_progress.begin()
    }

    fn trusted_proxies(&self) -> &TrustedProxies {
        &self.proxies
    }
}
