//! One client connection: `welcome` goes from the hello to a granted name, `heartbeat` decides when a client is
//! dead, `session` is the connection's actor.

mod heartbeat;
pub mod session;
mod welcome;
mod wire;
