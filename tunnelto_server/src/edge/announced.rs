//! What stands before a visitor's own bytes when somebody brings it: a PROXY protocol header, by a proxy in front (version 1 or
//! 2) or by another instance (version 2 with a part of ours).

use std::net::SocketAddr;

use ppp::{
    v1::{self, PROTOCOL_PREFIX as PREFIX_1},
    v2::{self, Command, PROTOCOL_PREFIX as PREFIX_2},
};

use crate::network::hop;

/// The longest header of version 1 (section 2.1).
const MAX_VERSION_1: usize = 107;

/// The part that tells of the visitor's TLS, and its bit for there being any (section 2.2.6).
const SSL: u8 = 0x20;
const CLIENT_SSL: u8 = 1;

/// One whole header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announced {
    /// `None`: the proxy itself speaks, such as to see whether the server is well.
    pub visitor: Option<SocketAddr>,
    /// The visitor's TLS has ended at the proxy.
    pub is_tls: bool,
    /// It has a part of ours: another instance's word.
    pub is_ours: bool,
    /// In bytes.
    pub size: usize,
}

/// Whether these bytes begin with a header; `None` while that is open.
pub fn begins(bytes: &[u8]) -> Option<bool> {
    let prefixes = [PREFIX_2, b"PROXY "];
    if prefixes.iter().any(|prefix| bytes.starts_with(prefix)) {
        return Some(true);
    }
    if prefixes.iter().any(|prefix| prefix.starts_with(bytes)) { None } else { Some(false) }
}

/// `None` while it is incomplete; an error says what is wrong with it.
pub fn read(bytes: &[u8]) -> Result<Option<Announced>, String> {
    if bytes.starts_with(PREFIX_1.as_bytes()) {
        return version_1(bytes);
    }
    let header = match v2::Header::try_from(bytes) {
        Ok(header) => header,
        Err(v2::ParseError::Incomplete(_) | v2::ParseError::Partial(..)) => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let visitor = match header.addresses {
        _ if header.command == Command::Local => None,
        v2::Addresses::IPv4(at) => Some((at.source_address, at.source_port).into()),
        v2::Addresses::IPv6(at) => Some((at.source_address, at.source_port).into()),
        v2::Addresses::Unspecified | v2::Addresses::Unix(_) => None,
    };
    let mut announced = Announced { visitor, is_tls: false, is_ours: false, size: header.len() };
    for part in header.tlvs() {
        let part = part.map_err(|error| error.to_string())?;
        announced.is_ours |= part.kind == hop::TLV;
        announced.is_tls |= part.kind == SSL && part.value.first().is_some_and(|bits| bits & CLIENT_SSL != 0);
    }
    Ok(Some(announced))
}

fn version_1(bytes: &[u8]) -> Result<Option<Announced>, String> {
    let Some(end) = bytes.iter().take(MAX_VERSION_1).position(|byte| *byte == b'\n') else {
        let is_open = bytes.len() < MAX_VERSION_1;
        return if is_open { Ok(None) } else { Err("it is longer than 107 bytes".into()) };
    };
    let header = v1::Header::try_from(&bytes[..=end]).map_err(|error| error.to_string())?;
    let visitor = match header.addresses {
        v1::Addresses::Tcp4(at) => Some((at.source_address, at.source_port).into()),
        v1::Addresses::Tcp6(at) => Some((at.source_address, at.source_port).into()),
        v1::Addresses::Unknown => None,
    };
    Ok(Some(Announced { visitor, is_tls: false, is_ours: false, size: end + 1 }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn announced(visitor: Option<&str>, size: usize) -> Result<Option<Announced>, String> {
        let visitor = visitor.map(|at| at.parse().unwrap());
        Ok(Some(Announced { visitor, is_tls: false, is_ours: false, size }))
    }

    /// An unsigned header of version 2 with these addresses and parts.
    fn version_2(command: u8, rest: &[u8]) -> Vec<u8> {
        let length = (rest.len() as u16).to_be_bytes();
        [PREFIX_2, &[0x20 | command, 0x11], &length, rest].concat()
    }

    const ADDRESSES: [u8; 12] = [192, 0, 2, 1, 10, 0, 0, 1, 0x12, 0x34, 0, 80];

    #[test]
    fn headers_of_both_versions_are_read_once_they_are_whole() {
        let lines = [
            ("PROXY TCP4 192.0.2.1 10.0.0.1 4660 80\r\n", Some("192.0.2.1:4660")),
            ("PROXY TCP6 2001:db8::1 2001:db8::2 1 80\r\n", Some("[2001:db8::1]:1")),
            ("PROXY UNKNOWN\r\n", None),
        ];
        let binary = [
            (version_2(1, &ADDRESSES), Some("192.0.2.1:4660")),
            (version_2(1, &[&ADDRESSES[..], &[0xEA, 0, 1, 7]].concat()), Some("192.0.2.1:4660")),
            (version_2(0, &ADDRESSES), None),
        ];
        let lines = lines.map(|(line, visitor)| (line.as_bytes().to_vec(), visitor));
        for (header, visitor) in lines.into_iter().chain(binary) {
            let with_more = [&header[..], b"GET / HTTP/1.1\r\n"].concat();
            assert_eq!(read(&with_more), announced(visitor, header.len()));
            for cut in 0..header.len() {
                assert_ne!(begins(&header[..cut]), Some(false), "{cut}");
                if begins(&header[..cut]) == Some(true) {
                    assert_eq!(read(&header[..cut]), Ok(None), "{cut}");
                }
            }
        }
    }

    #[test]
    fn parts_tell_of_tls_and_of_us() {
        let with = |part: &[u8]| version_2(1, &[&ADDRESSES[..], part].concat());
        let tls = read(&with(&[SSL, 0, 5, 1, 0, 0, 0, 0])).unwrap().unwrap();
        assert!(tls.is_tls && !tls.is_ours);
        assert!(!read(&with(&[SSL, 0, 5, 0, 0, 0, 0, 0])).unwrap().unwrap().is_tls);
        assert!(read(&with(&[hop::TLV, 0, 1, 7])).unwrap().unwrap().is_ours);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for wrong in [
            "PROXY TCP4 192.0.2.256 10.0.0.1 1 80\r\n",
            "PROXY TCP4 192.0.2.1 10.0.0.1 1\r\n",
            "PROXY TCP4 192.0.2.1 10.0.0.1 1 80\n",
            "PROXY TCP4 192.0.2.1 10.0.0.1 1 99999\r\n",
            &format!("PROXY {}", "x".repeat(200)),
        ] {
            assert!(read(wrong.as_bytes()).is_err(), "{wrong}");
        }
        for other in ["POST / HTTP/1.1", "PROPFIND /", "GET /", "PROXYING "] {
            assert_eq!(begins(other.as_bytes()), Some(false), "{other}");
        }
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic_or_read_past_its_end(
            tail in proptest::collection::vec(any::<u8>(), 0..300),
            binary: bool,
        ) {
            let bytes = [if binary { PREFIX_2 } else { b"PROXY " }, &tail].concat();
            if let Ok(Some(announced)) = read(&bytes) {
                prop_assert!(announced.size <= bytes.len());
            }
        }
    }
}
