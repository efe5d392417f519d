//! Stream ids. The side that opens a stream picks its id; ids are not reused on a connection.

use std::fmt;

/// Eight bytes on the wire, big-endian.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

impl StreamId {
    /// The id of a packet that concerns the connection and not a stream (Terminate, GoAway).
    pub const CONNECTION: Self = Self(0x0f00_0000_0000_0000);
    /// The id of a Ping without a token.
    pub const PING: Self = Self::CONNECTION;
    /// The id of a Ping that carries a reconnect token.
    pub const PING_WITH_TOKEN: Self = Self(0x0f00_0000_0000_0001);

    pub fn to_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }

    pub fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(u64::from_be_bytes(bytes))
    }
}

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
