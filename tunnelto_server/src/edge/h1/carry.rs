//! One exchange on a stream: both directions side by side, another stream where that is safe, and what becomes
//! of the visitor's connection.

use std::{cell::Cell, pin::pin, time::Instant};

use bytes::{Bytes, BytesMut};
use tunnelto_lib::read_buffer::ReadBuffer;

use super::{
    answer::Failure,
    download::{Answered, Download, End},
    framing::Body,
    request::{After, RequestHead},
    upload::{Upload, UploadError},
    visitor::Visitor,
};
use crate::{
    edge::handler::Handler,
    exchange::{Exchange, Outcome},
    limits::READ_AHEAD,
    relay,
    socket::ReadHalf,
    upstream::Upstream,
};

/// What both directions of an exchange have come to.
#[derive(Default)]
pub struct Progress {
    /// The request is sent to its end.
    pub uploaded: Cell<bool>,
    /// When some of its body was sent last.
    pub last_upload: Cell<Option<Instant>>,
    /// The visitor has finished sending: it may have left.
    pub visitor_ended: Cell<bool>,
    pub status: Cell<Option<u16>>,
    pub bytes_in: Cell<u64>,
    pub bytes_out: Cell<u64>,
}

/// One request over all its tries.
pub struct Carrying<'a> {
    pub visitor: &'a mut Visitor,
    pub request: &'a RequestHead,
    /// The head as it came, for another instance.
    head: &'a Bytes,
    body: Body,
    /// What a reused stream was given of the body, in case it was dead.
    sent: BytesMut,
    progress: Progress,
}

/// What a try came to.
pub enum Tried {
    /// The visitor has its answer; `stays` tells whether its connection does.
    Answered {
        stays: bool,
    },
    /// Nothing reached the visitor. `again` tells whether another stream may be tried.
    Failed {
        failure: Failure,
        again: bool,
    },
    TimedOut,
    /// The request's own body is malformed.
    BadBody,
    /// The visitor's connection is of no further use and must be broken.
    Broken,
    VisitorGone,
}

impl<'a> Carrying<'a> {
    pub fn new(visitor: &'a mut Visitor, request: &'a RequestHead, head: &'a Bytes) -> Self {
        Self {
            visitor,
            body: request.body.clone(),
            request,
            head,
            sent: BytesMut::new(),
            progress: Progress::default(),
        }
    }

    /// Whether nothing of the request is left unread.
    pub fn is_read(&self) -> bool {
        self.body.is_done()
    }

    /// What was read of the body, if another try may follow.
    pub fn into_sent(self) -> BytesMut {
        self.sent
    }

    pub async fn run(&mut self, stream: Upstream, handler: &impl Handler, exchange: &mut Exchange) -> Tried {
        let is_reused = stream.is_reused();
        let end = match self.begin(&stream) {
            Ok(()) => self.both_ways(&stream, handler).await,
            Err(failure) => BothEnd::Answer(End::Failed(failure)),
        };
        exchange.status = self.progress.status.get();
        exchange.bytes_in = self.progress.bytes_in.get();
        exchange.bytes_out = self.progress.bytes_out.get();
        let end = match end {
            BothEnd::Answer(end) => end,
            BothEnd::BadBody if exchange.status.is_none() => return Tried::BadBody,
            BothEnd::BadBody => return Tried::Broken,
        };
        match end {
            End::Answered(answered) => {
                exchange.outcome = Outcome::Answered;
                let Answered { visitor_stays, stream_stays, keep_alive } = answered;
                let stays = stream_stays && self.progress.uploaded.get() && stream.protocol() >= 2;
                stream.give_back(keep_alive, stays);
                Tried::Answered { stays: visitor_stays }
            }
            End::Switching { head, rest } => {
                exchange.outcome = Outcome::Upgraded;
                // Whoever watches the log need not wait for the end of a conversation that may last for days.
                exchange.record();
                let early = self.visitor.buffer.take();
                relay::switch(&mut self.visitor.socket, early, &stream, head, rest).await;
                Tried::VisitorGone
            }
            End::Failed(failure) => {
                exchange.status = None;
                // A fresh stream's body is not kept.
                let is_whole = is_reused || exchange.bytes_in == 0;
                if failure.is_refusal() {
                    exchange.avoid.extend(stream.connection());
                }
                let again = is_whole && failure.may_be_repeated(is_reused, self.request.is_repeatable());
                Tried::Failed { failure, again }
            }
            End::TimedOut => Tried::TimedOut,
            End::Truncated => {
                exchange.outcome = Outcome::Truncated;
                Tried::Broken
            }
            End::VisitorGone => Tried::VisitorGone,
        }
    }

    /// The head, and what an earlier try has sent behind it.
    fn begin(&self, stream: &Upstream) -> Result<(), Failure> {
        let after = if stream.protocol() == 1 { After::Close } else { After::Keep };
        let head =
            if stream.wants_head_as_it_came() { self.head.clone() } else { self.request.onward(after) };
        let pieces = [head, Bytes::copy_from_slice(&self.sent)];
        pieces.into_iter().try_for_each(|piece| stream.send(piece)).map_err(Failure::Ended)
    }

    async fn both_ways(&mut self, stream: &Upstream, handler: &impl Handler) -> BothEnd {
        let progress = &self.progress;
        let Visitor { socket, buffer, timer, arrival, .. } = &mut *self.visitor;
        let (mut reading, writing) = socket.split();
        let download =
            Download { request: self.request, stream, visitor: writing, arrival, timer, progress, handler };
        let mut answering = pin!(download.run());
        if self.body.is_done() {
            progress.uploaded.set(true);
            return tokio::select! {
                biased;
                end = &mut answering => BothEnd::Answer(end),
                () = until_gone(&mut reading, buffer, progress) => BothEnd::Answer(End::VisitorGone),
            };
        }
        let keep = stream.is_reused().then_some(&mut self.sent);
        let upload = Upload { body: &mut self.body, buffer, keep };
        let mut uploading = pin!(upload.run(&mut reading, stream, progress));
        let mut is_over = false;
        loop {
            tokio::select! {
                // The answer first: once it is whole, the rest of the request is of no use.
                biased;
                end = &mut answering => return BothEnd::Answer(end),
                sent = &mut uploading, if !is_over => match sent {
                    Ok(()) | Err(UploadError::StreamEnded) => is_over = true,
                    Err(UploadError::Malformed) => return BothEnd::BadBody,
                    Err(UploadError::VisitorGone) => return BothEnd::Answer(End::VisitorGone),
                },
            }
        }
    }
}

/// Watches a visitor that has nothing to send but its next requests. A reset means that it is gone; an end may only be
/// half of one, and is noted.
async fn until_gone(visitor: &mut ReadHalf<'_>, buffer: &mut ReadBuffer, progress: &Progress) {
    while buffer.bytes.len() < READ_AHEAD {
        match buffer.fill(visitor).await {
            Ok(0) => {
                progress.visitor_ended.set(true);
                break;
            }
            Ok(_) => {}
            Err(_) => return,
        }
    }
    std::future::pending().await
}

enum BothEnd {
    Answer(End),
    BadBody,
}
