//! What a connection has to write, and in which order: urgent packets first (Ping, Window, Reset and their
//! like), then one Data packet of each stream in turn.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, Waker, ready},
    time::Instant,
};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::AsyncWrite;

use super::{
    Mux, SEND_QUEUE, State,
    stream::{Abort, Cell, End, Ended, Last, SharedCell},
};
use crate::{
    backlog::advance,
    id::StreamId,
    packet::{HEAD, MAX_DATA, Packet, Tag, put_head},
    token::Secret,
    ws::{MAX_FRAME_HEAD, Opcode, Role, put_frame_head},
};

/// Bytes of one vectored write: four full packets.
const BATCH: usize = 4 * MAX_DATA;

/// Slices of one vectored write.
const MAX_SLICES: usize = 64;

/// Payloads up to this size are copied behind their header: cheaper than a slice of their own.
const COPY: usize = 2048;

#[derive(Default)]
pub(super) struct Outbox {
    turns: VecDeque<SharedCell>,
    urgent: VecDeque<SharedCell>,
    ping: Option<Option<Secret>>,
    pong: Option<Bytes>,
    /// GoAway and Terminate: a handful in a connection's life.
    notices: VecDeque<Packet>,
    closing: Closing,
    writer: Option<Waker>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Closing {
    #[default]
    No,
    /// Write a Close, then stop.
    Gracefully,
    /// Stop; the connection is gone.
    AtOnce,
}

/// Frames on their way to the socket.
#[derive(Default)]
pub(super) struct Batch {
    /// Headers and small payloads since the last slice.
    heads: BytesMut,
    slices: VecDeque<Bytes>,
    /// Bytes in `slices`.
    sealed: usize,
}

/// What the writer does after a batch.
pub(super) enum Then {
    GoOn,
    Stop,
}

impl Outbox {
    pub fn take_turn(&mut self, shared: &SharedCell, cell: &mut Cell) {
        if !cell.in_turn && cell.has_something_to_write() {
            cell.in_turn = true;
            self.turns.push_back(shared.clone());
            self.wake();
        }
    }

    pub fn urgent(&mut self, shared: &SharedCell, cell: &mut Cell) {
        if !cell.is_urgent {
            cell.is_urgent = true;
            self.urgent.push_back(shared.clone());
            self.wake();
        }
    }

    pub fn ping(&mut self, token: Option<Secret>) {
        self.ping = Some(token);
        self.wake();
    }

    pub fn pong(&mut self, payload: Bytes) {
        self.pong = Some(payload);
        self.wake();
    }

    pub fn notice(&mut self, packet: Packet) {
        self.notices.push_back(packet);
        self.wake();
    }

    pub fn close(&mut self) {
        if self.closing == Closing::No {
            self.closing = Closing::Gracefully;
            self.wake();
        }
    }

    pub fn stop(&mut self) {
        self.closing = Closing::AtOnce;
        self.turns.clear();
        self.urgent.clear();
        self.wake();
    }

    /// Whether nothing waits to be written.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty() && self.urgent.is_empty() && self.notices.is_empty()
    }

    fn wake(&mut self) {
        if let Some(writer) = self.writer.take() {
            writer.wake();
        }
    }

    fn put_urgent(&mut self, role: Role, batch: &mut Batch) {
        if let Some(payload) = self.pong.take() {
            batch.frame(role, Opcode::Pong, payload.len());
            batch.payload(payload);
        }
        if let Some(token) = self.ping.take() {
            batch.packet(role, &Packet::Ping { token });
        }
        while let Some(notice) = self.notices.pop_front() {
            batch.packet(role, &notice);
        }
        while batch.has_room()
            && let Some(shared) = self.urgent.pop_front()
        {
            let mut cell = shared.borrow_mut();
            let id = cell.id;
            cell.is_urgent = false;
            match cell.abort.take() {
                Some(Abort::Refused(about)) => batch.packet(role, &Packet::Refused { id, about }),
                Some(Abort::Reset(code)) => batch.packet(role, &Packet::Reset { id, code }),
                Some(Abort::End) => batch.packet(role, &Packet::End { id }),
                None if cell.grant > 0 => {
                    let grant = std::mem::take(&mut cell.grant);
                    batch.packet(role, &Packet::Window { id, grant });
                }
                None => {}
            }
        }
    }
}

impl State {
    /// One stream's turn: Init if it is due, one Data packet, End if that was the last of it.
    fn put_turn(&mut self, shared: &SharedCell, batch: &mut Batch) {
        let role = self.settings.role;
        let mut cell = shared.borrow_mut();
        let cell = &mut *cell;
        cell.in_turn = false;
        if cell.ended.is_some() {
            return;
        }
        if let Some(about) = cell.init.take() {
            batch.packet(role, &Packet::Init { id: cell.id, about });
            if cell.grant > 0 {
                let grant = std::mem::take(&mut cell.grant);
                batch.packet(role, &Packet::Window { id: cell.id, grant });
            }
        }
        let len = cell.queue.len().min(cell.credit.left()).min(MAX_DATA);
        if len > 0 {
            batch.packet_head(role, Tag::Data, cell.id, len);
            cell.credit.spend(len);
            self.last_data = Instant::now();
            let mut left = len;
            while left > 0
                && let Some(piece) = cell.queue.pop_at_most(left)
            {
                left -= piece.len();
                batch.payload(piece);
            }
            if cell.queue.len() < SEND_QUEUE {
                cell.wake_writer();
            }
        }
        if cell.queue.is_empty()
            && let End::Queued(last) = cell.end
        {
            self.put_last_words(cell, last, batch);
        }
        self.outbox.take_turn(shared, cell);
    }

    fn put_last_words(&mut self, cell: &mut Cell, last: Last, batch: &mut Batch) {
        let role = self.settings.role;
        cell.end = End::Written;
        if last.says_end {
            batch.packet_head(role, Tag::End, cell.id, 0);
        }
        match last.then_reset {
            // Protocol 1 has no Reset, and its client's silence is the end.
            _ if self.settings.protocol == 1 && role == Role::Client => self.remove(cell),
            Some(code) => {
                if self.settings.protocol == 1 {
                    if !last.says_end {
                        batch.packet_head(role, Tag::End, cell.id, 0);
                    }
                } else {
                    batch.packet(role, &Packet::Reset { id: cell.id, code });
                }
                self.remove(cell);
                cell.end(Ended::Reset(code));
            }
            None if cell.received_end => self.remove(cell),
            None => {}
        }
    }
}

impl Mux {
    /// Ready with something to write, or with the word to stop.
    pub(super) fn poll_batch(&self, cx: &mut Context<'_>, batch: &mut Batch) -> Poll<Then> {
        let mut state = self.state.borrow_mut();
        let role = state.settings.role;
        if state.outbox.closing == Closing::AtOnce {
            return Poll::Ready(Then::Stop);
        }
        state.outbox.put_urgent(role, batch);
        if state.outbox.closing == Closing::Gracefully {
            // Status 1001, going away (RFC 6455 section 7.4.1).
            batch.frame(role, Opcode::Close, 2);
            batch.heads.put_u16(1001);
            return Poll::Ready(Then::Stop);
        }
        while batch.has_room()
            && let Some(shared) = state.outbox.turns.pop_front()
        {
            state.put_turn(&shared, batch);
        }
        if !batch.is_empty() {
            return Poll::Ready(Then::GoOn);
        }
        state.outbox.writer = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Batch {
    /// Writes everything, vectored.
    pub fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        io: &mut (impl AsyncWrite + Unpin),
    ) -> Poll<io::Result<()>> {
        self.seal();
        while !self.slices.is_empty() {
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let mut count = 0;
            for (slot, bytes) in slices.iter_mut().zip(&self.slices) {
                *slot = IoSlice::new(bytes);
                count += 1;
            }
            let written = ready!(Pin::new(&mut *io).poll_write_vectored(cx, &slices[..count]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sealed -= written;
            advance(&mut self.slices, written);
        }
        Poll::Ready(Ok(()))
    }

    fn has_room(&self) -> bool {
        self.sealed + self.heads.len() < BATCH && self.slices.len() < MAX_SLICES / 2
    }

    fn is_empty(&self) -> bool {
        self.slices.is_empty() && self.heads.is_empty()
    }

    fn frame(&mut self, role: Role, opcode: Opcode, len: usize) {
        self.heads.reserve(MAX_FRAME_HEAD + HEAD + len.min(COPY));
        put_frame_head(&mut self.heads, role, opcode, len);
    }

    fn packet_head(&mut self, role: Role, tag: Tag, id: StreamId, len: usize) {
        self.frame(role, Opcode::Binary, HEAD + len);
        put_head(&mut self.heads, tag, id);
    }

    fn packet(&mut self, role: Role, packet: &Packet) {
        let message = packet.encode();
        self.frame(role, Opcode::Binary, message.len());
        self.payload(message);
    }

    fn payload(&mut self, bytes: Bytes) {
        if bytes.len() <= COPY {
            self.heads.extend_from_slice(&bytes);
        } else {
            self.seal();
            self.sealed += bytes.len();
            self.slices.push_back(bytes);
        }
    }

    fn seal(&mut self) {
        if !self.heads.is_empty() {
            self.sealed += self.heads.len();
            self.slices.push_back(self.heads.split().freeze());
        }
    }
}
