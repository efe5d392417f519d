//! The tunnelto wire protocol, for both ends.
//!
//! A client opens a WebSocket at `/wormhole`, says a [`hello::ClientHello`] and is answered by a
//! [`hello::ServerHello`]. From then on every binary message is one [`packet::Packet`]: a tag byte, an
//! eight-byte stream id and a payload.
//!
//! | tag | packet    | direction        | payload                                             |
//! |-----|-----------|------------------|-----------------------------------------------------|
//! | 01  | Init      | server to client | protocol 2: JSON [`hello::Init`]; protocol 1: empty |
//! | 02  | Data      | both             | at most [`packet::MAX_DATA`] bytes                  |
//! | 03  | Refused   | client to server | protocol 2: JSON [`hello::Refusal`]                 |
//! | 04  | End       | both             | empty; protocol 2: the sender has finished sending  |
//! | 05  | Ping      | both             | a reconnect token, or empty                         |
//! | 06  | Terminate | server to client | protocol 2: JSON; protocol 1: text                  |
//! | 10  | Window    | both             | u32: further bytes the sender may receive           |
//! | 11  | Reset     | both             | one code byte: abort now                            |
//! | 12  | GoAway    | server to client | JSON: connect elsewhere, finish what is open        |
//!
//! [`mux`] turns packets into streams with flow control for both ends; [`ws`] frames them.
//! `docs/protocol.md` is the specification.

pub mod token;

pub mod id;
pub mod name;

pub mod hello;
pub mod packet;

pub mod credit;

pub mod read_buffer;
pub mod socket;

pub mod backlog;
pub mod ws;

pub mod mux;
