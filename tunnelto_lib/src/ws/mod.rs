//! WebSocket (RFC 6455) as far as the tunnel needs it: the opening handshake's accept value, frame headers,
//! and a decoder that turns bytes into whole messages without copying them.
//!
//! Frames are our own because of what they cost: header and payload are written as two slices, payloads are
//! slices of the read buffer, and an idle connection holds no buffer. The tests talk to an independent
//! implementation.

mod decoder;
mod frame;
mod handshake;

pub use decoder::{Decoder, MAX_MESSAGE, Message, WsError};
pub use frame::{MAX_FRAME_HEAD, Opcode, Role, put_frame_head};
pub use handshake::{accept_value, new_key};
