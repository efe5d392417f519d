//! The local service's HTTP/1 answer, sent as one of HTTP/2.

use std::future::poll_fn;

use bytes::Bytes;
use h2::{Reason, SendStream, server::SendResponse};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use httparse::{EMPTY_HEADER, Status};

use crate::{
    edge::{
        h1::{answer::Answer, framing::Body, response::ResponseHead},
        pages::Page,
    },
    exchange::Outcome,
    io::within,
    limits::{ANSWER_TIME, MAX_FIELDS, VISITOR_STALL},
    upstream::Upstream,
};

/// Fields that frame or route and must not come in behind the content (RFC 9110 section 6.5.1).
const NO_TRAILERS: [HeaderName; 4] =
    [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::HOST, header::CONNECTION];

pub struct Respond {
    respond: SendResponse<Bytes>,
    pub bytes_out: u64,
}

/// The visitor takes no more.
pub struct Gone;

/// What an answer came to, and whether the stream can serve another exchange.
pub struct Relayed {
    pub outcome: Outcome,
    pub stream_stays: bool,
}

/// Where bytes go once protocols are switched.
pub struct Sending<'r> {
    respond: &'r mut Respond,
    body: SendStream<Bytes>,
}

/// Fields by which protocols are switched in HTTP/1.1, and which are not there in HTTP/2 (RFC 8441 section 5).
const OF_SWITCHING: [HeaderName; 3] = [header::CONNECTION, header::UPGRADE, header::SEC_WEBSOCKET_ACCEPT];

impl Respond {
    pub fn new(respond: SendResponse<Bytes>) -> Self {
        Self { respond, bytes_out: 0 }
    }

    /// For whoever answers instead.
    pub fn into_inner(self) -> SendResponse<Bytes> {
        self.respond
    }

    /// An answer of our own.
    pub async fn page(&mut self, page: &Page, method: &Method) {
        let mut response = Response::new(());
        *response.status_mut() = page.status;
        for (name, value) in &page.fields {
            let pair = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value));
            if let (Ok(name), Ok(value)) = pair {
                response.headers_mut().append(name, value);
            }
        }
        response.headers_mut().insert(header::CONTENT_LENGTH, page.body.len().into());
        let is_empty = page.body.is_empty() || *method == Method::HEAD;
        let Ok(mut body) = self.respond.send_response(response, is_empty) else { return };
        if !is_empty {
            let _ = self.send(&mut body, page.body.clone().into(), true).await;
        }
    }

    /// 103 and its like; a visitor that takes no more is noticed at the final head.
    pub fn interim(&mut self, head: &ResponseHead) {
        if let Some(response) = response(head) {
            let _ = self.respond.send_informational(response);
        }
    }

    /// The visitor does not want the answer any more.
    pub async fn until_reset(&mut self) {
        // An error means that the connection is gone, which is no different.
        let _ = poll_fn(|cx| self.respond.poll_reset(cx)).await;
    }

    /// The local service has switched protocols, which HTTP/2 says by 200. `None` where the visitor is gone.
    pub fn switch(&mut self, head: &ResponseHead) -> Option<Sending<'_>> {
        let mut response = response(head)?;
        *response.status_mut() = StatusCode::OK;
        for name in OF_SWITCHING {
            response.headers_mut().remove(name);
        }
        let body = self.respond.send_response(response, false).ok()?;
        Some(Sending { respond: self, body })
    }

    pub async fn relay(&mut self, head: ResponseHead, mut answer: Answer<'_>, stream: &Upstream) -> Relayed {
        let stream_keeps = head.keeps_alive && head.body != Body::UntilClose;
        let mut surplus = 0;
        let outcome = self.relay_all(head, &mut answer, stream, &mut surplus).await;
        let stream_stays = outcome == Outcome::Answered && stream_keeps && surplus == 0 && !answer.has_rest();
        Relayed { outcome, stream_stays }
    }

    /// `surplus` is what came behind the answer, in bytes.
    async fn relay_all(
        &mut self,
        mut head: ResponseHead,
        answer: &mut Answer<'_>,
        stream: &Upstream,
        surplus: &mut usize,
    ) -> Outcome {
        let mut body = std::mem::replace(&mut head.body, Body::NONE);
        if body == Body::UntilClose && !head.is_event_stream {
            answer.end_by_silence();
        }
        let is_event_stream = head.is_event_stream;
        let is_empty = body.is_done();
        let Some(response) = response(&head) else {
            self.respond.send_reset(Reason::INTERNAL_ERROR);
            return Outcome::Truncated;
        };
        let Ok(mut sending) = self.respond.send_response(response, is_empty) else { return Outcome::Aborted };
        if is_empty {
            return Outcome::Answered;
        }
        let mut content = Vec::new();
        while !body.is_done() {
            let next = tokio::select! {
                biased;
                next = within(ANSWER_TIME, answer.piece()) => next,
                _ = poll_fn(|cx| sending.poll_reset(cx)) => return Outcome::Aborted,
            };
            let piece = match next {
                // Events may be rare; a visitor that leaves says so here.
                Err(_) if is_event_stream => continue,
                Err(_) => return truncated(&mut sending),
                Ok(next) => next,
            };
            let piece = match piece {
                Ok(Some(piece)) => piece,
                Ok(None) if body == Body::UntilClose => break,
                Ok(None) | Err(_) => return truncated(&mut sending),
            };
            let Ok(count) = body.take_content(&piece, &mut content) else { return truncated(&mut sending) };
            for range in content.drain(..) {
                if self.send(&mut sending, piece.slice(range), false).await.is_err() {
                    return Outcome::Aborted;
                }
            }
            *surplus = piece.len() - count;
            stream.consumed(count);
        }
        let end = match trailers(body.trailers()) {
            Some(trailers) => sending.send_trailers(trailers),
            None => sending.send_data(Bytes::new(), true),
        };
        if end.is_ok() { Outcome::Answered } else { Outcome::Aborted }
    }

    /// Sends as the visitor's window allows.
    async fn send(
        &mut self,
        body: &mut SendStream<Bytes>,
        mut data: Bytes,
        is_last: bool,
    ) -> Result<(), Gone> {
        while !data.is_empty() {
            body.reserve_capacity(data.len());
            let capacity = within(VISITOR_STALL, poll_fn(|cx| body.poll_capacity(cx))).await;
            let Ok(Some(Ok(capacity))) = capacity else { return Err(Gone) };
            let piece = data.split_to(capacity.min(data.len()));
            self.bytes_out += piece.len() as u64;
            body.send_data(piece, is_last && data.is_empty()).map_err(|_| Gone)?;
        }
        Ok(())
    }
}

impl Sending<'_> {
    pub async fn send(&mut self, data: Bytes) -> Result<(), Gone> {
        self.respond.send(&mut self.body, data, false).await
    }

    pub fn finish(&mut self) -> Result<(), Gone> {
        self.body.send_data(Bytes::new(), true).map_err(|_| Gone)
    }

    pub fn cancel(&mut self) {
        self.body.send_reset(Reason::CANCEL);
    }
}

fn truncated(body: &mut SendStream<Bytes>) -> Outcome {
    body.send_reset(Reason::INTERNAL_ERROR);
    Outcome::Truncated
}

/// Status and fields without those that HTTP/2 forbids (RFC 9113 section 8.2.2).
fn response(head: &ResponseHead) -> Option<Response<()>> {
    let mut text = head.onward_fields().to_vec();
    text.extend_from_slice(b"\r\n");
    let mut slots = [EMPTY_HEADER; MAX_FIELDS];
    let mut parsed = httparse::Response::new(&mut slots);
    parsed.parse(&text).ok()?;
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(head.status).ok()?;
    for field in parsed.headers.iter() {
        let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
        if name != header::TRANSFER_ENCODING {
            response.headers_mut().append(name, HeaderValue::from_bytes(field.value).ok()?);
        }
    }
    Some(response)
}

fn trailers(section: &[u8]) -> Option<HeaderMap> {
    let mut slots = [EMPTY_HEADER; MAX_FIELDS];
    let mut text = section.to_vec();
    text.extend_from_slice(b"\r\n");
    let Ok(Status::Complete((_, fields))) = httparse::parse_headers(&text, &mut slots) else { return None };
    let mut trailers = HeaderMap::new();
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
        if !NO_TRAILERS.contains(&name) {
            trailers.append(name, HeaderValue::from_bytes(field.value).ok()?);
        }
    }
    (!trailers.is_empty()).then_some(trailers)
}
