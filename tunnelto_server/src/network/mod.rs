//! What instances say to each other.

pub mod server;
