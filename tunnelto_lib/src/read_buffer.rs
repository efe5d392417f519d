//! Reading without holding memory while nothing comes.
//!
//! All sockets of a thread read into one block after the other; what was read is handed on as slices of it. A socket
//! keeps bytes of its own only while a message is incomplete. Blocks go round: one whose slices are all gone is read
//! into again, since fresh memory costs a page fault for every 4 KiB of it.

use std::{
    cell::RefCell,
    collections::VecDeque,
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncRead;
use tokio_util::io::poll_read_buf;

/// Bytes a read may return at once, so that one system call serves several packets.
const BLOCK: usize = 256 * 1024;

/// A read into less room than this is not worth its system call; another block is taken instead.
const LEAST_ROOM: usize = 16 * 1024;

/// Blocks that a thread keeps beside the one it reads into, in case their slices are gone by the time they are wanted.
const SPARE: usize = 3;

thread_local! {
    static BLOCKS: RefCell<Blocks> = RefCell::default();
}

/// What was read from one source and not yet used.
#[derive(Default)]
pub struct ReadBuffer {
    pub bytes: BytesMut,
}

/// The blocks of a thread.
#[derive(Default)]
struct Blocks {
    /// The free end of the block that is read into.
    free: BytesMut,
    /// Others, the one that was filled first in front.
    spare: VecDeque<BytesMut>,
}

impl ReadBuffer {
    /// Reads once, appending. `Ok(0)` is the end of the source. Cancel-safe. While it waits, a short message that has not
    /// come whole keeps only its own bytes.
    pub fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut (impl AsyncRead + Unpin),
    ) -> Poll<io::Result<usize>> {
        BLOCKS.with_borrow_mut(|blocks| {
            blocks.make_room(&mut self.bytes);
            let read = poll_read_buf(Pin::new(source), cx, &mut blocks.free);
            match read {
                Poll::Pending => self.compact(),
                // Behind the rest of a message, or with nothing before it: no byte moves.
                Poll::Ready(Ok(1..)) => self.bytes.unsplit(blocks.free.split()),
                Poll::Ready(_) => {}
            }
            read
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
    fn compact(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = BytesMut::new();
        } else if self.bytes.len() < LEAST_ROOM {
            self.bytes = BytesMut::from(&self.bytes[..]);
        }
    }
}

impl Blocks {
    /// Makes `free` follow right behind `bytes`, with room to read into.
    fn make_room(&mut self, bytes: &mut BytesMut) {
        let follows = bytes.is_empty() || std::ptr::eq(bytes.as_ptr_range().end, self.free.as_ptr());
        if follows && self.free.capacity() >= LEAST_ROOM {
            return;
        }
        if self.free.capacity() < bytes.len() + LEAST_ROOM {
            self.next(bytes.len());
        }
        if !bytes.is_empty() {
            self.free.extend_from_slice(bytes);
            *bytes = self.free.split();
        }
    }

    /// Takes a block whose slices are gone, or else a new one.
    fn next(&mut self, behind: usize) {
        let size = BLOCK.max(2 * behind);
        self.spare.push_back(std::mem::take(&mut self.free));
        let mut all = self.spare.iter_mut();
        self.free = match all.position(|block| block.try_reclaim(size)) {
            Some(at) => self.spare.remove(at).unwrap_or_default(),
            None => BytesMut::with_capacity(size),
        };
        if self.spare.len() > SPARE {
            self.spare.pop_front();
        }
    }
}

/// One read into the thread's block, handed on whole.
pub fn poll_read_slice(
    cx: &mut Context<'_>,
    source: &mut (impl AsyncRead + Unpin),
) -> Poll<io::Result<Bytes>> {
    let mut buffer = ReadBuffer::default();
    buffer.poll_fill(cx, source).map_ok(|_| buffer.take())
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    proptest! {
        /// Sources share the blocks; messages stay incomplete, are taken in parts, and their slices live on.
        #[test]
        fn sources_never_get_each_others_bytes(
            steps in proptest::collection::vec((0usize..3, 1usize..90_000, 0usize..120_000, any::<bool>()), 1..60),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let (mut sources, mut sinks): (Vec<_>, Vec<_>) = (0..3).map(|_| duplex(1 << 20)).unzip();
                let mut buffers: Vec<_> = (0..3).map(|_| ReadBuffer::default()).collect();
                let (mut written, mut read) = ([0usize; 3], [0usize; 3]);
                let mut kept = Vec::new();
                let byte = |source: usize, at: usize| (at * 3 + (at >> 9) + source * 85) as u8;
                for (source, send, take, keeps) in steps {
                    if written[source] - read[source] < 500_000 {
                        let bytes: Vec<_> = (written[source]..written[source] + send).map(|at| byte(source, at)).collect();
                        sinks[source].write_all(&bytes).await.unwrap();
                        written[source] += send;
                    }
                    let mut cx = Context::from_waker(Waker::noop());
                    let _ = buffers[source].poll_fill(&mut cx, &mut sources[source]);
                    let bytes = &mut buffers[source].bytes;
                    let piece = bytes.split_to(take.min(bytes.len())).freeze();
                    kept.push((source, read[source], piece.clone()));
                    read[source] += piece.len();
                    if !keeps {
                        kept.clear();
                    }
                    for (source, from, piece) in &kept {
                        let wanted = (*from..from + piece.len()).map(|at| byte(*source, at));
                        assert!(piece.iter().copied().eq(wanted), "source {source} at {from}");
                    }
                }
                drop(sinks);
                for source in 0..3 {
                    let mut rest = std::mem::take(&mut buffers[source].bytes).to_vec();
                    sources[source].read_to_end(&mut rest).await.unwrap();
                    assert_eq!(rest.len(), written[source] - read[source]);
                }
            });
        }
    }

    #[test]
    fn a_block_whose_slices_are_gone_is_read_into_again() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (mut source, mut sink) = duplex(BLOCK);
            let block = vec![7; BLOCK / 2];
            let mut places = std::collections::HashSet::new();
            for _ in 0..100 {
                sink.write_all(&block).await.unwrap();
                let mut buffer = ReadBuffer::default();
                let mut cx = Context::from_waker(Waker::noop());
                while buffer.bytes.len() < block.len() {
                    assert!(buffer.poll_fill(&mut cx, &mut source).is_ready());
                }
                places.insert(buffer.bytes.as_ptr());
            }
            assert!(
                places.len() <= 3,
                "{} places for 100 reads, each given back before the next",
                places.len()
            );
        });
    }
}
