//! A stream to a client's local service.

use std::rc::Rc;

use tunnelto_lib::{
    hello::{Init, Kind},
    mux::OpenError,
};

use super::Upstream;
use crate::{
    active_stream::{Connection, Reuse},
    error::Refusal,
    exchange::Exchange,
};

pub fn open(
    connection: &Rc<Connection>,
    reuse: Reuse,
    exchange: &Exchange,
    host: &str,
) -> Result<Upstream, Refusal> {
    let about = || Init {
        peer: exchange.visitor.to_string(),
        kind: Kind::Http,
        host: host.to_owned(),
        tls: exchange.is_secure,
    };
    connection.open(reuse, about).map(Upstream::Tunnel).map_err(|error| match error {
        OpenError::TooMany => Refusal::TooMany,
        OpenError::Lost => Refusal::TunnelOffline,
    })
}
