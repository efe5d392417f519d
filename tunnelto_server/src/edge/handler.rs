//! What the edge asks of the server behind it.

use http::Method;
use tunnelto_lib::name::Hostname;

use crate::{
    active_stream::{ActiveStream, Reuse},
    edge::forwarded::TrustedProxies,
    error::Refusal,
    exchange::Exchange,
};

/// Answered on the visitors' door under any host.
pub const HEALTH_CHECK: &[u8] = b"/0xDEADBEEF_HEALTH_CHECK";

/// What a request leads to.
pub enum Opening {
    Stream(ActiveStream),
    /// The bare host: a redirect, or a small page.
    Home(Option<String>),
    Health(Health),
    /// A client that connects through the visitors' door: the control server takes the connection as it is.
    Wormhole,
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

    fn health(&self) -> Health;

    fn trusted_proxies(&self) -> &TrustedProxies;
}

pub fn is_health_check(method: &Method, target: &[u8]) -> bool {
    *method == Method::GET && target == HEALTH_CHECK
}
