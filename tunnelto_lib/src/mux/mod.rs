//! Streams over one connection, for both ends and both protocols.
//!
//! A [`Mux`] is shared by one reader ([`Reader`]), one writer ([`write_all`]) and the [`Stream`]s, all on one
//! thread; nothing here locks or crosses threads. The reader never waits for the writer: a Window is a
//! counter per stream, a Ping a flag, a Reset a state, so nothing can deadlock or overflow. What a stream may
//! queue is bounded by [`SEND_QUEUE`], what it may receive by its window (protocol 2) or by
//! [`MAX_UNREAD_STREAM`] and [`MAX_UNREAD_CONNECTION`] (protocol 1, which has no flow control).

mod drive;
mod incoming;
#[cfg(test)]
mod model;
mod outbox;
mod stream;

use std::{
    cell::RefCell,
    collections::VecDeque,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use bytes::Bytes;
use rustc_hash::FxHashMap;

use crate::{
    credit::{ReceiveWindow, SendCredit},
    hello::GoAway,
    id::StreamId,
    packet::Packet,
    token::Secret,
    ws::Role,
};

use outbox::Outbox;
use stream::{Abort, Cell, SharedCell};

pub use drive::{Incoming, Lost, Reader, write_all};
pub use stream::{Ended, Stream};

/// Bytes a stream may have queued before its sender has to wait: two full packets, so that one is being
/// written while the next is read.
pub const SEND_QUEUE: usize = 128 * 1024;

/// Unread bytes of one protocol 1 stream that pause the connection's reader.
pub const MAX_UNREAD_STREAM: usize = 1024 * 1024;

/// Unread bytes of all streams of a protocol 1 connection that pause its reader.
pub const MAX_UNREAD_CONNECTION: usize = 8 * 1024 * 1024;

/// How long the reader of a protocol 1 connection pauses before the stream furthest behind is cut.
pub const MAX_PAUSE: Duration = Duration::from_secs(5);

/// Streams that a protocol 1 client remembers after their end, until the server has said its own: as many as it may have
/// open at once.
const MAX_OVER: usize = 1024;

/// Bytes by which all windows of a connection together may have grown.
const MAX_GROWTH: u64 = 64 * 1024 * 1024;

#[derive(Clone, Debug)]
pub struct Settings {
    pub role: Role,
    pub protocol: u8,
    /// Bytes per stream that the other side accepts at first.
    pub send_window: u32,
    /// Bytes per stream that this side accepts at first.
    pub receive_window: u32,
    pub max_streams: usize,
}

#[derive(Clone)]
pub struct Mux {
    state: Rc<RefCell<State>>,
}

struct State {
    settings: Settings,
    streams: FxHashMap<StreamId, SharedCell>,
    last_id: u64,
    outbox: Outbox,
    /// Bytes that windows have grown by.
    grown: u64,
    /// The window that a stream of this connection has grown to last: what its line needs.
    learned: u64,
    /// Bytes received and not consumed (protocol 1 only).
    unread: usize,
    /// The reader, while it waits for `unread` to fall.
    paused: Option<Waker>,
    pause_ended: Option<Instant>,
    last_heard: Instant,
    /// When the last Data was sent or received.
    last_data: Instant,
    /// Streams that are over for a protocol 1 client while its server may still send: a Data of theirs must not open
    /// them anew.
    over: VecDeque<StreamId>,
    closed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    #[error("the connection is gone")]
    Lost,
    #[error("the connection has as many streams as its client allows")]
    TooMany,
}

impl Mux {
    pub fn new(settings: Settings, now: Instant) -> Self {
        Self {
            state: Rc::new(RefCell::new(State {
                settings,
                streams: FxHashMap::default(),
                // The published client keeps its streams over reconnects and would take a new server's first stream
                // for one of the old server's. The top bit is for ids that clients open.
                last_id: rand::random::<u64>() >> 2,
                outbox: Outbox::default(),
                grown: 0,
                learned: 0,
                unread: 0,
                paused: None,
                pause_ended: None,
                last_heard: now,
                last_data: now,
                over: VecDeque::new(),
                closed: false,
            })),
        }
    }

    /// Opens a stream; its Init goes out with its first Data.
    pub fn open(&self, about: Bytes) -> Result<Stream, OpenError> {
        let mut state = self.state.borrow_mut();
        if state.closed {
            return Err(OpenError::Lost);
        }
        if state.streams.len() >= state.settings.max_streams {
            return Err(OpenError::TooMany);
        }
        state.last_id += 1;
        let id = StreamId(state.last_id);
        let mut cell = state.new_cell(id, Instant::now());
        cell.init = Some(about);
        state.widen(&mut cell);
        let cell = Rc::new(RefCell::new(cell));
        state.streams.insert(id, cell.clone());
        Ok(Stream::new(cell, self.clone()))
    }

    pub fn ping(&self, token: Option<Secret>) {
        self.state.borrow_mut().outbox.ping(token);
    }

    pub fn go_away(&self, notice: &GoAway) {
        let about = serde_json::to_vec(notice).unwrap_or_default().into();
        self.state.borrow_mut().outbox.notice(Packet::GoAway { about });
    }

    pub fn terminate(&self, about: Bytes) {
        self.state.borrow_mut().outbox.notice(Packet::Terminate { about });
    }

    /// Writes what is queued urgently, then a Close, and ends the writer.
    pub fn close_gracefully(&self) {
        self.state.borrow_mut().outbox.close();
    }

    /// The connection is gone: every stream ends with [`Ended::Lost`], the writer stops.
    pub fn abandon(&self) {
        let cells: Vec<_> = {
            let mut state = self.state.borrow_mut();
            state.closed = true;
            state.outbox.stop();
            state
                .streams
                .drain()
                .map(|(_, cell)| cell)
                .inspect(|cell| cell.borrow_mut().is_listed = false)
                .collect()
        };
        for cell in cells {
            cell.borrow_mut().end(Ended::Lost);
        }
    }

    pub fn is_closed(&self) -> bool {
        self.state.borrow().closed
    }

    pub fn protocol(&self) -> u8 {
        self.state.borrow().settings.protocol
    }

    pub fn open_streams(&self) -> usize {
        self.state.borrow().streams.len()
    }

    /// When the last byte came; the end of a pause counts as one.
    pub fn last_heard(&self) -> Instant {
        self.state.borrow().last_heard
    }

    /// Whether the reader waits for its streams (protocol 1). Then silence is ours, not the other side's.
    pub fn is_paused(&self) -> bool {
        self.state.borrow().paused.is_some()
    }

    /// When the last Data was sent or received.
    pub fn last_data(&self) -> Instant {
        self.state.borrow().last_data
    }

    /// Ready when the reader may read on.
    fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.borrow_mut();
        if state.settings.protocol >= 2 || !state.is_behind() {
            return Poll::Ready(());
        }
        state.paused = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Ends the stream with the most unread bytes; its later Data is thrown away.
    fn cut_furthest_behind(&self) {
        let mut state = self.state.borrow_mut();
        let worst = state.streams.values().max_by_key(|cell| cell.borrow().unread).cloned();
        if let Some(shared) = worst {
            let mut cell = shared.borrow_mut();
            state.remove(&mut cell);
            state.read(std::mem::take(&mut cell.unread));
            cell.inbox.clear();
            cell.end(Ended::Overflow);
            if state.settings.role == Role::Server {
                cell.abort = Some(Abort::End);
                state.outbox.urgent(&shared, &mut cell);
            }
        }
    }
}

impl State {
    fn new_cell(&self, id: StreamId, now: Instant) -> Cell {
        let credit = match self.settings.protocol {
            1 => SendCredit::unlimited(),
            _ => SendCredit::new(self.settings.send_window),
        };
        Cell::new(id, credit, ReceiveWindow::new(self.settings.receive_window, now))
    }

    /// A new stream begins with half of what its line is known to need, and need not find it out from the beginning. What is
    /// granted for it is written right behind its Init.
    fn widen(&mut self, cell: &mut Cell) {
        if self.settings.protocol >= 2 && self.grown < MAX_GROWTH {
            cell.grant = cell.window.widen(self.learned / 2);
            self.grown += cell.window.grown();
        }
    }

    fn is_behind(&self) -> bool {
        self.unread > MAX_UNREAD_CONNECTION
            || self.streams.values().any(|cell| cell.borrow().unread > MAX_UNREAD_STREAM)
    }

    /// Bytes of a protocol 1 stream were used or thrown away: the reader may go on.
    fn read(&mut self, bytes: usize) {
        if self.settings.protocol == 1 && bytes > 0 {
            self.unread -= bytes;
            if let Some(reader) = self.paused.take() {
                self.pause_ended = Some(Instant::now());
                reader.wake();
            }
        }
    }

    /// Bytes of a stream are out of the way: the other side may send as many again.
    fn consume(&mut self, shared: &SharedCell, cell: &mut Cell, bytes: usize) {
        if self.settings.protocol == 1 {
            return self.read(bytes);
        }
        let grown = cell.window.grown();
        let grant = cell.window.consumed(bytes, Instant::now());
        if cell.is_listed {
            self.grown = self.grown + cell.window.grown() - grown;
        }
        if cell.window.grown() < grown {
            // Somebody behind it is slow: the next ones begin small again.
            self.learned = 0;
        }
        if grant > 0 && cell.ended.is_none() && !cell.received_end {
            cell.grant = cell.grant.saturating_add(grant);
            self.outbox.urgent(shared, cell);
        }
    }

    /// Forgets a stream that both sides have finished, or that one side has aborted.
    fn remove(&mut self, cell: &mut Cell) {
        if std::mem::take(&mut cell.is_listed) {
            self.streams.remove(&cell.id);
            self.grown -= cell.window.grown();
            if self.settings.protocol == 1 && self.settings.role == Role::Client && !cell.received_end {
                if self.over.len() == MAX_OVER {
                    self.over.pop_front();
                }
                self.over.push_back(cell.id);
            }
        }
    }
}
