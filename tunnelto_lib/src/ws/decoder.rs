//! Bytes to whole messages.

use bytes::{Bytes, BytesMut};

use super::frame::{Opcode, Role};
use crate::packet::{HEAD, MAX_DATA};

/// The longest message either side accepts, in bytes: a full Data packet.
pub const MAX_MESSAGE: usize = HEAD + MAX_DATA;

/// Control frames carry at most this much (RFC 6455 section 5.5).
const MAX_CONTROL: usize = 125;

/// Frames to messages, for one direction of one connection.
pub struct Decoder {
    role: Role,
    /// Opcode and payload of a message whose last fragment has not come.
    fragments: Option<(Opcode, BytesMut)>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Message {
    Binary(Bytes),
    Text(Bytes),
    Ping(Bytes),
    Pong,
    Close,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WsError {
    #[error("frame with a reserved bit or opcode")]
    Reserved,
    #[error("frame masking is wrong for its direction")]
    Masking,
    #[error("message longer than {MAX_MESSAGE} bytes")]
    TooLong,
    #[error("control frame is fragmented or too long")]
    BadControl,
    #[error("continuation without a beginning, or a beginning within a message")]
    BadFragment,
}

struct Header {
    fin: bool,
    opcode: Opcode,
    /// Bytes of the header itself.
    size: usize,
    mask: Option<[u8; 4]>,
    len: usize,
}

impl Decoder {
    /// `role` is the reading side's.
    pub fn new(role: Role) -> Self {
        Self { role, fragments: None }
    }

    /// Takes the next whole message off the front of `buffer`; `None` when more bytes are needed.
    pub fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Message>, WsError> {
        while let Some(header) = self.header(buffer)? {
            let end = header.size + header.len;
            if buffer.len() < end {
                return Ok(None);
            }
            let mut payload = buffer.split_to(end).split_off(header.size);
            if let Some(key) = header.mask.filter(|key| *key != [0; 4]) {
                unmask(&mut payload, key);
            }
            if let Some(message) = self.frame(&header, payload)? {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    fn header(&self, buffer: &[u8]) -> Result<Option<Header>, WsError> {
        let [first, second, rest @ ..] = buffer else { return Ok(None) };
        if first & 0x70 != 0 {
            return Err(WsError::Reserved);
        }
        let opcode = opcode(first & 0x0f).ok_or(WsError::Reserved)?;
        let fin = first & 0x80 != 0;
        let masked = second & 0x80 != 0;
        if masked != (self.role == Role::Server) {
            return Err(WsError::Masking);
        }
        let (len, len_size) = match second & 0x7f {
            126 => match rest.first_chunk::<2>() {
                Some(bytes) => (u64::from(u16::from_be_bytes(*bytes)), 2),
                None => return Ok(None),
            },
            127 => match rest.first_chunk::<8>() {
                Some(bytes) => (u64::from_be_bytes(*bytes), 8),
                None => return Ok(None),
            },
            short => (u64::from(short), 0),
        };
        let control = opcode as u8 >= 8;
        if control && (!fin || len > MAX_CONTROL as u64) {
            return Err(WsError::BadControl);
        }
        let held = self.fragments.as_ref().map_or(0, |(_, held)| held.len());
        if !control && len > (MAX_MESSAGE - held) as u64 {
            return Err(WsError::TooLong);
        }
        let mask = match (masked, rest[len_size..].first_chunk::<4>()) {
            (false, _) => None,
            (true, Some(key)) => Some(*key),
            (true, None) => return Ok(None),
        };
        let size = 2 + len_size + if masked { 4 } else { 0 };
        Ok(Some(Header { fin, opcode, size, mask, len: len as usize }))
    }

    /// One frame's part in a message; `None` while its message is incomplete.
    fn frame(&mut self, header: &Header, payload: BytesMut) -> Result<Option<Message>, WsError> {
        match header.opcode {
            Opcode::Ping => return Ok(Some(Message::Ping(payload.freeze()))),
            Opcode::Pong => return Ok(Some(Message::Pong)),
            Opcode::Close => return Ok(Some(Message::Close)),
            Opcode::Continuation => {
                let Some((_, held)) = &mut self.fragments else { return Err(WsError::BadFragment) };
                held.extend_from_slice(&payload);
            }
            Opcode::Text | Opcode::Binary if self.fragments.is_some() => return Err(WsError::BadFragment),
            Opcode::Text | Opcode::Binary if header.fin => {
                return Ok(Some(whole(header.opcode, payload.freeze())));
            }
            // Copied, so that a slow message pins no shared block.
            first => self.fragments = Some((first, BytesMut::from(&payload[..]))),
        }
        Ok(match header.fin {
            true => self.fragments.take().map(|(opcode, held)| whole(opcode, held.freeze())),
            false => None,
        })
    }
}

fn whole(opcode: Opcode, payload: Bytes) -> Message {
    if opcode == Opcode::Text { Message::Text(payload) } else { Message::Binary(payload) }
}

fn opcode(bits: u8) -> Option<Opcode> {
    Some(match bits {
        0 => Opcode::Continuation,
        1 => Opcode::Text,
        2 => Opcode::Binary,
        8 => Opcode::Close,
        9 => Opcode::Ping,
        10 => Opcode::Pong,
        _ => return None,
    })
}

/// Section 5.3, eight bytes at a time.
fn unmask(payload: &mut [u8], key: [u8; 4]) {
    let wide = u64::from_ne_bytes([key[0], key[1], key[2], key[3], key[0], key[1], key[2], key[3]]);
    let (words, rest) = payload.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, key) in rest.iter_mut().zip(key.iter().cycle()) {
        *byte ^= key;
    }
}

#[cfg(test)]
mod tests {
    use super::{super::put_frame_head, *};
    use proptest::prelude::*;

    fn decode_all(role: Role, bytes: &[u8]) -> Result<Vec<Message>, WsError> {
        let mut decoder = Decoder::new(role);
        let mut buffer = BytesMut::from(bytes);
        let mut out = Vec::new();
        while let Some(message) = decoder.decode(&mut buffer)? {
            out.push(message);
        }
        Ok(out)
    }

    #[test]
    fn examples_of_rfc_6455_section_5_7() {
        let hello = Message::Text(Bytes::from_static(b"Hello"));
        assert_eq!(decode_all(Role::Client, b"\x81\x05Hello"), Ok(vec![hello]));
        let hello = Message::Text(Bytes::from_static(b"Hello"));
        let masked = b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58";
        assert_eq!(decode_all(Role::Server, masked), Ok(vec![hello]));
        let hello = Message::Text(Bytes::from_static(b"Hello"));
        let with_ping_between = b"\x01\x03Hel\x89\x00\x80\x02lo";
        assert_eq!(decode_all(Role::Client, with_ping_between), Ok(vec![Message::Ping(Bytes::new()), hello]));
    }

    #[test]
    fn faulty_frames_are_errors() {
        assert_eq!(decode_all(Role::Client, b"\xc2\x00"), Err(WsError::Reserved));
        assert_eq!(decode_all(Role::Client, b"\x83\x00"), Err(WsError::Reserved));
        assert_eq!(decode_all(Role::Client, b"\x82\x80"), Err(WsError::Masking));
        assert_eq!(decode_all(Role::Server, b"\x82\x00"), Err(WsError::Masking));
        assert_eq!(decode_all(Role::Client, b"\x82\x7f\0\0\0\0\0\x02\0\0"), Err(WsError::TooLong));
        assert_eq!(
            decode_all(Role::Client, b"\x02\x01x\x80\x7f\xff\xff\xff\xff\xff\xff\xff\xff"),
            Err(WsError::TooLong)
        );
        assert_eq!(decode_all(Role::Client, b"\x89\x7e\x00\x7e"), Err(WsError::BadControl));
        assert_eq!(decode_all(Role::Client, b"\x09\x00"), Err(WsError::BadControl));
        assert_eq!(decode_all(Role::Client, b"\x80\x00"), Err(WsError::BadFragment));
        assert_eq!(decode_all(Role::Client, b"\x02\x00\x02\x00"), Err(WsError::BadFragment));
    }

    proptest! {
        #[test]
        fn round_trip_in_any_pieces(
            payload in proptest::collection::vec(any::<u8>(), 0..70_000),
            cut in 1usize..5000,
            client: bool,
        ) {
            prop_assume!(payload.len() <= MAX_MESSAGE);
            let (writer, reader) =
                if client { (Role::Client, Role::Server) } else { (Role::Server, Role::Client) };
            let mut wire = BytesMut::new();
            put_frame_head(&mut wire, writer, Opcode::Binary, payload.len());
            wire.extend_from_slice(&payload);
            let mut decoder = Decoder::new(reader);
            let mut buffer = BytesMut::new();
            let mut got = None;
            for piece in wire.chunks(cut) {
                buffer.extend_from_slice(piece);
                prop_assert!(got.is_none());
                got = decoder.decode(&mut buffer).unwrap();
            }
            prop_assert_eq!(got, Some(Message::Binary(payload.into())));
            prop_assert!(buffer.is_empty());
        }

        #[test]
        fn decoding_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300), server: bool) {
            let _ = decode_all(if server { Role::Server } else { Role::Client }, &bytes);
        }
    }
}
