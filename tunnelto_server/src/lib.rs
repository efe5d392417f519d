//! The tunnelto server: visitors come in, clients hold the other ends, and everything between is a list of
//! verbs (see `remote`). Modules are listed from foundation to roof; a module uses only those before it.
//! `docs/ARCHITECTURE.md` draws the picture.

pub mod gauge;
pub mod io;
pub mod limits;
pub mod serving;
pub mod sign;
pub mod socket;

pub mod config;
pub mod shutdown;
pub mod tls;

pub mod observability;

pub mod active_stream;
pub mod error;
pub mod exchange;

pub mod policy;

pub mod parking;

pub mod connected_clients;
pub mod shard;

pub mod network;

pub mod routing;

pub mod pool;

pub mod upstream;

pub mod relay;

pub mod auth;
pub mod edge;

pub mod control;

pub mod admin;
pub mod control_server;
pub mod remote;

pub mod worker;

pub mod doors;
pub mod server;

pub mod commands;
