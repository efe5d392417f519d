//! One stream: what it has received and what it has to send.

use std::{
    cell::RefCell,
    collections::VecDeque,
    future::poll_fn,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Instant,
};

use bytes::Bytes;

use super::{Mux, SEND_QUEUE};
use crate::{
    credit::{ReceiveWindow, SendCredit},
    hello::Refusal,
    id::StreamId,
    packet::ResetCode,
    ws::Role,
};

/// A handle on one stream. Dropping it before both sides have finished aborts the stream; once they have, what
/// is still queued is written.
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

    pub inbox: VecDeque<Bytes>,
    /// Bytes received and not yet written onward.
    pub unread: usize,
    pub window: ReceiveWindow,
    pub received_end: bool,
    reader: Option<Waker>,

    /// Present until it is written.
    pub init: Option<Bytes>,
    pub queue: VecDeque<Bytes>,
    pub queued: usize,
    pub credit: SendCredit,
    pub end: End,
    writer: Option<Waker>,

    /// Window bytes to tell the other side.
    pub grant: u32,
    /// What to abort the stream with.
    pub abort: Option<Abort>,
    /// Whether the stream stands in the outbox's queues.
    pub in_turn: bool,
    pub is_urgent: bool,

    pub ended: Option<Ended>,
}

/// Where this side's sending stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Open,
    Queued,
    Written,
}

pub(super) enum Abort {
    Reset(ResetCode),
    Refused(Bytes),
    /// Protocol 1's only word for it.
    End,
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
        if cell.queued < SEND_QUEUE {
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
            cell.queued += bytes.len();
            cell.queue.push_back(bytes);
            self.take_turn(&mut cell);
        }
        Ok(())
    }

    /// This side has finished sending. What is queued is still written.
    pub fn finish(&self) {
        let mut cell = self.cell.borrow_mut();
        if cell.end != End::Open || cell.ended.is_some() {
            return;
        }
        if self.says_nothing() {
            cell.end = End::Written;
            return;
        }
        cell.end = End::Queued;
        self.take_turn(&mut cell);
    }

    /// Aborts both directions; what is queued is dropped.
    pub fn reset(&self, code: ResetCode) {
        let abort = if self.mux.protocol() == 1 { Abort::End } else { Abort::Reset(code) };
        self.abort(abort, Ended::Reset(code));
    }

    /// Refuses a stream before anything was sent on it.
    pub fn refuse(&self, refusal: Refusal) {
        let about = match self.mux.protocol() {
            1 => Bytes::new(),
            _ => serde_json::to_vec(&refusal).unwrap_or_default().into(),
        };
        self.abort(Abort::Refused(about), Ended::Refused(refusal));
    }

    /// The next bytes; `None` when the other side has finished. Tell [`Stream::consumed`] once they are written
    /// onward.
    pub async fn recv(&self) -> Result<Option<Bytes>, Ended> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    pub fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Ended>> {
        let mut cell = self.cell.borrow_mut();
        if let Some(bytes) = cell.inbox.pop_front() {
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
        let mut state = self.mux.state.borrow_mut();
        let state = &mut *state;
        cell.unread = cell.unread.saturating_sub(bytes);
        if state.settings.protocol == 1 {
            state.unread = state.unread.saturating_sub(bytes);
            if state.paused.is_some()
                && !state.is_behind_but_for(&cell)
                && let Some(reader) = state.paused.take()
            {
                reader.wake();
            }
            return;
        }
        let grown = cell.window.grown();
        let grant = cell.window.consumed(bytes, Instant::now());
        if cell.ended.is_none() && state.streams.contains_key(&cell.id) {
            state.grown = state.grown + cell.window.grown() - grown;
        }
        if grant > 0 && cell.ended.is_none() && !cell.received_end {
            cell.grant = cell.grant.saturating_add(grant);
            state.outbox.urgent(&self.cell, &mut cell);
        }
    }

    /// Whether the other side has finished, aborted or said anything unread: such a stream takes no new request.
    pub fn is_spent(&self) -> bool {
        let cell = self.cell.borrow();
        cell.received_end || cell.ended.is_some() || cell.end != End::Open || !cell.inbox.is_empty()
    }

    /// Whether [`Stream::recv`] would return bytes at once.
    pub fn has_unread(&self) -> bool {
        !self.cell.borrow().inbox.is_empty()
    }

    /// Whether the other side has said that it finished sending.
    pub fn has_received_end(&self) -> bool {
        self.cell.borrow().received_end
    }

    /// Why the stream was aborted, if it was.
    pub fn ended(&self) -> Option<Ended> {
        self.cell.borrow().ended.clone()
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
        if state.settings.protocol == 1 {
            state.unread = state.unread.saturating_sub(std::mem::take(&mut cell.unread));
            if let Some(reader) = state.paused.take() {
                reader.wake();
            }
        }
        let known = state.streams.contains_key(&cell.id);
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
        let both_finished = {
            let cell = self.cell.borrow();
            cell.received_end && cell.end != End::Open
        };
        if !both_finished {
            self.reset(ResetCode::Cancelled);
        }
        self.cell.borrow_mut().inbox.clear();
    }
}

impl Cell {
    pub fn new(id: StreamId, credit: SendCredit, window: ReceiveWindow) -> Self {
        Self {
            id,
            inbox: VecDeque::new(),
            unread: 0,
            window,
            received_end: false,
            reader: None,
            init: None,
            queue: VecDeque::new(),
            queued: 0,
            credit,
            end: End::Open,
            writer: None,
            grant: 0,
            abort: None,
            in_turn: false,
            is_urgent: false,
            ended: None,
        }
    }

    /// The stream is over: nothing queued is written, both sides of the handle learn why.
    pub fn end(&mut self, ended: Ended) {
        self.ended.get_or_insert(ended);
        self.queue.clear();
        self.queued = 0;
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
                || (self.queue.is_empty() && self.end == End::Queued))
    }

    pub fn has_finished(&self) -> bool {
        self.received_end && self.end == End::Written
    }
}
