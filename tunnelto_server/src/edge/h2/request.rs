//! A request of HTTP/2, written as one of HTTP/1.1 (RFC 9113 section 8.3, RFC 9112).

use std::cell::Cell;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::{Bytes, BytesMut};
use h2::{RecvStream, ext::Protocol};
use http::{HeaderMap, Method, header, request::Parts};

use crate::{
    edge::h1::{
        framing::{Body, is_no_trailer},
        request::put_field,
    },
    error::Refusal,
    io::within,
    limits::VISITOR_STALL,
    upstream::Upstream,
};

/// The head as an HTTP/1.1 visitor would have sent it; the same strict reading follows. Values hold no line ends,
/// which the `http` types guarantee.
pub fn to_http1(parts: &Parts, has_no_body: bool) -> Result<Bytes, Refusal> {
    // An extended CONNECT is what an upgrade is in HTTP/1.1 (RFC 8441 section 5).
    let protocol = parts.extensions.get::<Protocol>();
    let is_websocket = protocol.is_some_and(|protocol| protocol.as_str() == "websocket");
    if parts.method == Method::CONNECT && !is_websocket {
        return Err(Refusal::BadRequest("CONNECT is for WebSockets only; this is no forward proxy"));
    }
    let method = if is_websocket { "GET" } else { parts.method.as_str() };
    let target = parts.uri.path_and_query().map_or("*", |target| target.as_str());
    // `*` comes as an empty path with OPTIONS.
    let target = if target.is_empty() { "/" } else { target };
    let mut head = BytesMut::with_capacity(512);
    for piece in [method, " ", target, " HTTP/1.1\r\n"] {
        head.extend_from_slice(piece.as_bytes());
    }
    // :authority overrules Host (section 8.3.1).
    match (parts.uri.authority(), parts.headers.get(header::HOST)) {
        (Some(authority), _) => put_field(&mut head, "Host", authority.as_str().as_bytes()),
        (None, Some(host)) => put_field(&mut head, "Host", host.as_bytes()),
        (None, None) => return Err(Refusal::InvalidHost),
    }
    // One field for the local service (section 8.2.3).
    let cookies: Vec<_> =
        parts.headers.get_all(header::COOKIE).iter().map(|value| value.as_bytes()).collect();
    if !cookies.is_empty() {
        put_field(&mut head, "Cookie", &cookies.join(&b"; "[..]));
    }
    for (name, value) in &parts.headers {
        let is_ours = *name == header::SEC_WEBSOCKET_KEY && is_websocket;
        if name != header::HOST && name != header::COOKIE && !is_ours {
            put_field(&mut head, name.as_str(), value.as_bytes());
        }
    }
    if is_websocket {
        put_field(&mut head, "Connection", b"Upgrade");
        put_field(&mut head, "Upgrade", b"websocket");
        put_field(&mut head, "Sec-WebSocket-Key", STANDARD.encode(rand::random::<[u8; 16]>()).as_bytes());
    } else if !has_no_body && !parts.headers.contains_key(header::CONTENT_LENGTH) {
        put_field(&mut head, "Transfer-Encoding", b"chunked");
    }
    head.extend_from_slice(b"\r\n");
    Ok(head.freeze())
}

/// The request's body on its way to the stream.
pub struct Upload<'b> {
    from: &'b mut RecvStream,
    is_chunked: bool,
    /// Bytes of content sent.
    sent: &'b Cell<u64>,
}

/// The visitor broke off, or the stream did; the answer tells which matters.
#[derive(Debug)]
pub struct UploadFailed;

impl<'b> Upload<'b> {
    /// `framing` is what the head promised.
    pub fn new(from: &'b mut RecvStream, framing: &Body, sent: &'b Cell<u64>) -> Self {
        Self { from, is_chunked: matches!(framing, Body::Chunked(_)), sent }
    }

    /// Never fails because the stream takes no more: the answer says why.
    pub async fn run(self, stream: &Upstream) -> Result<(), UploadFailed> {
        // Nothing is read before the stream takes it: it may have to be opened anew.
        if stream.ready().await.is_err() {
            return Ok(());
        }
        while let Some(data) = within(VISITOR_STALL, self.from.data()).await.map_err(|_| UploadFailed)? {
            let data = data.map_err(|_| UploadFailed)?;
            let size = data.len();
            if stream.ready().await.and_then(|()| self.send(stream, data)).is_err() {
                return Ok(());
            }
            self.sent.set(self.sent.get() + size as u64);
            // The window opens again once the bytes are on their way.
            let _ = self.from.flow_control().release_capacity(size);
        }
        if self.is_chunked {
            let trailers = self.from.trailers().await.map_err(|_| UploadFailed)?;
            // A stream that takes no more says why in its answer.
            let _ = stream.send(last_chunk(trailers.as_ref()));
        }
        Ok(())
    }

    fn send(&self, stream: &Upstream, data: Bytes) -> Result<(), tunnelto_lib::mux::Ended> {
        if !self.is_chunked {
            return stream.send(data);
        }
        if data.is_empty() {
            return Ok(());
        }
        stream.send(format!("{:x}\r\n", data.len()).into())?;
        stream.send(data)?;
        stream.send(Bytes::from_static(b"\r\n"))
    }
}

/// A visitor's trailers are held to the same rule as in HTTP/1; here they can still be left out.
fn last_chunk(trailers: Option<&HeaderMap>) -> Bytes {
    let mut end = BytesMut::from(&b"0\r\n"[..]);
    let all = trailers.into_iter().flatten();
    for (name, value) in all.filter(|(name, _)| !is_no_trailer(name.as_str())) {
        put_field(&mut end, name.as_str(), value.as_bytes());
    }
    end.extend_from_slice(b"\r\n");
    end.freeze()
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    #[test]
    fn trailers_that_frame_or_name_the_visitor_are_left_out() {
        let mut trailers = HeaderMap::new();
        for name in ["x-sum", "content-length", "host", "x-forwarded-for"] {
            trailers.append(name, "7".parse().unwrap());
        }
        assert_eq!(super::last_chunk(Some(&trailers)), "0\r\nx-sum: 7\r\n\r\n");
        assert_eq!(super::last_chunk(None), "0\r\n\r\n");
    }
}
