//! The tunnelto client: it holds a WebSocket or more to a server and carries each stream that the server opens to a
//! local service. Modules are listed from foundation to roof; a module uses only those before it.

pub mod error;
pub mod ui;

pub mod cli;
pub mod resolve;

pub mod local;

pub mod config;
pub mod reconnect;

pub mod connect;
pub mod streams;

pub mod session;

pub mod tunnel;

pub mod commands;
