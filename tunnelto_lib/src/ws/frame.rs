//! Frame headers (RFC 6455 section 5.2).

use bytes::{BufMut, BytesMut};

/// Which side this is. Frames towards a server are masked, frames towards a client are not (section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Client,
    Server,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    Continuation = 0,
    Text = 1,
    Binary = 2,
    Close = 8,
    Ping = 9,
    Pong = 10,
}

/// The longest frame header: two bytes, eight of length, four of mask.
pub const MAX_FRAME_HEAD: usize = 14;

/// Writes the header of one whole message of `len` bytes. A client masks with the key 0, which leaves the
/// payload as it is; `docs/decisions/` says why that is enough here.
pub fn put_frame_head(out: &mut BytesMut, role: Role, opcode: Opcode, len: usize) {
    out.put_u8(0x80 | opcode as u8);
    let mask = if role == Role::Client { 0x80 } else { 0 };
    match len {
        0..126 => out.put_u8(mask | len as u8),
        126..65536 => {
            out.put_u8(mask | 126);
            out.put_u16(len as u16);
        }
        _ => {
            out.put_u8(mask | 127);
            out.put_u64(len as u64);
        }
    }
    if role == Role::Client {
        out.put_u32(0);
    }
}
