//! Whatever a visitor or a local service sends: heads and chunked bodies. Nothing panics; a head that is passed on
//! is a valid head with one valid framing; a body is the same in one piece and byte by byte.
#![no_main]

use bytes::Bytes;
use http::Method;
use libfuzzer_sys::fuzz_target;
use tunnelto_server::edge::{
    forwarded::TrustedProxies,
    h1::{
        framing::Body,
        request::{After, RequestHead, Version},
        response::ResponseHead,
    },
};

fuzz_target!(|data: &[u8]| {
    let peer = "192.0.2.1:7".parse().unwrap();
    let proxies = TrustedProxies::new(Vec::new());
    if let Ok(head) = RequestHead::parse(Bytes::copy_from_slice(data), peer, &proxies) {
        let onward = head.onward(After::Keep);
        let again = RequestHead::parse(onward.clone(), peer, &proxies).expect("what passes on is valid");
        assert_eq!((again.body, again.host), (head.body, head.host));
        let lines = onward.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        assert!(lines.clone().all(|line| line.ends_with(b"\r")), "bare line ends");
    }
    let mut answer = Bytes::copy_from_slice(data);
    let _ = ResponseHead::parse(&mut answer, &Method::GET, Version::Http11);

    let mut whole = Body::chunked();
    let taken = whole.take(data);
    let mut pieces = Body::chunked();
    let one_by_one = data.iter().try_fold(0, |total, byte| pieces.take(&[*byte]).map(|count| total + count));
    assert_eq!(taken, one_by_one);
});
