//! The visitors' way: accept, classify, route, admit, choose, open, carry. Each verb is a module; this is the
//! list of them and nothing else.

use std::{borrow::Cow, net::IpAddr, rc::Rc, sync::Arc};

use tunnelto_lib::{
    name::{Hostname, Label},
    read_buffer::ReadBuffer,
};

use crate::{
    active_stream::{Reuse, ShardId},
    config::{Config, PublicUrl},
    control_server::ControlServer,
    edge::{
        brought,
        classify::{Classified, Kind, classify, go_on},
        crowding::{self, Crowd},
        forwarded::TrustedProxies,
        h1::{self, Elsewhere, HandOver},
        h2,
        handler::{Bound, Handler, Health, NotBrought, Opening},
        handover::{Mailboxes, MovedVisitor, Parcel},
        listener::{Accepted, Arrival, Place},
        secure,
    },
    error::Refusal,
    exchange::{Exchange, Reach, Way},
    gauge::{Counted, Gauge},
    limits::MAX_LOOKS,
    network::{
        hop::{self, Content, Visit},
        peer::Peer,
        proxy::{HopError, Hops, Reached, pipe},
    },
    policy::Chain,
    pool::{Chosen, Pool},
    routing::{Destination, Table},
    shutdown::Shutdown,
    socket::Socket,
    tls::source::{Source, Standing},
    upstream::{Upstream, peer::PeerStream, tunnel},
};

/// Serves visitors of one shard.
pub struct Remote {
    pub config: Arc<Config>,
    pub table: Table,
    pub chain: Chain,
    pub pool: Pool,
    pub proxies: TrustedProxies,
    pub crowd: Arc<Crowd>,
    pub control: ControlServer,
    pub mailboxes: Mailboxes,
    pub hops: Hops,
    pub shutdown: Shutdown,
    /// How visitors reach this server.
    pub public: PublicUrl,
    /// `None`: TLS is not spoken here.
    pub certificates: Option<Source>,
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
        let classified = match classified {
            Some(classified) if classified.kind == Kind::Tls => self.end_tls(classified).await,
            other => other,
        };
        let Some(mut classified) = classified else { return };
        // Who was brought has been counted where it came in.
        if classified.accepted.arrival.brought.is_none() {
            let peer = classified.accepted.peer.ip();
            match self.crowd.enter(peer) {
                Some(of_address) => classified.accepted.place.of_address = of_address,
                None if self.proxies.trusts(peer) => {}
                None => return crowding::refuse(classified).await,
            }
        }
        self.serve_classified(classified).await;
    }

    async fn serve_classified(self: Rc<Self>, classified: Classified) {
        let accepted = classified.accepted;
        match classified.kind {
            Kind::Http2 => h2::serve(accepted, classified.first, self).await,
            // Whoever is brought twice has gone in a circle; it is read, and refused, as a request.
            Kind::Http1 | Kind::Unknown | Kind::Brought => {
                self.serve_http1(accepted, classified.first, None).await;
            }
            // Within TLS, or where there are no certificates.
            Kind::Tls => secure::refuse(accepted).await,
        }
    }

    /// Takes what a proxy in front brings, or another instance if its tunnel is here.
    async fn receive(&self, classified: Classified) -> Option<Classified> {
        let serves = |name: &Label| self.pool.serves(name);
        let (accepted, first) = brought::receive(classified, &self.hops, &self.proxies, serves).await?;
        go_on(accepted, first).await
    }

    /// Shakes hands, unless the visitor's tunnel is another instance's: that gets the hello as it came.
    async fn end_tls(&self, classified: Classified) -> Option<Classified> {
        let (Some(certificates), Way::Unsecured) = (&self.certificates, &classified.accepted.arrival.way)
        else {
            return Some(classified);
        };
        let Classified { mut accepted, mut first, .. } = classified;
        let wanted = secure::read_hello(&mut accepted, &mut first).await.ok()?;
        if let Some(host) = &wanted.name
            && let Some(reached) = self.bring_tls(&accepted, host, &first).await
        {
            self.pipe(accepted.socket, reached, Content::Tls, accepted.place, self.begin()).await;
            return None;
        }
        if wanted.proof
            && let Some(proof) = certificates.proof(wanted.name.as_deref()?)
        {
            secure::prove(accepted, first, proof).await;
            return None;
        }
        let visitor = accepted.peer.ip();
        let certificate =
            certificates.find(wanted.name.as_deref(), |host| self.standing(visitor, host)).await;
        let accepted = secure::accept(accepted, first, &wanted, certificate).await?;
        go_on(accepted, ReadBuffer::default()).await
    }

    /// What a host that a visitor asks for is to this server, without asking others.
    fn standing(&self, visitor: IpAddr, host: &str) -> Standing {
        let Some(destination) = Hostname::parse(host).ok().and_then(|host| self.table.route(&host).ok())
        else {
            return Standing::Foreign;
        };
        match destination {
            Destination::Home | Destination::Wormhole => Standing::Held,
            Destination::Tunnel(routed) => match self.chain.admit(visitor, routed) {
                Ok(admitted) if self.pool.serves(&admitted.routed().name) => Standing::Held,
                Ok(_) => Standing::Free,
                Err(_) => Standing::Foreign,
            },
        }
    }

    /// A visitor that cannot be brought is served here, and told why as one that speaks HTTP.
    async fn bring_tls(&self, accepted: &Accepted, host: &str, first: &ReadBuffer) -> Option<Reached> {
        if accepted.arrival.brought.is_some() {
            return None;
        }
        let host = Hostname::parse(host).ok()?;
        let Destination::Tunnel(routed) = self.table.route(&host).ok()? else { return None };
        let name = routed.name.clone();
        let admitted = self.chain.admit(accepted.peer.ip(), routed).ok()?;
        let peer = self.pool.elsewhere(&admitted).await?;
        peer.introduction()?.tls_port?;
        let visit =
            Visit { kind: hop::Kind::Pipe, name: &name, visitor: accepted.peer, content: Content::Tls };
        let brought = self.hops.bring(&peer, &visit, &[&first.bytes]).await;
        if matches!(brought, Err(HopError::NotMine)) {
            self.pool.directory.doubt(&peer, &name);
        }
        brought.ok()
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
            Elsewhere::Peer(reached) => {
                drop(first);
                self.pipe(socket, reached, Content::Plain, place, busy).await;
            }
        }
    }

    async fn pipe(&self, socket: Socket, reached: Reached, content: Content, _place: Place, busy: Counted) {
        let Reached { socket: there, pace, place: _hop, header: _ } = reached;
        pipe(socket, there, &pace, content, &self.in_progress, busy).await;
    }

    /// The instance did not take a visitor; one that is busy does serve the name.
    fn doubt(&self, peer: &Arc<Peer>, name: &Label, error: &HopError) {
        if !matches!(error, HopError::Busy) {
            self.pool.directory.doubt(peer, name);
        }
    }

    /// What an ACME server is told that wants to know whether the host is ours.
    fn validation(&self, exchange: &Exchange) -> Option<String> {
        self.certificates.as_ref()?.answer(std::str::from_utf8(&exchange.target).ok()?)
    }

    /// Where a visitor that came without TLS is sent.
    fn by_tls(&self, exchange: &Exchange, host: &Hostname) -> Option<String> {
        let is_wanted = self.config.https_redirect && !exchange.is_secure;
        if !is_wanted && !matches!(exchange.way, Way::Unsecured) {
            return None;
        }
        Some(format!("{}{}", self.public.of(host), origin_form(&exchange.target)))
    }

    /// One request's way to another instance.
    async fn reach(&self, exchange: &Exchange, peer: Arc<Peer>, name: &Label) -> Result<Upstream, HopError> {
        let reached = self.hops.reach(&peer, &visit(hop::Kind::Request, name, exchange)).await;
        let directory = self.pool.directory.clone();
        match reached {
            Ok(reached) => Ok(Upstream::Peer(PeerStream::new(reached, peer, name.clone(), directory))),
            Err(error) => {
                self.doubt(&peer, name, &error);
                Err(error)
            }
        }
    }
}

impl Handler for Remote {
    async fn open(&self, exchange: &mut Exchange, host: &Hostname, reuse: Reuse) -> Result<Opening, Refusal> {
        if let Way::Tls(Some(names)) = &exchange.way
            && !names.cover(host.as_str())
        {
            return Err(Refusal::Misdirected);
        }
        let destination = self.table.route(host)?;
        if let Some(words) = self.validation(exchange) {
            return Ok(Opening::Words(words));
        }
        if destination == Destination::Wormhole {
            if matches!(exchange.way, Way::Unsecured) {
                return Err(Refusal::BadRequest("this door speaks TLS: connect with wss://"));
            }
        } else if let Some(url) = self.by_tls(exchange, host) {
            return Ok(Opening::Secure(url));
        }
        let routed = match destination {
            Destination::Tunnel(routed) => routed,
            Destination::Home => return Ok(Opening::Home(self.config.home_url.clone())),
            Destination::Wormhole => return Ok(Opening::Wormhole),
        };
        let name = routed.name.clone();
        exchange.name = Some(name.clone());
        let admitted = self.chain.admit(exchange.visitor.ip(), routed)?;
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
            let stream = tunnel::open(&connection, reuse, exchange, host.as_str())?;
            return Ok(Opening::Stream(stream));
        }
        Err(Refusal::ProxyingFailed)
    }

    async fn bring(&self, exchange: &Exchange, to: &Bound, first: &[&[u8]]) -> Result<Reached, NotBrought> {
        let brought = self.hops.bring(&to.peer, &visit(hop::Kind::Pipe, &to.name, exchange), first).await;
        brought.map_err(|error| {
            self.doubt(&to.peer, &to.name, &error);
            match error {
                HopError::Busy => NotBrought { refusal: Refusal::PeerBusy, was_used: true },
                HopError::NotMine | HopError::Io(_) | HopError::Unanswered(_) => {
                    let was_used = matches!(error, HopError::Unanswered(_));
                    NotBrought { refusal: Refusal::ProxyingFailed, was_used }
                }
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

fn visit<'v>(kind: hop::Kind, name: &'v Label, exchange: &Exchange) -> Visit<'v> {
    let content = if exchange.way.is_tls() { Content::Decrypted } else { Content::Plain };
    Visit { kind, name, visitor: exchange.peer, content }
}

/// The path and query of a request's target, whichever form it has (RFC 9112 section 3.2).
fn origin_form(target: &[u8]) -> Cow<'_, str> {
    let target = String::from_utf8_lossy(target);
    if target.starts_with('/') {
        return target;
    }
    let rest = target.split_once("://").map_or("", |(_, rest)| rest);
    let path = rest.find(['/', '?']).map_or("", |at| &rest[at..]);
    let slash = if path.starts_with('/') { "" } else { "/" };
    format!("{slash}{path}").into()
}

#[cfg(test)]
mod tests {
    use super::origin_form;

    #[test]
    fn targets_of_every_form_have_a_path() {
        for (target, path) in [
            ("/a?b=http://c", "/a?b=http://c"),
            ("http://web.example.com/a?b", "/a?b"),
            ("http://web.example.com?next=/a", "/?next=/a"),
            ("http://web.example.com", "/"),
            ("*", "/"),
        ] {
            assert_eq!(origin_form(target.as_bytes()), path, "{target}");
        }
    }
}
