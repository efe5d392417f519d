//! A stream to a client's local service.

use std::net::SocketAddr;

use tunnelto_lib::{
    hello::{Init, Kind},
    mux::OpenError,
};

use crate::{
    active_stream::{ActiveStream, Reuse},
    error::Refusal,
    pool::Chosen,
};

pub fn open(chosen: Chosen, reuse: Reuse, visitor: SocketAddr, host: &str) -> Result<ActiveStream, Refusal> {
    let about = || Init { peer: visitor.to_string(), kind: Kind::Http, host: host.to_owned(), tls: false };
    chosen.into_connection().open(reuse, about).map_err(|error| match error {
        OpenError::TooMany => Refusal::TooMany,
        OpenError::Lost => Refusal::TunnelOffline,
    })
}
