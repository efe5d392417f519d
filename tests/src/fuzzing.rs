//! What must hold for any bytes at all. The fuzz targets call these for as long as one likes; `make test` tries a few.

use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use http::Method;
use tunnelto_lib::{
    hello::{ClientHello, ServerHello},
    name::Label,
    packet::Packet,
    ws::{Decoder, Message, Role},
};
use tunnelto_server::{
    edge::{
        announced,
        forwarded::TrustedProxies,
        h1::{
            framing::{Body, Whose},
            request::{After, RequestHead, Version},
            response::ResponseHead,
        },
    },
    network::{
        NameAnswer,
        hop::{Bringing, Content, Kind, Visit},
    },
    sign::MasterKeys,
};

/// How a PROXY header of version 2 begins.
const PROXY_PREFIX: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Whatever comes over a wormhole: frames, packets, hellos. Nothing panics, and what decodes encodes to the same.
pub fn wire(data: &[u8]) {
    if let Ok(packet) = Packet::decode(Bytes::copy_from_slice(data)) {
        assert_eq!(Packet::decode(packet.encode()), Ok(packet));
    }
    // Whether they are hellos does not matter here.
    let _ = serde_json::from_slice::<ClientHello>(data);
    let _ = serde_json::from_slice::<ServerHello>(data);
    for role in [Role::Server, Role::Client] {
        let mut decoder = Decoder::new(role);
        let mut buffer = BytesMut::from(data);
        while let Ok(Some(message)) = decoder.decode(&mut buffer) {
            if let Message::Binary(bytes) = message {
                let _ = Packet::decode(bytes);
            }
        }
    }
}

/// Whatever a visitor or a local service sends: heads and chunked bodies. Nothing panics; a head that passes on is a valid
/// head with one valid framing; a body is the same in one piece and byte by byte.
pub fn http1(data: &[u8]) {
    let peer = ([192, 0, 2, 1], 7).into();
    let proxies = TrustedProxies::new(Vec::new(), false);
    if let Ok(head) = RequestHead::parse(Bytes::copy_from_slice(data), peer, &proxies, false) {
        let onward = head.onward(After::Keep);
        let again =
            RequestHead::parse(onward.clone(), peer, &proxies, false).expect("what passes on is valid");
        assert_eq!((again.body, again.host), (head.body, head.host));
        let mut lines = onward.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        assert!(lines.all(|line| line.ends_with(b"\r")), "bare line ends");
    }
    let mut answer = Bytes::copy_from_slice(data);
    let _ = ResponseHead::parse(&mut answer, &Method::GET, Version::Http11);

    for whose in [Whose::Visitors, Whose::Services] {
        let taken = Body::chunked(whose).take(data);
        let mut pieces = Body::chunked(whose);
        let one_by_one =
            data.iter().try_fold(0, |total, byte| pieces.take(&[*byte]).map(|count| total + count));
        assert_eq!(taken, one_by_one);
    }
}

/// Whatever comes to PORT that begins like a visitor whom another instance brings. Nothing panics, nobody is believed
/// without the cluster's signature, and a header is the same however it is cut.
pub fn hop(data: &[u8]) {
    let keys = MasterKeys::new([7; 32], None);
    let now = SystemTime::now();
    let headed = [PROXY_PREFIX, data].concat();
    for bytes in [data, &headed] {
        assert!(
            !matches!(Bringing::read(bytes, &keys, "me", now), Ok(Some(_))),
            "believed without a signature"
        );
        if let Ok(Some(announced)) = announced::read(bytes) {
            assert!(announced.size <= bytes.len() && announced::begins(bytes) == Some(true));
        }
    }
    let _ = serde_json::from_slice::<NameAnswer>(data);
    // Ours, with anything behind it.
    let name = Label::parse("web").expect("a name");
    let bringing = Bringing::new(
        &Visit {
            kind: Kind::Pipe,
            name: &name,
            visitor: ([192, 0, 2, 1], 7).into(),
            content: Content::Plain,
        },
        "other",
        "me",
    );
    let mut bytes = bringing.header(&keys, ([192, 0, 2, 2], 80).into()).expect("a header");
    let size = bytes.len();
    bytes.extend_from_slice(data);
    assert_eq!(Bringing::read(&bytes, &keys, "me", now), Ok(Some((bringing, size))));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    /// Bytes that look like heads often enough to get somewhere.
    fn head_like() -> impl Strategy<Value = Vec<u8>> {
        let word = prop_oneof![
            Just("GET / HTTP/1.1\r\n".to_owned()),
            Just("POST http://a.b/x HTTP/1.1\r\n".to_owned()),
            Just("Host: a.b\r\n".to_owned()),
            Just("Content-Length: 5\r\n".to_owned()),
            Just("Transfer-Encoding: chunked\r\n".to_owned()),
            Just("Connection: upgrade, x\r\nUpgrade: y\r\n".to_owned()),
            Just("5\r\nhello\r\n0\r\nX: y\r\n".to_owned()),
            Just("\r\n".to_owned()),
            "[ -~\r\n\t\u{0}]{0,12}",
        ];
        proptest::collection::vec(word, 0..12).prop_map(|words| words.concat().into_bytes())
    }

    proptest! {
        #[test]
        fn any_bytes(data in proptest::collection::vec(any::<u8>(), 0..500)) {
            super::wire(&data);
            super::http1(&data);
            super::hop(&data);
        }

        #[test]
        fn heads_and_bodies(data in head_like()) {
            super::http1(&data);
        }
    }
}
