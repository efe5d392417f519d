//! Bytes that wait. What is read are slices of a block that many share ([`crate::read_buffer`]); a small slice that had
//! to wait would keep its whole block. So what joins a queue is copied together, and only large pieces stay slices.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};

/// A waiting piece of at least this size may keep its block, in bytes: a sixteenth of it.
const LARGE: usize = 16 * 1024;

#[derive(Default)]
pub struct Backlog {
    pieces: VecDeque<Bytes>,
    /// Small pieces, behind all others.
    tail: BytesMut,
    len: usize,
}

impl Backlog {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn push(&mut self, piece: Bytes) {
        if piece.is_empty() {
            return;
        }
        let is_first = self.is_empty();
        self.len += piece.len();
        if is_first || piece.len() >= LARGE {
            self.seal();
            self.pieces.push_back(piece);
        } else {
            self.tail.extend_from_slice(&piece);
            if self.tail.len() >= LARGE {
                self.seal();
            }
        }
    }

    /// The next bytes, as they are.
    pub fn pop(&mut self) -> Option<Bytes> {
        if self.pieces.is_empty() {
            self.seal();
        }
        let piece = self.pieces.pop_front()?;
        self.len -= piece.len();
        Some(piece)
    }

    /// The next bytes, at most `most` of them.
    pub fn pop_at_most(&mut self, most: usize) -> Option<Bytes> {
        let mut piece = self.pop()?;
        if piece.len() > most {
            let rest = piece.split_off(most);
            self.len += rest.len();
            self.pieces.push_front(rest);
        }
        Some(piece)
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    fn seal(&mut self) {
        if !self.tail.is_empty() {
            self.pieces.push_back(std::mem::take(&mut self.tail).freeze());
        }
    }
}

/// Takes bytes that were written off the front.
pub fn advance(pieces: &mut VecDeque<Bytes>, mut written: usize) {
    while let Some(front) = pieces.front_mut() {
        let step = written.min(front.len());
        front.advance(step);
        written -= step;
        if !front.is_empty() {
            return;
        }
        pieces.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn order_and_length_are_kept(
            steps in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..20_000), 1usize..30_000, any::<bool>()), 1..40),
        ) {
            let mut backlog = Backlog::default();
            let (mut pushed, mut popped) = (Vec::new(), Vec::new());
            for (piece, most, pops) in steps {
                pushed.extend_from_slice(&piece);
                backlog.push(piece.into());
                if pops && let Some(piece) = backlog.pop_at_most(most) {
                    prop_assert!(!piece.is_empty() && piece.len() <= most);
                    popped.extend_from_slice(&piece);
                }
                prop_assert_eq!(backlog.len(), pushed.len() - popped.len());
            }
            while let Some(piece) = backlog.pop() {
                popped.extend_from_slice(&piece);
            }
            prop_assert_eq!(pushed, popped);
        }
    }

    #[test]
    fn what_is_written_is_taken_off_the_front() {
        let mut pieces = VecDeque::from([&b""[..], b"abc", b"de", b""].map(Bytes::from_static));
        advance(&mut pieces, 4);
        assert_eq!(pieces, ["e", ""]);
        advance(&mut pieces, 1);
        assert!(pieces.is_empty());
    }

    #[test]
    fn small_pieces_that_wait_do_not_keep_their_blocks() {
        let mut backlog = Backlog::default();
        for _ in 0..1000 {
            backlog.push(Bytes::from(vec![7; 256 * 1024]).slice(..10));
        }
        assert_eq!(backlog.pieces.len(), 1);
        assert_eq!(backlog.tail.len(), 9990);
    }
}
