//! Packets: what a binary message holds once both hellos are said. Decoding is total and never panics.

use bytes::{BufMut, Bytes, BytesMut};

use crate::{id::StreamId, token::Secret};

/// The most payload one Data packet carries, in bytes. Small enough that streams take fair turns.
pub const MAX_DATA: usize = 64 * 1024;

/// Tag byte and stream id.
pub const HEAD: usize = 9;

/// Every tag on the wire. Numbers are never given to another meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Tag {
    Init = 0x01,
    Data = 0x02,
    Refused = 0x03,
    End = 0x04,
    Ping = 0x05,
    Terminate = 0x06,
    Window = 0x10,
    Reset = 0x11,
    GoAway = 0x12,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    Init { id: StreamId, about: Bytes },
    Data { id: StreamId, bytes: Bytes },
    Refused { id: StreamId, about: Bytes },
    End { id: StreamId },
    Ping { token: Option<Secret> },
    Terminate { about: Bytes },
    Window { id: StreamId, grant: u32 },
    Reset { id: StreamId, code: ResetCode },
    GoAway { about: Bytes },
}

/// Why a stream was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetCode {
    /// Whoever wanted the bytes is gone.
    Cancelled,
    /// The local connection had ended before any of this was written to it: it may be sent again.
    Unused,
    /// The local service broke off.
    LocalFailed,
    /// More was sent than was granted.
    FlowControl,
    /// Nothing moved for too long.
    TimedOut,
    Other(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    #[error("packet of {0} bytes is shorter than its head")]
    Truncated(usize),
    #[error("unknown packet tag {0:#04x}")]
    UnknownTag(u8),
    #[error("{tag:?} packet has {len} bytes of payload, which does not fit")]
    BadLength { tag: Tag, len: usize },
    #[error("ping with unknown id {0}")]
    BadPing(StreamId),
    #[error("ping token is not UTF-8")]
    BadToken,
}

impl Packet {
    /// Reads one whole binary message.
    pub fn decode(message: Bytes) -> Result<Self, PacketError> {
        let Some((head, _)) = message.split_first_chunk::<HEAD>() else {
            return Err(PacketError::Truncated(message.len()));
        };
        let [tag, id @ ..] = *head;
        let tag = Tag::try_from(tag)?;
        let id = StreamId::from_bytes(id);
        let payload = message.slice(HEAD..);
        let len = payload.len();
        let wrong_length = PacketError::BadLength { tag, len };
        Ok(match tag {
            Tag::Data if len > MAX_DATA => return Err(wrong_length),
            Tag::Init => Self::Init { id, about: payload },
            Tag::Data => Self::Data { id, bytes: payload },
            Tag::Refused => Self::Refused { id, about: payload },
            Tag::End if len == 0 => Self::End { id },
            Tag::End => return Err(wrong_length),
            Tag::Ping => match id {
                StreamId::PING if len == 0 => Self::Ping { token: None },
                StreamId::PING => return Err(wrong_length),
                StreamId::PING_WITH_TOKEN => {
                    let text = std::str::from_utf8(&payload).map_err(|_| PacketError::BadToken)?;
                    Self::Ping { token: Some(Secret::new(text)) }
                }
                other => return Err(PacketError::BadPing(other)),
            },
            Tag::Terminate => Self::Terminate { about: payload },
            Tag::Window => {
                let grant = <[u8; 4]>::try_from(&payload[..]).map_err(|_| wrong_length)?;
                Self::Window { id, grant: u32::from_be_bytes(grant) }
            }
            Tag::Reset => match payload[..] {
                [code] => Self::Reset { id, code: ResetCode::from(code) },
                _ => return Err(wrong_length),
            },
            Tag::GoAway => Self::GoAway { about: payload },
        })
    }

    /// The packet as one message. The writer of a connection puts head and payload on the wire apart; this
    /// is for hellos' neighbours and tests, where copying does not matter.
    pub fn encode(&self) -> Bytes {
        let (tag, id, payload): (Tag, StreamId, Bytes) = match self {
            Self::Init { id, about } => (Tag::Init, *id, about.clone()),
            Self::Data { id, bytes } => (Tag::Data, *id, bytes.clone()),
            Self::Refused { id, about } => (Tag::Refused, *id, about.clone()),
            Self::End { id } => (Tag::End, *id, Bytes::new()),
            Self::Ping { token: None } => (Tag::Ping, StreamId::PING, Bytes::new()),
            Self::Ping { token: Some(token) } => {
                (Tag::Ping, StreamId::PING_WITH_TOKEN, Bytes::copy_from_slice(token.expose().as_bytes()))
            }
            Self::Terminate { about } => (Tag::Terminate, StreamId::CONNECTION, about.clone()),
            Self::Window { id, grant } => (Tag::Window, *id, Bytes::copy_from_slice(&grant.to_be_bytes())),
            Self::Reset { id, code } => (Tag::Reset, *id, Bytes::copy_from_slice(&[u8::from(*code)])),
            Self::GoAway { about } => (Tag::GoAway, StreamId::CONNECTION, about.clone()),
        };
        let mut message = BytesMut::with_capacity(HEAD + payload.len());
        put_head(&mut message, tag, id);
        message.extend_from_slice(&payload);
        message.freeze()
    }
}

/// Writes a packet's first nine bytes; its payload follows.
pub fn put_head(out: &mut BytesMut, tag: Tag, id: StreamId) {
    out.put_u8(tag as u8);
    out.put_slice(&id.to_bytes());
}

impl TryFrom<u8> for Tag {
    type Error = PacketError;
    fn try_from(byte: u8) -> Result<Self, PacketError> {
        Ok(match byte {
            0x01 => Self::Init,
            0x02 => Self::Data,
            0x03 => Self::Refused,
            0x04 => Self::End,
            0x05 => Self::Ping,
            0x06 => Self::Terminate,
            0x10 => Self::Window,
            0x11 => Self::Reset,
            0x12 => Self::GoAway,
            other => return Err(PacketError::UnknownTag(other)),
        })
    }
}

impl From<u8> for ResetCode {
    fn from(byte: u8) -> Self {
        match byte {
            1 => Self::Cancelled,
            2 => Self::Unused,
            3 => Self::LocalFailed,
            4 => Self::FlowControl,
            5 => Self::TimedOut,
            other => Self::Other(other),
        }
    }
}

impl From<ResetCode> for u8 {
    fn from(code: ResetCode) -> Self {
        match code {
            ResetCode::Cancelled => 1,
            ResetCode::Unused => 2,
            ResetCode::LocalFailed => 3,
            ResetCode::FlowControl => 4,
            ResetCode::TimedOut => 5,
            ResetCode::Other(other) => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn golden(packet: Packet, hex: &str) {
        let bytes: Vec<u8> =
            (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect();
        assert_eq!(packet.encode(), bytes);
        assert_eq!(Packet::decode(bytes.into()).unwrap(), packet);
    }

    const A: StreamId = StreamId(u64::from_be_bytes(*b"ABCDEFGH"));
    const B: StreamId = StreamId(u64::from_be_bytes(*b"BBBBBBBB"));

    #[test]
    fn golden_bytes_of_protocol_1() {
        golden(Packet::Ping { token: None }, "050f00000000000000");
        golden(Packet::Ping { token: Some(Secret::new("token123")) }, "050f00000000000001746f6b656e313233");
        golden(Packet::Init { id: A, about: Bytes::new() }, "014142434445464748");
        golden(
            Packet::Data { id: A, bytes: Bytes::from_static(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") },
            "024142434445464748474554202f20485454502f312e310d0a486f73743a20780d0a0d0a",
        );
        golden(
            Packet::Data {
                id: A,
                bytes: Bytes::from_static(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
            },
            "024142434445464748485454502f312e3120323030204f4b0d0a436f6e74656e742d4c656e6774683a20320d0a0d0a6f6b",
        );
        golden(Packet::End { id: A }, "044142434445464748");
        golden(Packet::Refused { id: B, about: Bytes::new() }, "034242424242424242");
        golden(Packet::Terminate { about: Bytes::from_static(b"bye") }, "060f00000000000000627965");
    }

    #[test]
    fn golden_bytes_of_protocol_2() {
        golden(Packet::Window { id: A, grant: 0x0004_0000 }, "10414243444546474800040000");
        golden(Packet::Reset { id: A, code: ResetCode::Unused }, "11414243444546474802");
        golden(Packet::GoAway { about: Bytes::from_static(b"{}") }, "120f000000000000007b7d");
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let decode = |bytes: &[u8]| Packet::decode(Bytes::copy_from_slice(bytes));
        assert_eq!(decode(b""), Err(PacketError::Truncated(0)));
        assert_eq!(decode(b"\x02ABCDEFG"), Err(PacketError::Truncated(8)));
        assert_eq!(decode(b"\x07ABCDEFGH"), Err(PacketError::UnknownTag(7)));
        assert_eq!(decode(b"\x05ABCDEFGH"), Err(PacketError::BadPing(A)));
        assert_eq!(decode(b"\x04ABCDEFGHx"), Err(PacketError::BadLength { tag: Tag::End, len: 1 }));
        assert_eq!(decode(b"\x10ABCDEFGH\0\0\0"), Err(PacketError::BadLength { tag: Tag::Window, len: 3 }));
        assert_eq!(decode(b"\x11ABCDEFGH"), Err(PacketError::BadLength { tag: Tag::Reset, len: 0 }));
        let mut long = vec![2; HEAD];
        long.resize(HEAD + MAX_DATA + 1, 0);
        assert_eq!(decode(&long), Err(PacketError::BadLength { tag: Tag::Data, len: MAX_DATA + 1 }));
    }

    fn any_packet() -> impl Strategy<Value = Packet> {
        let id = any::<u64>().prop_map(StreamId);
        let bytes = proptest::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from);
        prop_oneof![
            (id.clone(), bytes.clone()).prop_map(|(id, about)| Packet::Init { id, about }),
            (id.clone(), bytes.clone()).prop_map(|(id, bytes)| Packet::Data { id, bytes }),
            (id.clone(), bytes.clone()).prop_map(|(id, about)| Packet::Refused { id, about }),
            id.clone().prop_map(|id| Packet::End { id }),
            proptest::option::of("\\PC{1,60}")
                .prop_map(|token| Packet::Ping { token: token.map(Secret::new) }),
            bytes.clone().prop_map(|about| Packet::Terminate { about }),
            (id.clone(), any::<u32>()).prop_map(|(id, grant)| Packet::Window { id, grant }),
            (id, any::<u8>()).prop_map(|(id, code)| Packet::Reset { id, code: code.into() }),
            bytes.prop_map(|about| Packet::GoAway { about }),
        ]
    }

    proptest! {
        #[test]
        fn round_trip(packet in any_packet()) {
            prop_assert_eq!(Packet::decode(packet.encode()), Ok(packet));
        }

        #[test]
        fn truncated_heads_are_errors(packet in any_packet(), keep in 0..HEAD) {
            prop_assert_eq!(Packet::decode(packet.encode().slice(..keep)), Err(PacketError::Truncated(keep)));
        }

        #[test]
        fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Packet::decode(bytes.into());
        }

        #[test]
        fn unknown_tags_are_errors(tag in any::<u8>(), id in any::<u64>()) {
            prop_assume!(Tag::try_from(tag).is_err());
            let mut bytes = vec![tag];
            bytes.extend(id.to_be_bytes());
            prop_assert_eq!(Packet::decode(bytes.into()), Err(PacketError::UnknownTag(tag)));
        }
    }
}
