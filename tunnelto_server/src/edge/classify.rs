//! What a connection speaks, by its first bytes.

use tunnelto_lib::read_buffer::ReadBuffer;

use super::{announced, listener::Accepted};
use crate::{
    io::within,
    limits::{FIRST_BYTE, HEAD_TIME},
};

/// The beginning of every HTTP/2 connection (RFC 9113 section 3.4).
const H2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection and what was read of it.
pub struct Classified {
    pub accepted: Accepted,
    pub first: ReadBuffer,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Http1,
    Http2,
    /// Another instance or a proxy in front brings a visitor, or somebody says so.
    Brought,
    /// A TLS hello.
    Tls,
    Unknown,
}

/// Reads until the first bytes tell. `None` when the visitor left or said nothing in time.
pub async fn classify(accepted: Accepted) -> Option<Classified> {
    go_on(accepted, ReadBuffer::default()).await
}

/// The same, where something was read already.
pub async fn go_on(mut accepted: Accepted, mut first: ReadBuffer) -> Option<Classified> {
    let mut limit = FIRST_BYTE;
    loop {
        if let Some(kind) = kind(&first.bytes) {
            return Some(Classified { accepted, first, kind });
        }
        match within(limit, first.fill(&mut accepted.socket)).await {
            Ok(Ok(count)) if count > 0 => limit = HEAD_TIME,
            _ => return None,
        }
    }
}

/// `None` while more bytes are needed.
fn kind(first: &[u8]) -> Option<Kind> {
    let byte = *first.first()?;
    if byte == 0x16 {
        return Some(Kind::Tls);
    }
    match announced::begins(first) {
        Some(true) => return Some(Kind::Brought),
        None => return None,
        Some(false) => {}
    }
    // Empty lines before the first request are skipped later (RFC 9112 section 2.2).
    if byte == b'\r' || byte == b'\n' {
        return Some(Kind::Http1);
    }
    if H2_PREFACE.starts_with(first) && first.len() < H2_PREFACE.len() {
        return None;
    }
    if first.starts_with(H2_PREFACE) {
        return Some(Kind::Http2);
    }
    Some(if byte.is_ascii_alphabetic() { Kind::Http1 } else { Kind::Unknown })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_tell() {
        assert_eq!(kind(b""), None);
        assert_eq!(kind(b"P"), None);
        assert_eq!(kind(b"PRI * HTTP/2.0\r\n\r\nSM\r\n"), None);
        assert_eq!(kind(H2_PREFACE), Some(Kind::Http2));
        assert_eq!(kind(b"PROXY"), None);
        assert_eq!(kind(b"PROXY "), Some(Kind::Brought));
        assert_eq!(kind(b"PO"), Some(Kind::Http1));
        assert_eq!(kind(b"G"), Some(Kind::Http1));
        assert_eq!(kind(b"\r\nGET"), Some(Kind::Http1));
        assert_eq!(kind(b"\r\n\r\nGET"), Some(Kind::Http1));
        assert_eq!(kind(b"\r\n\r\n\0\r\nQUIT"), None);
        assert_eq!(kind(b"\r\n\r\n\0\r\nQUIT\n"), Some(Kind::Brought));
        assert_eq!(kind(b"\x16\x03\x01"), Some(Kind::Tls));
        assert_eq!(kind(b"\0"), Some(Kind::Unknown));
    }
}
