//! Which owner a client is, and which name it may claim.

mod claim;
mod keys;
mod reconnect_token;

pub use claim::{Proved, Prover, Refused, Wish};
pub use keys::{Grant, create_key, verify_key};
