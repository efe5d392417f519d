//! The local service's answer head: read, and written as the visitor gets it.

use std::{mem::MaybeUninit, time::Duration};

use bytes::{Buf, Bytes, BytesMut};
use http::Method;
use httparse::{Header, Status};

use super::{
    framing::{Body, Whose},
    request::{Version, put_field},
};
use crate::{edge::forwarded::is_hop_by_hop, limits::MAX_FIELDS};

/// Everything the exchange needs of an answer's head.
#[derive(Debug)]
pub struct ResponseHead {
    pub status: u16,
    pub body: Body,
    /// Whether the local service keeps its connection.
    pub keeps_alive: bool,
    /// For how long it says it does.
    pub keep_alive: Option<Duration>,
    pub is_event_stream: bool,
    /// Status line and fields, without Connection and without the closing empty line.
    onward: BytesMut,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed answer head")]
pub struct BadAnswer;

impl ResponseHead {
    /// Takes a head off the front of `bytes`; `None` while it is incomplete.
    pub fn parse(bytes: &mut Bytes, method: &Method, visitor: Version) -> Result<Option<Self>, BadAnswer> {
        let mut slots = [const { MaybeUninit::uninit() }; MAX_FIELDS];
        let mut response = httparse::Response::new(&mut []);
        let parser = httparse::ParserConfig::default();
        let size = match parser.parse_response_with_uninit_headers(&mut response, bytes, &mut slots) {
            Ok(Status::Complete(size)) => size,
            Ok(Status::Partial) => return Ok(None),
            Err(_) => return Err(BadAnswer),
        };
        let (Some(status), Some(minor)) = (response.code, response.version) else { return Err(BadAnswer) };
        let fields = Fields::read(response.headers)?;
        let body = fields.body(status, method)?;
        // A visitor of HTTP/1.0 gets the content of the chunks, ended by the close.
        let unchunked = visitor == Version::Http10;

        let mut onward = BytesMut::with_capacity(size + 64);
        put_status_line(&mut onward, status, response.reason.unwrap_or_default());
        let mut has_length = false;
        for field in response.headers.iter() {
            // The same length twice is one.
            let is_length = field.name.eq_ignore_ascii_case("content-length");
            let is_dropped = (is_length && has_length) || fields.is_dropped(field.name, status, unchunked);
            if !is_dropped {
                put_field(&mut onward, field.name, field.value);
            }
            has_length |= is_length;
        }
        let keeps_alive = match minor {
            0 => fields.has_option("keep-alive"),
            _ => !fields.has_option("close"),
        } && !(fields.is_chunked && fields.length.is_some());
        let head = Self {
            status,
            body,
            keeps_alive,
            keep_alive: fields.keep_alive,
            is_event_stream: fields.is_event_stream,
            onward,
        };
        bytes.advance(size);
        Ok(Some(head))
    }

    /// The head for the visitor; `connection` is the value of Connection, if it is needed.
    pub fn into_onward(mut self, connection: Option<&str>) -> Bytes {
        if let Some(value) = connection {
            put_field(&mut self.onward, "Connection", value.as_bytes());
        }
        self.onward.extend_from_slice(b"\r\n");
        self.onward.freeze()
    }

    /// More heads follow (RFC 9110 section 15.2).
    pub fn is_interim(&self) -> bool {
        (100..200).contains(&self.status) && self.status != 101
    }

    /// Status line and fields as they pass on.
    pub fn onward_fields(&self) -> &[u8] {
        &self.onward
    }
}

struct Fields<'h> {
    length: Option<u64>,
    is_chunked: bool,
    options: Vec<&'h str>,
    keep_alive: Option<Duration>,
    is_event_stream: bool,
}

impl<'h> Fields<'h> {
    fn read(headers: &[Header<'h>]) -> Result<Self, BadAnswer> {
        let mut fields = Fields {
            length: None,
            is_chunked: false,
            options: Vec::new(),
            keep_alive: None,
            is_event_stream: false,
        };
        for Header { name, value } in headers {
            let text = || std::str::from_utf8(value).map_err(|_| BadAnswer);
            match name.as_bytes().first().map(u8::to_ascii_lowercase) {
                Some(b'c') if name.eq_ignore_ascii_case("content-length") => {
                    let length = text()?.parse().map_err(|_| BadAnswer)?;
                    if fields.length.is_some_and(|other| other != length) || value.starts_with(b"+") {
                        return Err(BadAnswer);
                    }
                    fields.length = Some(length);
                }
                Some(b't') if name.eq_ignore_ascii_case("transfer-encoding") => {
                    if fields.is_chunked || !value.eq_ignore_ascii_case(b"chunked") {
                        return Err(BadAnswer);
                    }
                    fields.is_chunked = true;
                }
                Some(b'c') if name.eq_ignore_ascii_case("connection") => {
                    fields.options.extend(text()?.split(',').map(str::trim));
                }
                Some(b'c') if name.eq_ignore_ascii_case("content-type") => {
                    fields.is_event_stream = value.to_ascii_lowercase().starts_with(b"text/event-stream");
                }
                Some(b'k') if name.eq_ignore_ascii_case("keep-alive") => {
                    fields.keep_alive = keep_alive(text()?)
                }
                _ => {}
            }
        }
        Ok(fields)
    }

    /// RFC 9112 section 6.3.
    fn body(&self, status: u16, method: &Method) -> Result<Body, BadAnswer> {
        if *method == Method::HEAD || status < 200 || status == 204 || status == 304 {
            return Ok(Body::NONE);
        }
        Ok(match (self.is_chunked, self.length) {
            (true, _) => Body::chunked(Whose::Services),
            (false, Some(length)) => Body::Length(length),
            (false, None) => Body::UntilClose,
        })
    }

    fn has_option(&self, option: &str) -> bool {
        self.options.iter().any(|other| other.eq_ignore_ascii_case(option))
    }

    fn is_dropped(&self, name: &str, status: u16, unchunked: bool) -> bool {
        if name.eq_ignore_ascii_case("content-length") {
            // Both lengths: chunked wins (RFC 9112 section 6.3). A 204 has none (RFC 9110 section 8.6).
            return self.is_chunked || status == 204 || status < 200;
        }
        if name.eq_ignore_ascii_case("transfer-encoding") {
            return unchunked || status == 204 || status < 200;
        }
        let switching = status == 101 && name.eq_ignore_ascii_case("upgrade");
        !switching && is_hop_by_hop(name, &self.options)
    }
}

/// `status` has three digits, or else it would not have been read.
fn put_status_line(out: &mut BytesMut, status: u16, reason: &str) {
    let digit = |place| b'0' + (status / place % 10) as u8;
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(&[digit(100), digit(10), digit(1), b' ']);
    out.extend_from_slice(reason.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// `timeout=5, max=100`
fn keep_alive(value: &str) -> Option<Duration> {
    let timeout = value.split(',').find_map(|part| part.trim().strip_prefix("timeout="))?;
    timeout.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(head: &str, method: Method, visitor: Version) -> ResponseHead {
        let mut bytes = Bytes::copy_from_slice(head.as_bytes());
        let head = ResponseHead::parse(&mut bytes, &method, visitor).unwrap().unwrap();
        assert!(bytes.is_empty());
        head
    }

    #[test]
    fn bodies_end_as_rfc_9112_6_3_says() {
        let body = |head, method| parse(head, method, Version::Http11).body;
        let with_length = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(body(with_length, Method::GET), Body::Length(5));
        assert_eq!(body(with_length, Method::HEAD), Body::NONE);
        assert_eq!(body("HTTP/1.1 304 N\r\nContent-Length: 5\r\n\r\n", Method::GET), Body::NONE);
        assert_eq!(
            body("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", Method::GET),
            Body::chunked(Whose::Services)
        );
        assert_eq!(body("HTTP/1.1 200 OK\r\n\r\n", Method::GET), Body::UntilClose);
    }

    #[test]
    fn lengths_of_bodiless_answers_stay() {
        let head = "HTTP/1.1 304 Not Modified\r\nContent-Length: 777\r\nETag: \"e\"\r\n\r\n";
        assert_eq!(parse(head, Method::GET, Version::Http11).into_onward(None), head);
    }

    #[test]
    fn a_visitor_of_http_1_0_gets_no_chunks() {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX: 1\r\n\r\n";
        let onward = parse(head, Method::GET, Version::Http10).into_onward(Some("close"));
        assert_eq!(onward, "HTTP/1.1 200 OK\r\nX: 1\r\nConnection: close\r\n\r\n");
    }

    #[test]
    fn the_services_keep_alive_is_heard_and_not_passed_on() {
        let head = parse(
            "HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5, max=9\r\nContent-Length: 0\r\n\r\n",
            Method::GET,
            Version::Http11,
        );
        assert_eq!(head.keep_alive, Some(Duration::from_secs(5)));
        assert!(head.keeps_alive);
        assert_eq!(head.into_onward(None), "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        assert!(!parse("HTTP/1.0 200 OK\r\n\r\n", Method::GET, Version::Http11).keeps_alive);
    }

    #[test]
    fn contradicting_lengths_are_malformed() {
        let mut bytes =
            Bytes::from_static(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n");
        assert!(ResponseHead::parse(&mut bytes, &Method::GET, Version::Http11).is_err());
    }
}
