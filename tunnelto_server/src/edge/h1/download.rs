//! The answer, from the stream to the visitor.

use std::{collections::VecDeque, io, time::Duration};

use bytes::Bytes;
use tunnelto_lib::{mux::Ended, packet::ResetCode};

use super::{
    answer::{Answer, Failure},
    carry::Progress,
    framing::Body,
    request::{RequestHead, Version},
    response::ResponseHead,
};
use crate::{
    edge::{handler::Handler, listener::Arrival},
    io::{Timer, TooLong, finish, write_all, write_both},
    limits::{ANSWER_TIME, MAX_INTERIM, VISITOR_STALL},
    socket::WriteHalf,
    upstream::Upstream,
};

/// Bytes and pieces of an answer that are written at once, when so much is waiting.
const BATCH: usize = 256 * 1024;
const MAX_PIECES: usize = 16;

pub struct Download<'a, H> {
    pub request: &'a RequestHead,
    pub stream: &'a Upstream,
    pub visitor: WriteHalf<'a>,
    pub arrival: &'a Arrival,
    pub timer: &'a mut Timer,
    pub progress: &'a Progress,
    pub handler: &'a H,
}

/// How the answer's side of an exchange ended.
pub enum End {
    Answered(Answered),
    /// The local service changes protocols: what it said, and what it sent behind it.
    Switching {
        head: Bytes,
        rest: Bytes,
    },
    /// Nothing reached the visitor.
    Failed(Failure),
    TimedOut,
    /// The visitor has got a part.
    Truncated,
    VisitorGone,
}

pub struct Answered {
    /// Whether the visitor was told that its connection goes on.
    pub visitor_stays: bool,
    /// Whether the stream can serve another exchange, and what the service says of how long.
    pub stream_stays: bool,
    pub keep_alive: Option<Duration>,
}

impl<H: Handler> Download<'_, H> {
    pub async fn run(mut self) -> End {
        let mut answer = Answer::new(self.stream);
        let head = match self.final_head(&mut answer).await {
            Ok(head) => head,
            Err(end) => return end,
        };
        self.progress.status.set(Some(head.status));
        if head.status == 101 {
            return match self.request.upgrade {
                Some(_) => {
                    End::Switching { head: head.into_onward(Some("Upgrade")), rest: answer.take_rest() }
                }
                None => End::Failed(Failure::Malformed),
            };
        }
        self.relay(head, answer).await
    }

    /// Passes interim answers on until the final one comes.
    async fn final_head(&mut self, answer: &mut Answer<'_>) -> Result<ResponseHead, End> {
        let (method, version) = (&self.request.method, self.request.version);
        for _ in 0..MAX_INTERIM {
            let head = loop {
                match self.timer.within(ANSWER_TIME, answer.head(method, version)).await {
                    Ok(head) => break head.map_err(End::Failed)?,
                    // The service may be waiting for the rest of the request.
                    Err(_) if !self.is_uploading() => return Err(End::TimedOut),
                    Err(_) => {}
                }
            };
            if !head.is_interim() {
                return Ok(head);
            }
            // HTTP/1.0 knows no interim answers (RFC 9110 section 15.2).
            if version == Version::Http11 {
                self.write(head.into_onward(None), Bytes::new()).await?;
            }
        }
        Err(End::Failed(Failure::Malformed))
    }

    /// Whether the visitor is still sending its request, and the local service taking it.
    fn is_uploading(&self) -> bool {
        !self.progress.uploaded.get()
            && self.progress.last_upload.get().is_some_and(|last| last.elapsed() < ANSWER_TIME)
    }

    /// No further request is wanted on this connection.
    fn is_last(&self) -> bool {
        self.handler.is_last(self.arrival)
    }

    async fn relay(&mut self, mut head: ResponseHead, mut answer: Answer<'_>) -> End {
        let mut body = std::mem::replace(&mut head.body, Body::NONE);
        let unchunk = self.request.version == Version::Http10 && matches!(body, Body::Chunked(_));
        let is_delimited = body != Body::UntilClose && !unchunk;
        let visitor_stays =
            is_delimited && self.request.keeps_alive && self.progress.uploaded.get() && !self.is_last();
        if body == Body::UntilClose && !head.is_event_stream {
            answer.end_by_silence();
        }
        let connection = match (visitor_stays, self.request.version) {
            (false, _) => Some("close"),
            (true, Version::Http10) => Some("keep-alive"),
            (true, Version::Http11) => None,
        };
        let is_event_stream = head.is_event_stream;
        let stream_keeps = head.keeps_alive && body != Body::UntilClose;
        let keep_alive = head.keep_alive;
        // Written with the first piece of the body, or alone if that is not there yet.
        let mut pending = head.into_onward(connection);
        while !body.is_done() {
            if !pending.is_empty()
                && !answer.is_ready()
                && let Err(end) = self.write(std::mem::take(&mut pending), Bytes::new()).await
            {
                return end;
            }
            let next = loop {
                match self.timer.within(ANSWER_TIME, answer.piece()).await {
                    Ok(next) => break next,
                    // Events may be rare, as long as there is somebody to read them.
                    Err(_) if is_event_stream && !self.progress.visitor_ended.get() => {}
                    Err(_) => break Err(Failure::Ended(Ended::Reset(ResetCode::TimedOut))),
                }
            };
            let piece = match next {
                Ok(Some(piece)) => piece,
                Ok(None) if body == Body::UntilClose => break,
                Ok(None) | Err(_) => return broken(&pending),
            };
            let head = std::mem::take(&mut pending);
            let written = if unchunk {
                self.write_content(&mut body, head, &piece).await
            } else {
                self.write_piece(&mut body, head, piece, &mut answer).await
            };
            if let Err(end) = written {
                return end;
            }
        }
        if let Err(end) = self.write(pending, Bytes::new()).await {
            return end;
        }
        if !visitor_stays && finish(&mut self.visitor, VISITOR_STALL).await.is_err() {
            return End::VisitorGone;
        }
        End::Answered(Answered {
            visitor_stays,
            stream_stays: stream_keeps && !answer.has_rest(),
            keep_alive,
        })
    }

    async fn write_piece(
        &mut self,
        body: &mut Body,
        head: Bytes,
        mut piece: Bytes,
        answer: &mut Answer<'_>,
    ) -> Result<(), End> {
        let Ok(count) = body.take(&piece) else { return Err(broken(&head)) };
        answer.put_back(piece.split_off(count));
        if body.is_done() || !answer.is_ready() {
            self.write(head, piece).await?;
            self.stream.consumed(count);
            return Ok(());
        }
        let mut total = count;
        let mut pieces = VecDeque::from([head, piece]);
        while total < BATCH
            && pieces.len() < MAX_PIECES
            && !body.is_done()
            && let Some(mut piece) = answer.try_piece()
        {
            let Ok(count) = body.take(&piece) else { return Err(broken(&pieces[0])) };
            answer.put_back(piece.split_off(count));
            total += count;
            pieces.push_back(piece);
        }
        self.write_pieces(pieces).await?;
        self.stream.consumed(total);
        Ok(())
    }

    async fn write_content(&mut self, body: &mut Body, mut head: Bytes, piece: &Bytes) -> Result<(), End> {
        let mut content = Vec::new();
        if body.take_content(piece, &mut content).is_err() {
            return Err(broken(&head));
        }
        for range in content {
            self.write(std::mem::take(&mut head), piece.slice(range)).await?;
        }
        self.write(head, Bytes::new()).await?;
        self.stream.consumed(piece.len());
        Ok(())
    }

    async fn write(&mut self, head: Bytes, piece: Bytes) -> Result<(), End> {
        let count = head.len() + piece.len();
        let written = self.timer.within(VISITOR_STALL, write_both(&mut self.visitor, head, piece)).await;
        self.count(count, written)
    }

    async fn write_pieces(&mut self, pieces: VecDeque<Bytes>) -> Result<(), End> {
        let count = pieces.iter().map(Bytes::len).sum();
        let written = self.timer.within(VISITOR_STALL, write_all(&mut self.visitor, pieces)).await;
        self.count(count, written)
    }

    fn count(&self, bytes: usize, written: Result<io::Result<()>, TooLong>) -> Result<(), End> {
        let Ok(Ok(())) = written else { return Err(End::VisitorGone) };
        self.progress.bytes_out.set(self.progress.bytes_out.get() + bytes as u64);
        Ok(())
    }
}

/// The service broke off. A head that is still here never left: the visitor gets a whole refusal instead.
fn broken(pending: &Bytes) -> End {
    if pending.is_empty() { End::Truncated } else { End::Failed(Failure::BrokeOff) }
}
