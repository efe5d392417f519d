//! What a packet does to the streams. Nothing here waits.

use std::{cell::RefCell, rc::Rc, time::Instant};

use bytes::Bytes;

use super::{
    Incoming, Lost, MAX_GROWTH, Mux, State,
    stream::{Abort, Ended, SharedCell, Stream},
};
use crate::{
    hello::Refusal,
    id::StreamId,
    packet::{Packet, ResetCode},
    ws::Role,
};

impl Mux {
    /// Applies one packet; what concerns the connection's owner is returned.
    pub(super) fn receive(&self, packet: Packet, now: Instant) -> Result<Option<Incoming>, Lost> {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        // What is still in the reader's buffer opens nothing any more.
        if state.closed {
            return Err(Lost::Closed);
        }
        match packet {
            Packet::Init { id, about } => return self.receive_init(state, id, about, now),
            Packet::Data { id, bytes } => return self.receive_data(state, id, bytes, now),
            Packet::End { id } => state.receive_end(id),
            Packet::Refused { id, about } => state.finish_with(id, Ended::Refused(refusal(&about))),
            Packet::Reset { id, code } => state.finish_with(id, Ended::Reset(code)),
            Packet::Window { id, grant } => state.receive_window(id, grant),
            Packet::Ping { token } => return Ok(Some(Incoming::Ping(token))),
            Packet::Terminate { about } => return Ok(Some(Incoming::Terminate(about))),
            Packet::GoAway { about } => return Ok(Some(Incoming::GoAway(about))),
        }
        Ok(None)
    }

    pub(super) fn heard(&self, now: Instant) {
        self.state.borrow_mut().last_heard = now;
    }

    pub(super) fn pong(&self, payload: Bytes) {
        self.state.borrow_mut().outbox.pong(payload);
    }

    fn receive_init(
        &self,
        state: &mut State,
        id: StreamId,
        about: Bytes,
        now: Instant,
    ) -> Result<Option<Incoming>, Lost> {
        if state.settings.role == Role::Server {
            return Err(Lost::Protocol("a client does not open streams"));
        }
        // In protocol 1 the first Data opens the stream.
        if state.settings.protocol == 1 {
            return Ok(None);
        }
        if state.streams.contains_key(&id) {
            return Err(Lost::Protocol("a stream id was used twice"));
        }
        Ok(self.accept(state, id, about, now))
    }

    fn receive_data(
        &self,
        state: &mut State,
        id: StreamId,
        bytes: Bytes,
        now: Instant,
    ) -> Result<Option<Incoming>, Lost> {
        let mut opened = None;
        if !state.streams.contains_key(&id) {
            if state.settings.protocol != 1 || state.settings.role != Role::Client || state.over.contains(&id)
            {
                return Ok(None);
            }
            opened = self.accept(state, id, Bytes::new(), now);
        }
        if let Some(shared) = state.streams.get(&id).cloned() {
            state.receive_bytes(&shared, bytes, now);
        }
        Ok(opened)
    }

    /// A stream that the other side opened; `None` when there are too many, which it is told.
    fn accept(&self, state: &mut State, id: StreamId, about: Bytes, now: Instant) -> Option<Incoming> {
        let mut cell = state.new_cell(id, now);
        if state.streams.len() >= state.settings.max_streams {
            let refusal =
                Refusal { code: "too_many".into(), message: "too many streams".into(), retry_after: Some(1) };
            cell.abort = Some(Abort::refused(&refusal, state.settings.protocol));
            cell.is_listed = false;
            let shared = Rc::new(RefCell::new(cell));
            state.outbox.urgent(&shared, &mut shared.borrow_mut());
            return None;
        }
        state.widen(&mut cell);
        let shared = Rc::new(RefCell::new(cell));
        state.streams.insert(id, shared.clone());
        if shared.borrow().grant > 0 {
            state.outbox.urgent(&shared, &mut shared.borrow_mut());
        }
        Some(Incoming::Opened(Stream::new(shared, self.clone()), about))
    }
}

impl State {
    fn receive_bytes(&mut self, shared: &SharedCell, bytes: Bytes, now: Instant) {
        let mut cell = shared.borrow_mut();
        let cell = &mut *cell;
        if bytes.is_empty() || cell.received_end {
            return;
        }
        self.last_data = now;
        if self.settings.protocol == 1 {
            self.unread += bytes.len();
        } else {
            let grown = cell.window.grown();
            if cell.window.received(bytes.len(), now, self.grown < MAX_GROWTH).is_err() {
                cell.end(Ended::Reset(ResetCode::FlowControl));
                self.remove(cell);
                cell.abort = Some(Abort::Reset(ResetCode::FlowControl));
                self.outbox.urgent(shared, cell);
                return;
            }
            if cell.window.grown() > grown {
                self.learned = cell.window.size();
            }
            self.grown = self.grown + cell.window.grown() - grown;
        }
        if cell.is_detached {
            // Nobody reads it, but the other side may need room to come to its end.
            self.consume(shared, cell, bytes.len());
            return;
        }
        cell.unread += bytes.len();
        cell.inbox.push(bytes);
        cell.wake_reader();
    }

    fn receive_end(&mut self, id: StreamId) {
        self.over.retain(|over| *over != id);
        let Some(shared) = self.streams.get(&id).cloned() else { return };
        let mut cell = shared.borrow_mut();
        cell.received_end = true;
        cell.wake_reader();
        if cell.has_finished() {
            self.remove(&mut cell);
        }
    }

    fn receive_window(&mut self, id: StreamId, grant: u32) {
        let Some(shared) = self.streams.get(&id).cloned() else { return };
        let mut cell = shared.borrow_mut();
        cell.credit.grant(grant);
        self.outbox.take_turn(&shared, &mut cell);
    }

    /// Reset and Refused: what has come may still be read, nothing more is sent.
    /// Its unread bytes stay counted until they are read or the handle is dropped.
    fn finish_with(&mut self, id: StreamId, ended: Ended) {
        let Some(shared) = self.streams.get(&id).cloned() else { return };
        let mut cell = shared.borrow_mut();
        self.remove(&mut cell);
        cell.end(ended);
    }
}

/// Protocol 1 sends no reason.
fn refusal(about: &[u8]) -> Refusal {
    serde_json::from_slice(about).unwrap_or_else(|_| Refusal {
        code: "connection_refused".into(),
        message: "connection refused".into(),
        retry_after: None,
    })
}
