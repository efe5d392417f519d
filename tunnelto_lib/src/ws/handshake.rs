//! The values of the opening handshake (RFC 6455 section 4).

use base64::{Engine, engine::general_purpose::STANDARD};
use sha1::{Digest, Sha1};

/// A fresh Sec-WebSocket-Key: sixteen random bytes (section 4.1).
pub fn new_key() -> String {
    STANDARD.encode(rand::random::<[u8; 16]>())
}

/// The Sec-WebSocket-Accept that answers `key` (section 4.2.2).
pub fn accept_value(key: &str) -> String {
    let mut hash = Sha1::new();
    hash.update(key.as_bytes());
    hash.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    STANDARD.encode(hash.finalize())
}

#[cfg(test)]
mod tests {
    #[test]
    fn example_of_rfc_6455_section_1_3() {
        assert_eq!(super::accept_value("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
