//! The first message of TLS, as far as it decides the way of a connection.

use rustls::server::Acceptor;

/// The protocol of a validation that speaks TLS (RFC 8737 section 6.2).
pub const PROOF: &[u8] = b"acme-tls/1";

/// What a visitor wants that begins a TLS connection.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The host (RFC 6066 section 3), in small letters.
    pub name: Option<String>,
    /// Proof that the host is ours (RFC 8737 section 3), and nothing else.
    pub proof: bool,
}

/// What the first bytes of a TLS connection have told.
#[derive(Debug, PartialEq, Eq)]
pub enum Hello {
    Incomplete,
    Whole(Wanted),
    /// Nothing that TLS could go on with; whoever goes on says so.
    Malformed,
}

pub fn read(mut bytes: &[u8]) -> Hello {
    // Not before the first record is whole (RFC 8446 section 5.1): it may come byte by byte.
    let length = bytes.get(3..5).map(|length| usize::from(u16::from_be_bytes([length[0], length[1]])));
    if length.is_none_or(|length| bytes.len() < 5 + length) {
        return Hello::Incomplete;
    }
    let mut acceptor = Acceptor::default();
    while !bytes.is_empty() {
        match acceptor.read_tls(&mut bytes) {
            Ok(0) | Err(_) => return Hello::Malformed,
            Ok(_) => {}
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => {
                let hello = accepted.client_hello();
                let name = hello.server_name().map(|name| name.strip_suffix('.').unwrap_or(name));
                let name = name.map(str::to_ascii_lowercase);
                let proof = hello.alpn().is_some_and(|mut offered| offered.any(|name| name == PROOF));
                return Hello::Whole(Wanted { name, proof });
            }
            Ok(None) => {}
            Err(_) => return Hello::Malformed,
        }
    }
    Hello::Incomplete
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use rustls::{ClientConfig, ClientConnection, RootCertStore, crypto::ring};

    use super::*;

    fn hello(name: &'static str, protocol: &[u8]) -> Vec<u8> {
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.to_vec()];
        let mut client = ClientConnection::new(Arc::new(config), name.try_into().unwrap()).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_hello_tells_its_host_once_it_is_whole() {
        let wanted =
            |name: Option<&str>, proof| Hello::Whole(Wanted { name: name.map(str::to_owned), proof });
        let bytes = hello("Web.Example.com", b"h2");
        assert_eq!(read(&bytes), wanted(Some("web.example.com"), false));
        for cut in 0..bytes.len() {
            assert_eq!(read(&bytes[..cut]), Hello::Incomplete, "{cut}");
        }
        // It is the same host with a dot behind it, and must not get a certificate of its own.
        let mut dotted = hello("web.example.comX", b"h2");
        let end = dotted.windows(4).position(|bytes| bytes == b"comx" || bytes == b"comX").unwrap() + 3;
        dotted[end] = b'.';
        assert_eq!(read(&dotted), wanted(Some("web.example.com"), false));
        assert_eq!(read(&hello("127.0.0.1", b"h2")), wanted(None, false));
        assert_eq!(read(&hello("web.example.com", PROOF)), wanted(Some("web.example.com"), true));
    }

    proptest! {
        #[test]
        fn nothing_else_has_a_host(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(!matches!(read(&bytes), Hello::Whole(_)));
            let record = [&[0x16, 3, 1, 1, 0x40, 1, 0, 1, 0x3c, 3, 3], &bytes[..]].concat();
            let has_host = matches!(read(&record), Hello::Whole(Wanted { name: Some(_), .. }));
            prop_assert!(!has_host);
        }
    }
}
