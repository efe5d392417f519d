//! What instances say to each other.

pub mod health;
pub mod server;
