//! Reading without holding memory while nothing comes.
//!
//! All sockets of a thread read into one block; what was read is handed on as slices of it. A socket keeps
//! bytes of its own only while a message is incomplete.

use std::{
    cell::RefCell,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncRead;
use tokio_util::io::poll_read_buf;

/// Bytes a read may return at once: four full Data packets, so that one system call serves several.
const BLOCK: usize = 256 * 1024;

/// A read into less room than this is not worth its system call; a new block is taken instead.
const LEAST_ROOM: usize = 16 * 1024;

thread_local! {
    /// The block that this thread's idle readers share.
    static SHARED: RefCell<BytesMut> = RefCell::new(BytesMut::new());
}

/// What was read from one source and not yet used.
#[derive(Default)]
pub struct ReadBuffer {
    pub bytes: BytesMut,
}

impl ReadBuffer {
    /// Reads once, appending. `Ok(0)` is the end of the source. Cancel-safe.
    pub fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut (impl AsyncRead + Unpin),
    ) -> Poll<io::Result<usize>> {
        if !self.bytes.is_empty() {
            make_room(&mut self.bytes, BLOCK / 2);
            return poll_read_buf(Pin::new(source), cx, &mut self.bytes);
        }
        SHARED.with_borrow_mut(|block| {
            make_room(block, BLOCK);
            let count = ready!(poll_read_buf(Pin::new(source), cx, block))?;
            self.bytes = block.split();
            Poll::Ready(Ok(count))
        })
    }

    pub async fn fill(&mut self, source: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_fill(cx, source)).await
    }

    /// Everything that is here.
    pub fn take(&mut self) -> Bytes {
        std::mem::take(&mut self.bytes).freeze()
    }

    /// Gives up a share of a block that others still read into, keeping only the bytes themselves.
    pub fn compact(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = BytesMut::new();
        } else if self.bytes.len() < LEAST_ROOM {
            self.bytes = BytesMut::from(&self.bytes[..]);
        }
    }
}

/// One read into the shared block, handed on whole.
pub fn poll_read_slice(
    cx: &mut Context<'_>,
    source: &mut (impl AsyncRead + Unpin),
) -> Poll<io::Result<Bytes>> {
    let mut buffer = ReadBuffer::default();
    ready!(buffer.poll_fill(cx, source))?;
    Poll::Ready(Ok(buffer.take()))
}

fn make_room(block: &mut BytesMut, size: usize) {
    if block.capacity() - block.len() < LEAST_ROOM {
        block.reserve(size);
    }
}
