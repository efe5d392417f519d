//! What the edge asks of the server behind it.

use std::{cell::Cell, rc::Rc};

use tunnelto_lib::name::Hostname;

use crate::{
    active_stream::{ActiveStream, Reuse},
    edge::forwarded::TrustedProxies,
    error::Refusal,
    exchange::Exchange,
};

/// Answered on the visitors' door under any host, or none.
pub const HEALTH_CHECK: &str = "/0xDEADBEEF_HEALTH_CHECK";

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

    fn until_draining(&self) -> impl Future<Output = ()>;

    /// Counts an exchange from its head to its end, waiting and goodbye included: a draining server waits for it.
    fn begin(&self) -> Busy;

    fn trusted_proxies(&self) -> &TrustedProxies;
}

/// Whether a head of HTTP/1 asks for the server's health. Load balancers send what they like as Host.
pub fn is_health_request(head: &[u8]) -> bool {
    let rest = head.strip_prefix(b"GET ").and_then(|rest| rest.strip_prefix(HEALTH_CHECK.as_bytes()));
    rest.is_some_and(|rest| rest.starts_with(b" HTTP/1."))
}

/// Exchanges under way, counted by the guards that [`InProgress::begin`] hands out.
#[derive(Clone, Debug, Default)]
pub struct InProgress(Rc<Cell<usize>>);

/// One exchange under way.
#[derive(Debug)]
pub struct Busy(InProgress);

impl InProgress {
    pub fn begin(&self) -> Busy {
        self.0.set(self.0.get() + 1);
        Busy(self.clone())
    }

    pub fn count(&self) -> usize {
        self.0.get()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.0.set(self.0.count() - 1);
    }
}
