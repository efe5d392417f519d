//! One stream: what it has received and what it has to send.

use std::{
    cell::RefCell,
    future::poll_fn,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Instant,
};

use bytes::Bytes;

use super::{Mux, SEND_QUEUE};
use crate::{
    backlog::Backlog,
    credit::{ReceiveWindow, SendCredit},
    hello::Refusal,
    id::StreamId,
    packet::ResetCode,
    ws::Role,
};

/// A handle on one stream. Dropping it while this side is still sending aborts the stream; once this side has
/// finished, what is queued is still written.
pub struct Stream {
    cell: SharedCell,
    mux: Mux,
}

/// Why a stream ended before both sides had finished.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    #[error("the other side aborted the stream ({0:?})")]
    Reset(ResetCode),
    #[error("refused: {}", .0.message)]
    Refused(Refusal),
    #[error("the connection is gone")]
    Lost,
    #[error("too many bytes were waiting to be read")]
    Overflow,
}

pub(super) type SharedCell = Rc<RefCell<Cell>>;

pub(super) struct Cell {
    pub id: StreamId,

    pub inbox: Backlog,
    /// Bytes received and not yet written onward.
    pub unread: usize,
    pub window: ReceiveWindow,
    pub received_end: bool,
    reader: Option<Waker>,

    /// Present until it is written.
    pub init: Option<Bytes>,
    pub queue: Backlog,
    pub credit: SendCredit,
    pub end: End,
    writer: Option<Waker>,

    /// Window bytes to tell the other side.
    pub grant: u32,
    /// What to abort the stream with, at once.
    pub abort: Option<Abort>,
    /// Nobody reads any more; what comes is thrown away.
    pub is_detached: bool,
    /// Whether the connection knows the stream: neither finished nor aborted.
    pub is_listed: bool,
    /// Whether the stream stands in the outbox's queues.
    pub in_turn: bool,
    pub is_urgent: bool,

    pub ended: Option<Ended>,
}

/// Where this side's sending stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Open,
    /// To be said once the queue is written.
    Queued(Last),
    Written,
}

/// A side's last words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Last {
    /// Protocol 1's client says nothing.
    pub says_end: bool,
    /// Nothing more is wanted from the other side either.
    pub then_reset: Option<ResetCode>,
}

pub(super) enum Abort {
    Reset(ResetCode),
    Refused(Bytes),
    /// Protocol 1's only word for it.
    End,
}

impl Abort {
    /// Protocol 1 knows no reason.
    pub fn refused(refusal: &Refusal, protocol: u8) -> Self {
        Self::Refused(match protocol {
            1 => Bytes::new(),
            _ => serde_json::to_vec(refusal).unwrap_or_default().into(),
        })
    }
}

impl Stream {
    pub(super) fn new(cell: SharedCell, mux: Mux) -> Self {
        Self { cell, mux }
    }

    pub fn id(&self) -> StreamId {
        self.cell.borrow().id
    }

    /// Waits until there is room to queue more.
    pub async fn ready(&self) -> Result<(), Ended> {
        poll_fn(|cx| self.poll_ready(cx)).await
    }

    pub fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        let mut cell = self.cell.borrow_mut();
        if let Some(ended) = &cell.ended {
            return Poll::Ready(Err(ended.clone()));
        }
        if cell.queue.len() < SEND_QUEUE {
            return Poll::Ready(Ok(()));
        }
        cell.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Queues bytes. Call it after [`Stream::ready`]; it takes them in any case.
    pub fn send(&self, bytes: Bytes) -> Result<(), Ended> {
        let mut cell = self.cell.borrow_mut();
        if let Some(ended) = &cell.ended {
            return Err(ended.clone());
        }
        debug_assert_eq!(cell.end, End::Open, "bytes after the end");
        if !bytes.is_empty() {
            cell.queue.push(bytes);
            self.take_turn(&mut cell);
        }
        Ok(())
    }

    /// This side has finished sending. What is queued is still written.
    pub fn finish(&self) {
        self.last_words(Last { says_end: true, then_reset: None });
    }

    /// Aborts both directions once what is queued is written: the other side may read what was said until now.
    pub fn reset_after_queue(&self, code: ResetCode) {
        self.last_words(Last { says_end: false, then_reset: Some(code) });
    }

    /// Aborts both directions; what is queued is dropped.
    pub fn reset(&self, code: ResetCode) {
        let abort = if self.mux.protocol() == 1 { Abort::End } else { Abort::Reset(code) };
        self.abort(abort, Ended::Reset(code));
    }

    /// Refuses a stream before anything was sent on it.
    pub fn refuse(&self, refusal: Refusal) {
        self.abort(Abort::refused(&refusal, self.mux.protocol()), Ended::Refused(refusal));
    }

    /// The next bytes; `None` when the other side has finished. Tell [`Stream::consumed`] once they are written
    /// onward.
    pub async fn recv(&self) -> Result<Option<Bytes>, Ended> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    pub fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Ended>> {
        let mut cell = self.cell.borrow_mut();
        if let Some(bytes) = cell.inbox.pop() {
            return Poll::Ready(Ok(Some(bytes)));
        }
        if cell.received_end {
            return Poll::Ready(Ok(None));
        }
        if let Some(ended) = &cell.ended {
            return Poll::Ready(Err(ended.clone()));
        }
        cell.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Bytes that were received have been written onward: the other side may send as many again.
    pub fn consumed(&self, bytes: usize) {
        let mut cell = self.cell.borrow_mut();
        // A stream that was cut has been counted out already.
        let bytes = bytes.min(cell.unread);
        cell.unread -= bytes;
        self.mux.state.borrow_mut().consume(&self.cell, &mut cell, bytes);
    }

    /// Whether the other side has finished, aborted or said anything unread: such a stream takes no new request.
    pub fn is_spent(&self) -> bool {
        let cell = self.cell.borrow();
        cell.received_end || cell.ended.is_some() || cell.end != End::Open || !cell.inbox.is_empty()
    }

    /// The next bytes if they are here already.
    pub fn try_recv(&self) -> Option<Bytes> {
        self.cell.borrow_mut().inbox.pop()
    }

    /// Whether [`Stream::recv`] would return bytes at once.
    pub fn has_unread(&self) -> bool {
        !self.cell.borrow().inbox.is_empty()
    }

    /// Waits until the other side aborts the stream or the connection is gone.
    pub async fn aborted(&self) -> Ended {
        poll_fn(|cx| {
            let mut cell = self.cell.borrow_mut();
            if let Some(ended) = &cell.ended {
                return Poll::Ready(ended.clone());
            }
            cell.reader = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Whether the connection's reader has been paused since `then`: silence since is no sign (protocol 1).
    pub fn was_paused_since(&self, then: Instant) -> bool {
        let state = self.mux.state.borrow();
        state.paused.is_some() || state.pause_ended.is_some_and(|ended| ended > then)
    }

    fn last_words(&self, last: Last) {
        let mut cell = self.cell.borrow_mut();
        if cell.ended.is_some() {
            return;
        }
        cell.end = match cell.end {
            End::Open => End::Queued(Last { says_end: last.says_end && !self.says_nothing(), ..last }),
            End::Queued(before) => {
                End::Queued(Last { then_reset: before.then_reset.or(last.then_reset), ..before })
            }
            End::Written => {
                drop(cell);
                return last.then_reset.map_or((), |code| self.reset(code));
            }
        };
        self.take_turn(&mut cell);
    }

    fn take_turn(&self, cell: &mut Cell) {
        self.mux.state.borrow_mut().outbox.take_turn(&self.cell, cell);
    }

    /// Our client says no End to a protocol 1 server.
    fn says_nothing(&self) -> bool {
        let state = self.mux.state.borrow();
        state.settings.protocol == 1 && state.settings.role == Role::Client
    }

    fn abort(&self, abort: Abort, ended: Ended) {
        let mut cell = self.cell.borrow_mut();
        if cell.ended.is_some() {
            return;
        }
        let silent = matches!(abort, Abort::End) && (self.says_nothing() || cell.end == End::Written);
        let never_opened = cell.init.is_some();
        cell.end(ended);
        let mut state = self.mux.state.borrow_mut();
        state.read(std::mem::take(&mut cell.unread));
        let known = cell.is_listed;
        state.remove(&mut cell);
        // Either both Init and the abort are written, or neither.
        if known && !silent && !never_opened {
            cell.abort = Some(abort);
            state.outbox.urgent(&self.cell, &mut cell);
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let (end, is_read) = {
            let cell = self.cell.borrow();
            (cell.end, cell.received_end)
        };
        match end {
            End::Queued(_) if is_read => {}
            End::Queued(_) => {
                self.last_words(Last { says_end: true, then_reset: Some(ResetCode::Cancelled) })
            }
            End::Open | End::Written => self.reset(ResetCode::Cancelled),
        }
        let mut cell = self.cell.borrow_mut();
        cell.is_detached = true;
        cell.inbox.clear();
        let unread = std::mem::take(&mut cell.unread);
        self.mux.state.borrow_mut().consume(&self.cell, &mut cell, unread);
    }
}

impl Cell {
    pub fn new(id: StreamId, credit: SendCredit, window: ReceiveWindow) -> Self {
        Self {
            id,
            inbox: Backlog::default(),
            unread: 0,
            window,
            received_end: false,
            reader: None,
            init: None,
            queue: Backlog::default(),
            credit,
            end: End::Open,
            writer: None,
            grant: 0,
            abort: None,
            is_detached: false,
            is_listed: true,
            in_turn: false,
            is_urgent: false,
            ended: None,
        }
    }

    /// The stream is over: nothing queued is written, both sides of the handle learn why.
    pub fn end(&mut self, ended: Ended) {
        self.ended.get_or_insert(ended);
        self.queue.clear();
        self.init = None;
        self.grant = 0;
        self.wake_reader();
        self.wake_writer();
    }

    pub fn wake_reader(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    pub fn wake_writer(&mut self) {
        if let Some(writer) = self.writer.take() {
            writer.wake();
        }
    }

    /// Whether a turn would put anything on the wire.
    pub fn has_something_to_write(&self) -> bool {
        self.ended.is_none()
            && ((!self.queue.is_empty() && self.credit.left() > 0)
                || (self.queue.is_empty() && matches!(self.end, End::Queued(_))))
    }

    pub fn has_finished(&self) -> bool {
        self.received_end && self.end == End::Written
    }
}
