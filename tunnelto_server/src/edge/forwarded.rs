//! Which header fields pass, and what the local service is told about the visitor.

use std::net::{IpAddr, SocketAddr};

use bytes::BytesMut;
use ipnet::IpNet;

/// Who connected, and whose word about the real visitor counts.
#[derive(Clone, Debug)]
pub struct TrustedProxies {
    networks: Vec<IpNet>,
    /// They are Fly.io's, whose Fly-Client-IP says more than the addresses that they list.
    are_fly: bool,
}

/// What an untrusted visitor may not say about itself; we say it (RFC 7239 and its forerunners).
const SAID_BY_US: [&str; 7] = [
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-real-ip",
    "fly-client-ip",
    "forwarded",
];

/// Fields that concern one connection only (RFC 9110 section 7.6.1). Transfer-Encoding is one of them and is
/// handled with the framing.
const HOP_BY_HOP: [&str; 5] = ["connection", "keep-alive", "proxy-connection", "upgrade", "te"];

/// What the visitor said of itself in a head, as far as it counts.
#[derive(Debug, Default)]
pub struct Said<'h> {
    pub forwarded_for: Vec<&'h [u8]>,
    pub proto: Option<&'h [u8]>,
    pub host: Option<&'h [u8]>,
    pub fly_client: Option<&'h [u8]>,
}

impl TrustedProxies {
    pub fn new(networks: Vec<IpNet>, are_fly: bool) -> Self {
        Self { networks, are_fly }
    }

    pub fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.iter().any(|network| network.contains(&address))
    }

    /// The scheme that the visitor sees.
    pub fn proto<'h>(&self, peer: SocketAddr, said: &Said<'h>, is_tls: bool) -> &'h [u8] {
        let seen: &[u8] = if is_tls { b"https" } else { b"http" };
        said.proto.filter(|_| self.trusts(peer.ip())).unwrap_or(seen)
    }

    /// The visitor itself: the right-most address that is no trusted proxy's, or whom Fly.io's proxies name.
    pub fn visitor(&self, peer: SocketAddr, said: &Said<'_>) -> SocketAddr {
        if !self.trusts(peer.ip()) {
            return peer;
        }
        if self.are_fly
            && let Some(visitor) = said.fly_client.and_then(address)
        {
            return (visitor, 0).into();
        }
        let chain = said.forwarded_for.iter().flat_map(|value| value.split(|byte| *byte == b','));
        let mut visitor = peer;
        for hop in chain.collect::<Vec<_>>().into_iter().rev() {
            let Some(address) = address(hop) else { return visitor };
            visitor = (address, 0).into();
            if !self.trusts(address) {
                return visitor;
            }
        }
        visitor
    }
}

fn address(text: &[u8]) -> Option<IpAddr> {
    let address: IpAddr = std::str::from_utf8(text).ok()?.trim().parse().ok()?;
    Some(address.to_canonical())
}

/// Whether X-Forwarded-Proto says that the visitor speaks TLS with the first proxy.
pub fn is_https(proto: &[u8]) -> bool {
    let first = proto.split(|byte| *byte == b',').next().unwrap_or_default();
    first.trim_ascii().eq_ignore_ascii_case(b"https")
}

/// Whether a field is left out of what passes on. `options` are the names that Connection lists.
pub fn is_hop_by_hop(name: &str, options: &[&str]) -> bool {
    HOP_BY_HOP.iter().chain(options).any(|other| name.eq_ignore_ascii_case(other))
}

pub fn is_said_by_us(name: &str) -> bool {
    // Most names end the comparison at their first letter.
    matches!(name.as_bytes().first(), Some(b'x' | b'X' | b'f' | b'F'))
        && SAID_BY_US.iter().any(|other| is_same_variable(name, other))
}

/// Services of CGI's kind make one variable of `X-Real-IP` and `X_Real_IP`.
fn is_same_variable(name: &str, other: &str) -> bool {
    let fold = |byte: u8| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    name.len() == other.len() && name.bytes().map(fold).eq(other.bytes())
}

impl<'h> Said<'h> {
    pub fn hear(&mut self, name: &str, value: &'h [u8]) {
        if name.eq_ignore_ascii_case("x-forwarded-for") {
            self.forwarded_for.push(value);
        } else if name.eq_ignore_ascii_case("x-forwarded-proto") {
            self.proto = Some(value);
        } else if name.eq_ignore_ascii_case("x-forwarded-host") {
            self.host = Some(value);
        } else if name.eq_ignore_ascii_case("fly-client-ip") {
            self.fly_client = Some(value);
        }
    }
}

/// Writes the fields that tell the local service who asked for what. A trusted proxy's words are kept and added to.
pub fn put_forwarded(
    out: &mut BytesMut,
    proxies: &TrustedProxies,
    peer: SocketAddr,
    said: &Said<'_>,
    host: &[u8],
    proto: &[u8],
) {
    let peer_ip = peer.ip().to_canonical();
    let trusted = proxies.trusts(peer_ip);
    out.extend_from_slice(b"X-Forwarded-For: ");
    if trusted {
        for value in &said.forwarded_for {
            out.extend_from_slice(value);
            out.extend_from_slice(b", ");
        }
    }
    put_address(out, peer_ip);
    out.extend_from_slice(b"\r\nX-Forwarded-Proto: ");
    out.extend_from_slice(proto);
    out.extend_from_slice(b"\r\nX-Forwarded-Host: ");
    out.extend_from_slice(said.host.filter(|_| trusted).unwrap_or(host));
    out.extend_from_slice(b"\r\nForwarded: for=");
    match proxies.visitor(peer, said).ip().to_canonical() {
        visitor @ IpAddr::V4(_) => put_address(out, visitor),
        // Colons need quotes (RFC 7239 section 6).
        visitor @ IpAddr::V6(_) => {
            out.extend_from_slice(b"\"[");
            put_address(out, visitor);
            out.extend_from_slice(b"]\"");
        }
    }
    out.extend_from_slice(b";host=\"");
    out.extend_from_slice(host);
    out.extend_from_slice(b"\";proto=");
    out.extend_from_slice(if proto == b"https" { b"https" } else { b"http" });
    out.extend_from_slice(b"\r\n");
}

/// Twice in every request, where the formatting machinery takes as long as parsing the head.
fn put_address(out: &mut BytesMut, address: IpAddr) {
    let IpAddr::V4(address) = address else { return out.extend_from_slice(address.to_string().as_bytes()) };
    let mut text = [b'.'; "255.255.255.255".len()];
    let mut end = 0;
    for octet in address.octets() {
        let digits = [octet / 100, octet / 10 % 10, octet % 10];
        let leading_zeros = if octet < 10 { 2 } else { usize::from(octet < 100) };
        for digit in &digits[leading_zeros..] {
            text[end] = b'0' + digit;
            end += 1;
        }
        end += 1;
    }
    out.extend_from_slice(&text[..end - 1]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(proxies: &[&str], peer: &str, said: &Said<'_>) -> String {
        let proxies =
            TrustedProxies::new(proxies.iter().map(|network| network.parse().unwrap()).collect(), false);
        let mut out = BytesMut::new();
        let peer = peer.parse().unwrap();
        put_forwarded(&mut out, &proxies, peer, said, b"web.localhost", proxies.proto(peer, said, false));
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn addresses_are_written_as_they_display() {
        let spans = (0..=255).map(|octet| IpAddr::from([octet, 0, 255 - octet, 10]));
        for address in spans.chain(["::".parse().unwrap(), "2001:db8::1".parse().unwrap()]) {
            let mut out = BytesMut::new();
            put_address(&mut out, address);
            assert_eq!(out, address.to_string());
        }
    }

    #[test]
    fn an_untrusted_visitor_says_nothing_of_itself() {
        let said = Said {
            forwarded_for: vec![b"203.0.113.9"],
            proto: Some(b"https"),
            host: Some(b"evil"),
            fly_client: Some(b"203.0.113.9"),
        };
        assert_eq!(
            put(&[], "192.0.2.1:1234", &said),
            "X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: web.localhost\r\n\
             Forwarded: for=192.0.2.1;host=\"web.localhost\";proto=http\r\n"
        );
    }

    #[test]
    fn a_trusted_proxy_is_believed_and_added() {
        let said = Said {
            forwarded_for: vec![b"203.0.113.9"],
            proto: Some(b"https"),
            host: Some(b"a.example"),
            // Visitors may say that to any proxy but Fly.io's.
            fly_client: Some(b"203.0.113.1"),
        };
        assert_eq!(
            put(&["192.0.2.0/24"], "192.0.2.1:1234", &said),
            "X-Forwarded-For: 203.0.113.9, 192.0.2.1\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: a.example\r\n\
             Forwarded: for=203.0.113.9;host=\"web.localhost\";proto=https\r\n"
        );
    }

    #[test]
    fn proxies_say_it_in_many_ways_that_the_visitor_speaks_tls() {
        let proxies = TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap()], false);
        let is_secure = |peer: &str, proto: &'static [u8], is_tls| {
            let said = Said { proto: Some(proto), ..Said::default() };
            is_tls || is_https(proxies.proto(peer.parse().unwrap(), &said, is_tls))
        };
        for proto in [&b"https"[..], b"HTTPS", b"https, http", b" https"] {
            assert!(is_secure("10.0.0.1:1", proto, false));
            assert!(!is_secure("9.9.9.9:1", proto, false));
        }
        assert!(!is_secure("10.0.0.1:1", b"http, https", false));
        assert!(is_secure("10.0.0.1:1", b"http", true));
    }

    #[test]
    fn the_visitor_is_the_right_most_untrusted_address() {
        let proxies = TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap()], false);
        let visitor = |peer: &str, chain: &[u8]| {
            let said = Said { forwarded_for: vec![chain], ..Said::default() };
            proxies.visitor(peer.parse().unwrap(), &said).ip().to_string()
        };
        assert_eq!(visitor("10.0.0.1:1", b"1.1.1.1, 2.2.2.2, 10.0.0.2"), "2.2.2.2");
        assert_eq!(visitor("[::ffff:10.0.0.1]:1", b"2001:db8::1"), "2001:db8::1");
        assert_eq!(visitor("10.0.0.1:1", b"1.1.1.1, junk"), "10.0.0.1");
        assert_eq!(visitor("9.9.9.9:1", b"1.1.1.1"), "9.9.9.9");
    }

    #[test]
    fn fly_names_its_visitor() {
        let visitor = |are_fly: bool, peer: &str, fly_client: &'static [u8]| {
            let proxies = TrustedProxies::new(vec!["172.16.0.0/12".parse().unwrap()], are_fly);
            let fly_client = Some(fly_client);
            // The edge that has taken the visitor lists itself.
            let said =
                Said { forwarded_for: vec![b"203.0.113.9, 66.241.125.1"], fly_client, ..Said::default() };
            proxies.visitor(peer.parse().unwrap(), &said).ip().to_string()
        };
        assert_eq!(visitor(true, "172.16.0.1:1", b"203.0.113.9"), "203.0.113.9");
        assert_eq!(visitor(true, "172.16.0.1:1", b"junk"), "66.241.125.1");
        assert_eq!(visitor(true, "9.9.9.9:1", b"203.0.113.9"), "9.9.9.9");
        assert_eq!(visitor(false, "172.16.0.1:1", b"203.0.113.9"), "66.241.125.1");
    }
}
