//! What an operator sees of the server's work.

pub mod access_log;
pub mod metrics;
