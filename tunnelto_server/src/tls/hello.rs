//! The first message of TLS, as far as it decides the way of a connection.

use rustls::server::Acceptor;

/// What the first bytes of a TLS connection have told.
#[derive(Debug, PartialEq, Eq)]
pub enum Hello {
    Incomplete,
    /// The host that it asks for (RFC 6066 section 3), in small letters.
    Whole(Option<String>),
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
                return Hello::Whole(accepted.client_hello().server_name().map(str::to_ascii_lowercase));
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

    fn hello(name: &'static str) -> Vec<u8> {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let mut client = ClientConnection::new(Arc::new(config), name.try_into().unwrap()).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_hello_tells_its_host_once_it_is_whole() {
        let bytes = hello("Web.Example.com");
        assert_eq!(read(&bytes), Hello::Whole(Some("web.example.com".into())));
        for cut in 0..bytes.len() {
            assert_eq!(read(&bytes[..cut]), Hello::Incomplete, "{cut}");
        }
        assert_eq!(read(&hello("127.0.0.1")), Hello::Whole(None));
    }

    proptest! {
        #[test]
        fn nothing_else_has_a_host(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(!matches!(read(&bytes), Hello::Whole(_)));
            let record = [&[0x16, 3, 1, 1, 0x40, 1, 0, 1, 0x3c, 3, 3], &bytes[..]].concat();
            prop_assert!(!matches!(read(&record), Hello::Whole(Some(_))));
        }
    }
}
