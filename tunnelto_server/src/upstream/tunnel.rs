//! A stream to a client's local service.

use std::net::SocketAddr;

use tunnelto_lib::{
    hello::{Init, Kind},
    mux::OpenError,
};

use crate::{
    active_stream::{ActiveStream, Reuse, ShardId},
    error::Refusal,
    pool::Chosen,
};

pub enum Opened {
    Stream(ActiveStream),
    /// The client's connection lives on another shard: the exchange goes there first.
    Elsewhere(ShardId),
}

pub fn open(chosen: Chosen, reuse: Reuse, visitor: SocketAddr, host: &str) -> Result<Opened, Refusal> {
    let connection = match chosen {
        Chosen::Here(connection) => connection,
        Chosen::Elsewhere(shard) => return Ok(Opened::Elsewhere(shard)),
    };
    let about = || Init { peer: visitor.to_string(), kind: Kind::Http, host: host.to_owned(), tls: false };
    connection.open(reuse, about).map(Opened::Stream).map_err(|error| match error {
        OpenError::TooMany => Refusal::TooMany,
        OpenError::Lost => Refusal::TunnelOffline,
    })
}
