//! What the edge asks of the server behind it.

use std::sync::Arc;

use tunnelto_lib::name::{Hostname, Label};

use crate::{
    active_stream::{Reuse, ShardId},
    edge::{forwarded::TrustedProxies, handover::Parcel, listener::Arrival},
    error::Refusal,
    exchange::Exchange,
    gauge::Counted,
    network::{peer::Peer, proxy::Reached},
    upstream::Upstream,
};

/// Answered on the visitors' door under any host, or none.
pub const HEALTH_CHECK: &str = "/0xDEADBEEF_HEALTH_CHECK";

/// What a request leads to.
pub enum Opening {
    Stream(Upstream),
    /// Another instance serves the tunnel, and takes the visitor's whole connection.
    Pipe(Bound),
    /// The bare host: a redirect, or a small page.
    Home(Option<String>),
    /// The same address by TLS.
    Secure(String),
    Health(Health),
    /// The server's own words, as text.
    Words(String),
    /// The tunnel's client is on another shard, which takes the exchange.
    Elsewhere(ShardId),
    /// A client that connects through the visitors' door: the control server takes the connection as it is.
    Wormhole,
}

/// The instance that a visitor goes to, and the name it asks for.
pub struct Bound {
    pub peer: Arc<Peer>,
    pub name: Label,
}

/// Another instance has not taken a visitor.
pub struct NotBrought {
    pub refusal: Refusal,
    /// What was sent may yet be acted on, or there is no use in looking again.
    pub was_used: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Ok,
    Draining,
}

/// Routes, admits, chooses and opens. One exchange may ask again when its stream turns out to be dead.
pub trait Handler {
    fn open(
        &self,
        exchange: &mut Exchange,
        host: &Hostname,
        reuse: Reuse,
    ) -> impl Future<Output = Result<Opening, Refusal>>;

    /// Brings a visitor's connection to another instance, with what was read of it; that has taken it when this returns.
    fn bring(
        &self,
        exchange: &Exchange,
        to: &Bound,
        first: &[&[u8]],
    ) -> impl Future<Output = Result<Reached, NotBrought>>;

    /// Gives an exchange to another shard. Waits while that has its hands full.
    fn hand_over(&self, to: ShardId, parcel: Parcel) -> impl Future<Output = ()>;

    fn health(&self) -> Health;

    /// Whether no further request is wanted on a connection that came so.
    fn is_last(&self, arrival: &Arrival) -> bool;

    fn until_draining(&self) -> impl Future<Output = ()>;

    /// Counts an exchange from its head to its end, waiting and goodbye included: a draining server waits for it.
    fn begin(&self) -> Counted;

    fn trusted_proxies(&self) -> &TrustedProxies;
}

/// Whether a head of HTTP/1 asks for the server's health. Load balancers send what they like as Host.
pub fn is_health_request(head: &[u8]) -> bool {
    let rest = head.strip_prefix(b"GET ").and_then(|rest| rest.strip_prefix(HEALTH_CHECK.as_bytes()));
    rest.is_some_and(|rest| rest.starts_with(b" HTTP/1."))
}
