//! A visitor's connection: whole heads out of pieces, answers of our own, and a clean goodbye.

use std::{io, net::SocketAddr};

use bytes::{Buf, Bytes};
use http::Method;
use memchr::memchr;
use tokio::time::{Instant, timeout_at};
use tunnelto_lib::read_buffer::ReadBuffer;

use crate::{
    edge::{
        listener::{Accepted, Arrival, Place},
        pages::{Connection, Page},
    },
    error::Refusal,
    io::{Timer, finish, write},
    limits::{HEAD_TIME, KEEP_ALIVE, LINGER, LINGER_BYTES, MAX_HEAD, VISITOR_STALL},
    socket::Socket,
};

pub struct Visitor {
    pub socket: Socket,
    /// Read and not yet used.
    pub buffer: ReadBuffer,
    pub peer: SocketAddr,
    pub timer: Timer,
    pub place: Place,
    pub arrival: Arrival,
}

/// Where the search for a head's end stands.
#[derive(Default)]
struct HeadScan {
    /// Bytes looked at.
    seen: usize,
    /// Where the present line began.
    line: usize,
}

impl Visitor {
    pub fn new(accepted: Accepted, first: ReadBuffer) -> Self {
        Self {
            socket: accepted.socket,
            buffer: first,
            peer: accepted.peer,
            timer: Timer::default(),
            place: accepted.place,
            arrival: accepted.arrival,
        }
    }

    /// The next request's head, empty line included. `None` when the visitor is done.
    pub async fn next_head(&mut self) -> Result<Option<Bytes>, Refusal> {
        self.skip_empty_lines();
        while self.buffer.bytes.is_empty() {
            match self.timer.within(KEEP_ALIVE, self.buffer.fill(&mut self.socket)).await {
                Ok(Ok(count)) if count > 0 => self.skip_empty_lines(),
                _ => return Ok(None),
            }
        }
        let deadline = Instant::now() + HEAD_TIME;
        let mut scan = HeadScan::default();
        loop {
            // An empty line may have come in two pieces.
            if self.buffer.bytes.starts_with(b"\r\n") && scan.line <= 2 {
                self.skip_empty_lines();
                scan = HeadScan::default();
            }
            let size = scan.end(&self.buffer.bytes)?;
            if size.unwrap_or(self.buffer.bytes.len()) > MAX_HEAD {
                return Err(Refusal::HeadTooLarge);
            }
            if let Some(size) = size {
                // Copied, since parts of it live as long as the exchange and would keep a block that many share.
                return Ok(Some(Bytes::copy_from_slice(&self.buffer.bytes.split_to(size))));
            }
            match timeout_at(deadline, self.buffer.fill(&mut self.socket)).await {
                Ok(Ok(0)) => return Err(Refusal::BadRequest("incomplete head")),
                Ok(Ok(_)) => {}
                Ok(Err(_)) => return Ok(None),
                Err(_) => return Err(Refusal::RequestTimeout),
            }
        }
    }

    /// RFC 9112 section 2.2 allows them before a request line.
    fn skip_empty_lines(&mut self) {
        while self.buffer.bytes.starts_with(b"\r\n") {
            self.buffer.bytes.advance(2);
        }
    }

    pub async fn answer(&mut self, page: &Page, method: &Method, connection: Connection) -> io::Result<()> {
        let bytes = page.to_http1(method, connection);
        self.write(&bytes).await
    }

    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.timer.within(VISITOR_STALL, write(&mut self.socket, bytes)).await;
        written.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Ends the connection after an answer that left some of the request unread: closing at once would reset the
    /// connection, and the answer would be lost on its way (RFC 9112 section 9.6).
    pub async fn linger(mut self) {
        if finish(&mut self.socket, LINGER).await.is_err() {
            return;
        }
        let deadline = Instant::now() + LINGER;
        let mut left = LINGER_BYTES;
        while let Ok(Ok(count)) = timeout_at(deadline, self.buffer.fill(&mut self.socket)).await {
            if count == 0 || count >= left {
                return;
            }
            left -= count;
            self.buffer = ReadBuffer::default();
        }
    }

    /// Breaks the connection so that the visitor notices that its answer is not whole.
    pub fn abort(self) {
        self.socket.break_off();
    }
}

impl HeadScan {
    /// The size of a whole head. Lines end with CR LF and nothing else.
    fn end(&mut self, bytes: &[u8]) -> Result<Option<usize>, Refusal> {
        while let Some(at) = memchr(b'\n', &bytes[self.seen..]) {
            let lf = self.seen + at;
            if lf == 0 || bytes[lf - 1] != b'\r' {
                return Err(Refusal::BadRequest("line that ends without CR"));
            }
            self.seen = lf + 1;
            if lf - self.line == 1 {
                return Ok(Some(lf + 1));
            }
            self.line = lf + 1;
        }
        self.seen = bytes.len();
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_head_ends_at_its_empty_line() {
        let end = |bytes: &[u8]| HeadScan::default().end(bytes);
        assert_eq!(end(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nrest"), Ok(Some(27)));
        assert_eq!(end(b"GET / HTTP/1.1\r\nHost: a\r\n\r"), Ok(None));
        assert!(end(b"GET / HTTP/1.1\nHost: a\r\n\r\n").is_err());
        assert!(end(b"GET / HTTP/1.1\r\nHost: a\r\n\n").is_err());
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(cut in 1usize..40) {
            let head = b"GET / HTTP/1.1\r\nHost: a\r\nX: yyyyyyyyyyyy\r\n\r\n";
            let mut scan = HeadScan::default();
            let mut end = None;
            let mut have = 0;
            while end.is_none() {
                prop_assert!(have < head.len());
                have = (have + cut).min(head.len());
                end = scan.end(&head[..have]).unwrap();
            }
            prop_assert_eq!(end, Some(head.len()));
        }
    }
}
