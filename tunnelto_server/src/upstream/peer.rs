//! One request brought to the instance that serves its tunnel: towards the edge it is a stream like a client's.

use std::{
    cell::RefCell,
    collections::VecDeque,
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use socket2::SockRef;
use tokio::{
    io::AsyncWrite,
    net::TcpStream,
    time::{Sleep, sleep},
};
use tunnelto_lib::{
    backlog::advance, mux::Ended, name::Label, packet::ResetCode, read_buffer::poll_read_slice,
};

use crate::{
    gauge::Counted,
    limits::HOP_ANSWER,
    network::{Directory, hop::MINE, pace::Pace, peer::Peer, proxy::Reached},
};

/// Slices of one write.
const MAX_SLICES: usize = 16;

pub struct PeerStream {
    state: RefCell<State>,
    /// To be doubted if it does not take the request.
    peer: Arc<Peer>,
    name: Label,
    directory: Directory,
    _place: Counted,
}

struct State {
    socket: TcpStream,
    queue: VecDeque<Bytes>,
    /// What came behind the byte that says whose the tunnel is.
    early: Bytes,
    pace: Pace,
    /// Nothing more is sent, or read, before.
    send_pause: Pause,
    read_pause: Pause,
    has_taken: bool,
    /// How long it may take to say so.
    patience: Pin<Box<Sleep>>,
    /// Who waits for the answer also writes what is queued meanwhile.
    reader: Option<Waker>,
    is_finishing: bool,
    /// The exchange is over, so that nothing is cut off by hanging up.
    is_over: bool,
}

impl PeerStream {
    pub fn new(reached: Reached, peer: Arc<Peer>, name: Label, directory: Directory) -> Self {
        let Reached { socket, header, pace, place } = reached;
        let state = State {
            socket,
            queue: VecDeque::from([header.into()]),
            early: Bytes::new(),
            pace,
            send_pause: Pause::default(),
            read_pause: Pause::default(),
            has_taken: false,
            patience: Box::pin(sleep(HOP_ANSWER)),
            reader: None,
            is_finishing: false,
            is_over: false,
        };
        Self { state: RefCell::new(state), peer, name, directory, _place: place }
    }

    /// Queues bytes; [`Self::poll_ready`] and [`Self::poll_recv`] write them.
    pub fn send(&self, bytes: Bytes) -> Result<(), Ended> {
        if !bytes.is_empty() {
            let mut state = self.state.borrow_mut();
            let wait = state.pace.take(bytes.len());
            state.send_pause.set(wait);
            state.queue.push_back(bytes);
            state.wake_reader();
        }
        Ok(())
    }

    /// Whether more can be sent: the instance has taken the request and all of it so far. Until then no more is read
    /// from the visitor, so that it can be brought elsewhere.
    pub fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        let mut state = self.state.borrow_mut();
        let flushed = state.poll_flush(cx);
        ready!(self.poll_taken(&mut state, cx))?;
        ready!(state.send_pause.poll(cx));
        flushed.map_err(|_| Ended::Lost)
    }

    /// `None` at the end of the answer.
    pub fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Ended>> {
        let mut state = self.state.borrow_mut();
        // It may answer without having read everything.
        let _ = state.poll_flush(cx);
        ready!(self.poll_taken(&mut state, cx))?;
        if !state.early.is_empty() {
            return Poll::Ready(Ok(Some(std::mem::take(&mut state.early))));
        }
        ready!(state.read_pause.poll(cx));
        let Poll::Ready(read) = poll_read_slice(cx, &mut state.socket) else {
            state.reader = Some(cx.waker().clone());
            return Poll::Pending;
        };
        let read = read.map_err(|_| Ended::Lost)?;
        if read.is_empty() {
            state.is_over = true;
            return Poll::Ready(Ok(None));
        }
        let wait = state.pace.take(read.len());
        state.read_pause.set(wait);
        Poll::Ready(Ok(Some(read)))
    }

    /// Waits for the byte that says whose the tunnel is.
    fn poll_taken(&self, state: &mut State, cx: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        if state.has_taken {
            return Poll::Ready(Ok(()));
        }
        let Poll::Ready(read) = poll_read_slice(cx, &mut state.socket) else {
            // Its system may answer for an instance that is frozen.
            return state.patience.as_mut().poll(cx).map(|()| Err(Ended::Lost));
        };
        let mut read = read.map_err(|_| Ended::Lost)?;
        match read.first() {
            Some(&MINE) => {
                read.advance(1);
                (state.has_taken, state.early) = (true, read);
                Poll::Ready(Ok(()))
            }
            // Nothing of the request was used.
            Some(_) => {
                self.directory.doubt(&self.peer, &self.name);
                Poll::Ready(Err(Ended::Reset(ResetCode::Unused)))
            }
            None => Poll::Ready(Err(Ended::Lost)),
        }
    }

    pub fn try_recv(&self) -> Option<Bytes> {
        let mut state = self.state.borrow_mut();
        (!state.early.is_empty()).then(|| std::mem::take(&mut state.early))
    }

    pub fn has_unread(&self) -> bool {
        !self.state.borrow().early.is_empty()
    }

    /// Nothing more will be sent.
    pub fn finish(&self) {
        let mut state = self.state.borrow_mut();
        state.is_finishing = true;
        state.wake_reader();
    }

    /// The answer is whole.
    pub fn conclude(&self) {
        self.state.borrow_mut().is_over = true;
    }
}

/// One direction is ahead of its pace.
#[derive(Default)]
struct Pause(Option<Pin<Box<Sleep>>>);

impl Pause {
    fn set(&mut self, wait: Option<Duration>) {
        if let Some(wait) = wait {
            self.0 = Some(Box::pin(sleep(wait)));
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(pause) = &mut self.0 {
            ready!(pause.as_mut().poll(cx));
            self.0 = None;
        }
        Poll::Ready(())
    }
}

impl State {
    fn wake_reader(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.queue.is_empty() {
            let slices: Vec<_> =
                self.queue.iter().take(MAX_SLICES).map(|bytes| IoSlice::new(bytes)).collect();
            let written = ready!(Pin::new(&mut self.socket).poll_write_vectored(cx, &slices))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            advance(&mut self.queue, written);
        }
        if self.is_finishing {
            ready!(Pin::new(&mut self.socket).poll_shutdown(cx))?;
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for PeerStream {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        if !state.is_over {
            // A reset: the other instance would take an end for half of one. Fails only where that is known already.
            let _ = SockRef::from(&state.socket).set_linger(Some(Duration::ZERO));
        }
    }
}
