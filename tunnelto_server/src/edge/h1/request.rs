//! A visitor's request head: read strictly once, and written as the local service gets it.
//!
//! What RFC 9112 calls an error is refused; the bytes of what is right pass on unchanged but for the fields
//! that must change.

use std::{mem::MaybeUninit, net::SocketAddr};

use bytes::{Bytes, BytesMut};
use http::Method;
use httparse::{Error as ParseError, Header, Status};
use tunnelto_lib::name::Hostname;

use super::framing::{Body, Whose, is_token};
use crate::{
    edge::forwarded::{Said, TrustedProxies, is_hop_by_hop, is_https, is_said_by_us, put_forwarded},
    error::Refusal,
    limits::MAX_FIELDS,
};

/// Everything the exchange needs of a head.
#[derive(Debug)]
pub struct RequestHead {
    pub method: Method,
    pub target: Bytes,
    pub host: Hostname,
    pub visitor: SocketAddr,
    /// The visitor has sent it by TLS, here or to a trusted proxy.
    pub is_secure: bool,
    pub version: Version,
    pub body: Body,
    /// Whether the visitor keeps its connection for another request.
    pub keeps_alive: bool,
    /// The protocol that the visitor wants to change to.
    pub upgrade: Option<Bytes>,
    pub accept: Form,
    /// Whether the visitor reads trailers (RFC 9110 section 10.1.4).
    wants_trailers: bool,
    /// The head for the local service, without Connection and without the closing empty line.
    onward: BytesMut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Http10,
    Http11,
}

/// The form in which a visitor likes to read a refusal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    #[default]
    Text,
    Html,
    Json,
}

/// What happens to the stream after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    Keep,
    Close,
}

impl RequestHead {
    /// `head` ends with its empty line; its line ends were checked when it was read.
    pub fn parse(
        head: Bytes,
        peer: SocketAddr,
        proxies: &TrustedProxies,
        is_tls: bool,
    ) -> Result<Self, Refusal> {
        // Not written before they are used: 8 KiB that most heads never need.
        let mut slots = [const { MaybeUninit::uninit() }; MAX_FIELDS];
        let mut request = httparse::Request::new(&mut []);
        match request.parse_with_uninit_headers(&head, &mut slots) {
            Ok(Status::Complete(_)) => {}
            Ok(Status::Partial) => return Err(Refusal::BadRequest("incomplete head")),
            Err(ParseError::TooManyHeaders) => return Err(Refusal::HeadTooLarge),
            Err(ParseError::Version) => return Err(version_error(&head)),
            Err(_) => return Err(Refusal::BadRequest("malformed head")),
        }
        let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version)
        else {
            return Err(Refusal::BadRequest("incomplete head"));
        };
        let method =
            Method::from_bytes(method.as_bytes()).map_err(|_| Refusal::BadRequest("malformed method"))?;
        let version = if minor == 0 { Version::Http10 } else { Version::Http11 };
        let fields = Fields::read(request.headers, version)?;
        let (host_value, onward_target) = authority(&method, target, fields.host)?;
        let host = Hostname::from_authority(host_value).map_err(|_| Refusal::InvalidHost)?;
        let body = fields.body(version)?;
        let upgrade = fields.upgrade(version, &body);

        let mut onward = BytesMut::with_capacity(head.len() + 256);
        let method_text = method.as_str();
        let slash = if onward_target.starts_with('?') { "/" } else { "" };
        for piece in [method_text, " ", slash, onward_target, " HTTP/1.1\r\n"] {
            onward.extend_from_slice(piece.as_bytes());
        }
        // First, so that services which stop reading early still have it.
        put_field(&mut onward, "Host", host_value.as_bytes());
        for field in request.headers.iter() {
            if !fields.is_dropped(field.name) {
                put_field(&mut onward, field.name, field.value);
            }
        }
        let proto = proxies.proto(peer, &fields.said, is_tls);
        put_forwarded(&mut onward, proxies, peer, &fields.said, host_value.as_bytes(), proto);

        Ok(Self {
            visitor: proxies.visitor(peer, &fields.said),
            is_secure: is_tls || is_https(proto),
            keeps_alive: fields.keeps_alive(version),
            accept: fields.accept,
            wants_trailers: fields.wants_trailers,
            target: head.slice_ref(target.as_bytes()),
            upgrade: upgrade.map(|value| head.slice_ref(value)),
            method,
            host,
            version,
            body,
            onward,
        })
    }

    /// The head for the local service.
    pub fn onward(&self, after: After) -> Bytes {
        let mut head = BytesMut::with_capacity(self.onward.len() + 64);
        head.extend_from_slice(&self.onward);
        if let Some(protocol) = &self.upgrade {
            put_field(&mut head, "Connection", b"Upgrade");
            put_field(&mut head, "Upgrade", protocol);
        } else {
            match (after, self.wants_trailers) {
                (After::Close, true) => put_field(&mut head, "Connection", b"close, TE"),
                (After::Close, false) => put_field(&mut head, "Connection", b"close"),
                (After::Keep, true) => put_field(&mut head, "Connection", b"TE"),
                (After::Keep, false) => {}
            }
            if self.wants_trailers {
                put_field(&mut head, "TE", b"trailers");
            }
        }
        head.extend_from_slice(b"\r\n");
        head.freeze()
    }

    /// Whether sending it twice does no harm (RFC 9110 section 9.2.2) and needs nothing more from the visitor.
    pub fn is_repeatable(&self) -> bool {
        self.body.is_done() && self.upgrade.is_none() && self.method.is_idempotent()
    }
}

/// What the fields of a head say together.
struct Fields<'h> {
    host: Option<&'h str>,
    length: Option<u64>,
    is_chunked: bool,
    /// Names listed in Connection.
    options: Vec<&'h str>,
    upgrade: Option<&'h [u8]>,
    accept: Form,
    wants_trailers: bool,
    said: Said<'h>,
}

impl<'h> Fields<'h> {
    fn read(headers: &[Header<'h>], version: Version) -> Result<Self, Refusal> {
        let mut fields = Fields {
            host: None,
            length: None,
            is_chunked: false,
            options: Vec::new(),
            upgrade: None,
            accept: Form::Text,
            wants_trailers: false,
            said: Said::default(),
        };
        for Header { name, value } in headers {
            if !name.bytes().all(is_token) {
                return Err(Refusal::BadRequest("malformed field name"));
            }
            // One look at the first letter spares most fields the comparisons.
            match name.as_bytes().first().map(u8::to_ascii_lowercase) {
                Some(b'h') if name.eq_ignore_ascii_case("host") => {
                    if fields.host.is_some() {
                        return Err(Refusal::InvalidHost);
                    }
                    fields.host = Some(text(value).ok_or(Refusal::InvalidHost)?);
                }
                Some(b'c') if name.eq_ignore_ascii_case("content-length") => {
                    let length =
                        content_length(value).ok_or(Refusal::BadRequest("malformed Content-Length"))?;
                    if fields.length.is_some() {
                        return Err(Refusal::BadRequest("more than one Content-Length"));
                    }
                    fields.length = Some(length);
                }
                Some(b't') if name.eq_ignore_ascii_case("transfer-encoding") => {
                    let known = value.eq_ignore_ascii_case(b"chunked");
                    if fields.is_chunked || !known || version == Version::Http10 {
                        return Err(Refusal::BadRequest("Transfer-Encoding other than one `chunked`"));
                    }
                    fields.is_chunked = true;
                }
                Some(b'c') if name.eq_ignore_ascii_case("connection") => {
                    let list = text(value).ok_or(Refusal::BadRequest("malformed Connection"))?;
                    fields.options.extend(list.split(',').map(str::trim).filter(|option| !option.is_empty()));
                }
                Some(b'u') if name.eq_ignore_ascii_case("upgrade") => fields.upgrade = Some(value),
                Some(b't') if name.eq_ignore_ascii_case("te") => {
                    fields.wants_trailers |= value.eq_ignore_ascii_case(b"trailers");
                }
                Some(b'a') if name.eq_ignore_ascii_case("accept") => fields.accept = form(value),
                _ => fields.said.hear(name, value),
            }
        }
        Ok(fields)
    }

    fn body(&self, version: Version) -> Result<Body, Refusal> {
        match (self.is_chunked, self.length) {
            (true, Some(_)) => Err(Refusal::BadRequest("both Content-Length and Transfer-Encoding")),
            (true, None) if version == Version::Http10 => Err(Refusal::BadRequest("chunked in HTTP/1.0")),
            (true, None) => Ok(Body::chunked(Whose::Visitors)),
            (false, length) => Ok(Body::Length(length.unwrap_or(0))),
        }
    }

    fn upgrade(&self, version: Version, body: &Body) -> Option<&'h [u8]> {
        // h2c would give the visitor a connection to the local service that nobody routes or records.
        let wanted = self.upgrade.filter(|protocol| !protocol.eq_ignore_ascii_case(b"h2c"));
        wanted.filter(|_| version == Version::Http11 && body.is_done() && self.has_option("upgrade"))
    }

    fn keeps_alive(&self, version: Version) -> bool {
        match version {
            Version::Http10 => self.has_option("keep-alive") && !self.has_option("close"),
            Version::Http11 => !self.has_option("close"),
        }
    }

    fn has_option(&self, option: &str) -> bool {
        self.options.iter().any(|other| other.eq_ignore_ascii_case(option))
    }

    /// Connection may not talk away what the message is made of.
    fn is_dropped(&self, name: &str) -> bool {
        if name.eq_ignore_ascii_case("host") || is_said_by_us(name) {
            return true;
        }
        let vital =
            ["content-length", "transfer-encoding"].iter().any(|other| name.eq_ignore_ascii_case(other));
        !vital && is_hop_by_hop(name, &self.options)
    }
}

/// The authority that decides the route, and the target for the local service. An absolute target overrules Host
/// (RFC 9112 section 3.2.2).
fn authority<'h>(
    method: &Method,
    target: &'h str,
    host: Option<&'h str>,
) -> Result<(&'h str, &'h str), Refusal> {
    if *method == Method::CONNECT {
        return Err(Refusal::BadRequest("this is no forward proxy"));
    }
    let host_field = |target| host.map(|host| (host, target)).ok_or(Refusal::InvalidHost);
    if target.starts_with('/') {
        return host_field(target);
    }
    if target == "*" {
        return match *method {
            Method::OPTIONS => host_field(target),
            _ => Err(Refusal::BadRequest("`*` is a target for OPTIONS only")),
        };
    }
    // The target overrules Host, but a request needs one valid Host all the same (section 3.2).
    if host.is_none_or(|host| Hostname::from_authority(host).is_err()) {
        return Err(Refusal::InvalidHost);
    }
    let has_scheme =
        |scheme: &str| target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    let Some(scheme) = ["http://", "https://"].into_iter().find(|scheme| has_scheme(scheme)) else {
        return Err(Refusal::BadRequest("malformed target"));
    };
    let rest = &target[scheme.len()..];
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let path = match &rest[end..] {
        "" if *method == Method::OPTIONS => "*",
        "" => "/",
        path => path,
    };
    Ok((&rest[..end], path))
}

fn version_error(head: &[u8]) -> Refusal {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let words: Vec<_> = line.split(|byte| *byte == b' ').collect();
    match words[..] {
        [_, _, version] if version.len() == 8 && version.starts_with(b"HTTP/") => {
            Refusal::VersionNotSupported
        }
        _ => Refusal::BadRequest("malformed request line"),
    }
}

fn content_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    text(value)?.parse().ok()
}

fn text(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value).ok()
}

/// The form for a visitor whose head cannot be understood otherwise.
pub fn form_of(head: &[u8]) -> Form {
    let lines = head.split(|byte| *byte == b'\n');
    let accepts = lines.filter_map(|line| {
        line.split_at_checked(7).filter(|(name, _)| name.eq_ignore_ascii_case(b"accept:"))
    });
    accepts.map(|(_, value)| form(value)).next().unwrap_or_default()
}

/// Good enough for a page of our own; the local service gets Accept as it is.
fn form(accept: &[u8]) -> Form {
    let accept = text(accept).unwrap_or_default();
    match (accept.find("text/html"), accept.find("application/json")) {
        (Some(html), Some(json)) if json < html => Form::Json,
        (Some(_), _) => Form::Html,
        (None, Some(_)) => Form::Json,
        (None, None) => Form::Text,
    }
}

pub fn put_field(out: &mut BytesMut, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(head: &str) -> Result<RequestHead, Refusal> {
        let peer = "192.0.2.1:7".parse().unwrap();
        RequestHead::parse(
            Bytes::copy_from_slice(head.as_bytes()),
            peer,
            &TrustedProxies::new(vec![], false),
            false,
        )
    }

    fn onward(head: &str) -> String {
        String::from_utf8(parse(head).unwrap().onward(After::Keep).to_vec()).unwrap()
    }

    const SAID: &str = "X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: a.b\r\n\
                        Forwarded: for=192.0.2.1;host=\"a.b\";proto=http\r\n\r\n";

    #[test]
    fn fields_pass_unchanged_but_for_those_of_this_hop() {
        let head = "GET /a%2Fb?q=\"x\" HTTP/1.1\r\nX-One: 1\r\nHost: a.b\r\nConnection: x-one, keep-alive\r\nKeep-Alive: 5\r\n\
                    x-CaSe:  kept \r\nX-Empty:\r\nX-Real-IP: 6.6.6.6\r\nX_Forwarded_For: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\n\r\n";
        let wanted =
            format!("GET /a%2Fb?q=\"x\" HTTP/1.1\r\nHost: a.b\r\nx-CaSe: kept\r\nX-Empty: \r\n{SAID}");
        assert_eq!(onward(head), wanted);
    }

    #[test]
    fn connection_cannot_remove_the_framing() {
        let head = "POST / HTTP/1.1\r\nHost: a.b\r\nConnection: content-length\r\nContent-Length: 5\r\n\r\n";
        assert!(onward(head).contains("Content-Length: 5\r\n"));
    }

    #[test]
    fn an_absolute_target_decides() {
        let head = "GET http://a.b/p?q HTTP/1.1\r\nHost: other\r\n\r\n";
        assert_eq!(parse(head).unwrap().host.as_str(), "a.b");
        assert_eq!(onward(head), format!("GET /p?q HTTP/1.1\r\nHost: a.b\r\n{SAID}"));
        assert!(onward("GET http://a.b HTTP/1.1\r\nHost: a.b\r\n\r\n").starts_with("GET / HTTP/1.1\r\n"));
        assert!(onward("GET http://a.b?q HTTP/1.1\r\nHost: a.b\r\n\r\n").starts_with("GET /?q HTTP/1.1\r\n"));
        assert!(
            onward("OPTIONS http://a.b HTTP/1.1\r\nHost: a.b\r\n\r\n").starts_with("OPTIONS * HTTP/1.1\r\n")
        );
        assert_eq!(parse("GET http://a.b/ HTTP/1.1\r\nHost: c d\r\n\r\n").unwrap_err(), Refusal::InvalidHost);
    }

    #[test]
    fn faulty_heads_are_refused() {
        let faulty = [
            ("GET / HTTP/1.1\r\n\r\n", Refusal::InvalidHost),
            ("GET / HTTP/1.1\r\nHost: a.b\r\nHost: a.b\r\n\r\n", Refusal::InvalidHost),
            ("GET / HTTP/1.1\r\nHost: a.b, c.d\r\n\r\n", Refusal::InvalidHost),
            ("GET / HTTP/2.0\r\nHost: a.b\r\n\r\n", Refusal::VersionNotSupported),
        ];
        for (head, refusal) in faulty {
            assert_eq!(parse(head).unwrap_err(), refusal, "{head:?}");
        }
        for fields in [
            "Content-Length: 1\r\nContent-Length: 1",
            "Content-Length: 1, 1",
            "Content-Length: +1",
            "Content-Length: 18446744073709551616",
            "Content-Length: ",
            "Content-Length: 1\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding: gzip, chunked",
            "Transfer-Encoding: identity",
            "Transfer-Encoding : chunked",
            "X: a\r\n folded",
            "X: a\0b",
        ] {
            let head = format!("POST / HTTP/1.1\r\nHost: a.b\r\n{fields}\r\n\r\n");
            assert!(matches!(parse(&head), Err(Refusal::BadRequest(_))), "{fields:?}");
        }
        for line in [
            "GET a.b HTTP/1.1",
            "GET * HTTP/1.1",
            "CONNECT a.b:1 HTTP/1.1",
            "GET / /x HTTP/1.1",
            "GET ftp://a.b/ HTTP/1.1",
        ] {
            let head = format!("{line}\r\nHost: a.b\r\n\r\n");
            assert!(matches!(parse(&head), Err(Refusal::BadRequest(_))), "{line:?}");
        }
        let old = "POST / HTTP/1.0\r\nHost: a.b\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert!(matches!(parse(old), Err(Refusal::BadRequest(_))));
    }

    #[test]
    fn keeping_the_connection_depends_on_the_version() {
        let keeps = |version, options: &str| {
            parse(&format!("GET / HTTP/{version}\r\nHost: a.b\r\n{options}\r\n")).unwrap().keeps_alive
        };
        assert!(keeps("1.1", ""));
        assert!(!keeps("1.1", "Connection: x, Close\r\n"));
        assert!(!keeps("1.0", ""));
        assert!(keeps("1.0", "Connection: Keep-Alive\r\n"));
    }

    #[test]
    fn an_upgrade_needs_both_fields() {
        let upgrade =
            |fields: &str| parse(&format!("GET / HTTP/1.1\r\nHost: a.b\r\n{fields}\r\n")).unwrap().upgrade;
        assert_eq!(
            upgrade("Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n").unwrap(),
            "websocket"
        );
        assert_eq!(upgrade("Upgrade: websocket\r\n"), None);
        assert_eq!(upgrade("Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n"), None);
        let head = "GET / HTTP/1.1\r\nHost: a.b\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
        assert!(onward(head).ends_with("Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"));
    }
}
