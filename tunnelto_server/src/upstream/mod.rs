//! Opening a byte stream for an exchange.

pub mod tunnel;
