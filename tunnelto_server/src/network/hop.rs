//! The first bytes of a visitor's way to another instance: a PROXY protocol header, version 2, with the visitor's
//! address and a signed part of ours; the answer is one byte.

use std::{
    net::{IpAddr, SocketAddr},
    time::SystemTime,
};

use ppp::v2::{Addresses, Builder, Command, Header, ParseError, Protocol, Version};
use serde::{Deserialize, Serialize};
use tunnelto_lib::name::Label;

use super::question::{check_time, milliseconds};
use crate::sign::{MasterKeys, Purpose};

/// The answer: the tunnel is here, and all that follows is the visitor's.
pub const MINE: u8 = b'+';
/// It is not; the connection closes.
pub const NOT_MINE: u8 = b'-';

/// Ours among the types that the PROXY protocol leaves to its users (section 2.2.7).
pub const TLV: u8 = 0xE7;

/// What is brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A visitor's whole connection, from its first request on.
    Pipe,
    /// One request.
    Request,
}

/// A visitor on its way to another instance.
#[derive(Clone, Copy, Debug)]
pub struct Visit<'v> {
    pub kind: Kind,
    pub name: &'v Label,
    pub visitor: SocketAddr,
    pub content: Content,
}

/// What a visitor's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Plain,
    /// They were TLS, which has ended.
    Decrypted,
    /// TLS as it came, for the other instance's TLS_PORT.
    Tls,
}

/// What one instance tells another of a visitor that it brings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bringing {
    pub kind: Kind,
    /// The tunnel that is asked for.
    pub name: Label,
    /// The instance that brings it, and the one it is brought to.
    pub from: String,
    pub to: String,
    /// Milliseconds since 1970.
    at: u64,
    /// Signed along with the rest.
    pub visitor: SocketAddr,
    /// The visitor's TLS has ended on the instance that brings it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_tls: bool,
}

/// Why a PROXY header is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadHop {
    #[error("malformed PROXY header: {0}")]
    Malformed(String),
    #[error("PROXY header without another instance's signature")]
    Unsigned,
    #[error("meant for instance {0}")]
    OtherInstance(String),
    #[error(transparent)]
    Stale(#[from] super::question::Unsigned),
}

impl Bringing {
    pub fn new(visit: &Visit<'_>, from: &str, to: &str) -> Self {
        let Visit { kind, name, visitor, content } = *visit;
        Self {
            kind,
            name: name.clone(),
            from: from.into(),
            to: to.into(),
            at: milliseconds(SystemTime::now()),
            visitor,
            is_tls: content == Content::Decrypted,
        }
    }

    /// `destination` is where the instance takes visitors.
    pub fn header(&self, keys: &MasterKeys, destination: SocketAddr) -> std::io::Result<Vec<u8>> {
        let addresses = one_family(self.visitor, destination);
        Builder::with_addresses(Version::Two | Command::Proxy, Protocol::Stream, addresses)
            .write_tlv(TLV, keys.seal(Purpose::Hop, self).as_bytes())?
            .build()
    }

    /// Reads a header off the front of `bytes`: what it says, and its size. `None` while it is incomplete.
    pub fn read(
        bytes: &[u8],
        keys: &MasterKeys,
        me: &str,
        now: SystemTime,
    ) -> Result<Option<(Self, usize)>, BadHop> {
        let header = match Header::try_from(bytes) {
            Ok(header) => header,
            Err(ParseError::Incomplete(_) | ParseError::Partial(..)) => return Ok(None),
            Err(error) => return Err(BadHop::Malformed(error.to_string())),
        };
        let ours =
            header.tlvs().filter_map(Result::ok).find(|tlv| tlv.kind == TLV).ok_or(BadHop::Unsigned)?;
        let sealed = std::str::from_utf8(&ours.value).map_err(|_| BadHop::Unsigned)?;
        let bringing: Self = keys.open(Purpose::Hop, sealed).map_err(|_| BadHop::Unsigned)?;
        check_time(bringing.at, now)?;
        if bringing.to != me {
            return Err(BadHop::OtherInstance(bringing.to));
        }
        Ok(Some((bringing, header.len())))
    }
}

/// A header has addresses of one family.
fn one_family(source: SocketAddr, destination: SocketAddr) -> Addresses {
    let mapped = |at: SocketAddr| match at.ip() {
        IpAddr::V4(ip) => (ip.to_ipv6_mapped(), at.port()).into(),
        IpAddr::V6(_) => at,
    };
    match source.is_ipv4() == destination.is_ipv4() {
        true => (source, destination).into(),
        false => (mapped(source), mapped(destination)).into(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ppp::v2::PROTOCOL_PREFIX;
    use proptest::prelude::*;

    use super::*;
    use crate::limits::{MAX_HOP_HEAD, SIGNED_LIFE};

    fn keys(byte: u8) -> MasterKeys {
        MasterKeys::new([byte; 32], None)
    }

    fn bringing(visitor: &str) -> Bringing {
        let name = Label::parse("web").unwrap();
        let visitor = visitor.parse().unwrap();
        Bringing::new(&Visit { kind: Kind::Pipe, name: &name, visitor, content: Content::Plain }, "a", "b")
    }

    #[test]
    fn what_is_written_is_read() {
        for (visitor, door) in
            [("1.2.3.4:5", "10.0.0.1:80"), ("[fd::1]:5", "10.0.0.1:80"), ("[fd::1]:5", "[fd::2]:80")]
        {
            let bringing = bringing(visitor);
            let mut bytes = bringing.header(&keys(1), door.parse().unwrap()).unwrap();
            assert!(bytes.len() < MAX_HOP_HEAD);
            let size = bytes.len();
            bytes.extend_from_slice(b"GET / HTTP/1.1\r\n");
            let read = Bringing::read(&bytes, &keys(1), "b", SystemTime::now());
            assert_eq!(read, Ok(Some((bringing, size))));
            for cut in 0..size {
                assert_eq!(
                    Bringing::read(&bytes[..cut], &keys(1), "b", SystemTime::now()),
                    Ok(None),
                    "{cut}"
                );
            }
        }
    }

    #[test]
    fn nobody_else_is_believed() {
        let bytes = bringing("1.2.3.4:5").header(&keys(1), "10.0.0.1:80".parse().unwrap()).unwrap();
        let read = |keys: &MasterKeys, me: &str, now| Bringing::read(&bytes, keys, me, now).unwrap_err();
        let now = SystemTime::now();
        assert_eq!(read(&keys(2), "b", now), BadHop::Unsigned);
        assert_eq!(read(&keys(1), "c", now), BadHop::OtherInstance("b".into()));
        assert!(matches!(read(&keys(1), "b", now + SIGNED_LIFE + Duration::from_secs(1)), BadHop::Stale(_)));
        let plain = Builder::with_addresses(
            Version::Two | Command::Proxy,
            Protocol::Stream,
            one_family("1.2.3.4:5".parse().unwrap(), "10.0.0.1:80".parse().unwrap()),
        );
        let plain = plain.build().unwrap();
        assert_eq!(Bringing::read(&plain, &keys(1), "b", now), Err(BadHop::Unsigned));
    }

    proptest! {
        #[test]
        fn nothing_else_is_read(mut tail in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut bytes = PROTOCOL_PREFIX.to_vec();
            bytes.append(&mut tail);
            let read = Bringing::read(&bytes, &keys(1), "b", SystemTime::now());
            prop_assert!(!matches!(read, Ok(Some(_))));
        }
    }
}
