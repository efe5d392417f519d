//! Where a body ends (RFC 9112 sections 6 and 7). Bodies are checked as they pass and are not copied.

use std::ops::Range;

use crate::edge::forwarded::is_said_by_us;

/// A chunk-size line with its extensions, in bytes: sizes are short, extensions are rare.
const MAX_CHUNK_LINE: usize = 4096;

/// All trailer fields together, in bytes.
const MAX_TRAILERS: usize = 16 * 1024;

const NO_TRAILERS: [&str; 7] =
    ["content-length", "transfer-encoding", "host", "connection", "authorization", "cookie", "trailer"];

/// What is left of one body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// Bytes still to come.
    Length(u64),
    Chunked(Chunks),
    /// An answer that ends with its connection.
    UntilClose,
}

/// The position within a chunked body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunks {
    state: State,
    /// Bytes of the present line.
    seen: usize,
    trailers: Vec<u8>,
    whose: Whose,
}

/// A visitor's body is held to more: what frames, routes or names the visitor must not come in behind it, where some
/// services merge it into the head (RFC 9110 section 6.5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    Visitors,
    Services,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Hexadecimal digits of a size; the value so far, and how many digits.
    Size(u64, u8),
    /// Blanks behind the size, which lead to an extension or to the line's end.
    Blank(u64),
    /// An extension, up to the line's end.
    Extension(u64),
    SizeLf(u64),
    Data(u64),
    DataCr,
    DataLf,
    /// At the beginning of a trailer line.
    TrailerStart,
    /// Where the name begins among the trailers.
    TrailerName(usize),
    TrailerValue,
    TrailerLf,
    LastLf,
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed chunked body")]
pub struct BadChunk;

impl Body {
    pub const NONE: Self = Self::Length(0);

    pub fn chunked(whose: Whose) -> Self {
        Self::Chunked(Chunks { state: State::Size(0, 0), seen: 0, trailers: Vec::new(), whose })
    }

    pub fn is_done(&self) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            Self::Chunked(chunks) => chunks.state == State::Done,
            Self::UntilClose => false,
        }
    }

    /// How many of the next `bytes` belong to the body, all of them valid as far as they go.
    pub fn take(&mut self, bytes: &[u8]) -> Result<usize, BadChunk> {
        match self {
            Self::Length(left) => {
                let count = (bytes.len() as u64).min(*left);
                *left -= count;
                Ok(count as usize)
            }
            Self::Chunked(chunks) => {
                let mut at = 0;
                while at < bytes.len() && chunks.state != State::Done {
                    at += chunks.step(&bytes[at..])?.0;
                }
                Ok(at)
            }
            Self::UntilClose => Ok(bytes.len()),
        }
    }

    /// As [`Body::take`], and where among the taken bytes the content itself is: for those who frame anew.
    pub fn take_content(&mut self, bytes: &[u8], content: &mut Vec<Range<usize>>) -> Result<usize, BadChunk> {
        content.clear();
        let Self::Chunked(chunks) = self else {
            let count = self.take(bytes)?;
            if count > 0 {
                content.push(0..count);
            }
            return Ok(count);
        };
        let mut at = 0;
        while at < bytes.len() && chunks.state != State::Done {
            let (count, is_content) = chunks.step(&bytes[at..])?;
            if is_content {
                content.push(at..at + count);
            }
            at += count;
        }
        Ok(at)
    }

    /// The fields behind the last chunk, as they came, each with its line end.
    pub fn trailers(&self) -> &[u8] {
        match self {
            Self::Chunked(chunks) => &chunks.trailers,
            Self::Length(_) | Self::UntilClose => &[],
        }
    }
}

impl Chunks {
    fn forbids(&self, trailer: &[u8]) -> bool {
        self.whose == Whose::Visitors && is_no_trailer(std::str::from_utf8(trailer).unwrap_or_default())
    }

    /// Consumes some of `bytes` (not empty); says how many, and whether they are content.
    fn step(&mut self, bytes: &[u8]) -> Result<(usize, bool), BadChunk> {
        let byte = bytes[0];
        match self.state {
            State::Size(..) | State::Blank(_) | State::Extension(_) => self.seen += 1,
            State::TrailerStart if byte == b'\r' => {}
            State::TrailerStart | State::TrailerName(_) | State::TrailerValue | State::TrailerLf => {
                if self.trailers.len() == MAX_TRAILERS {
                    return Err(BadChunk);
                }
                self.trailers.push(byte);
            }
            _ => {}
        }
        self.state = match self.state {
            State::Size(size, digits) => match byte {
                // Fifteen digits are an exbibyte each; more is an attack.
                _ if byte.is_ascii_hexdigit() && digits < 15 => {
                    let digit = (byte as char).to_digit(16).ok_or(BadChunk)?;
                    State::Size(size * 16 + u64::from(digit), digits + 1)
                }
                b'\r' if digits > 0 => State::SizeLf(size),
                b';' if digits > 0 => State::Extension(size),
                b' ' | b'\t' if digits > 0 => State::Blank(size),
                _ => return Err(BadChunk),
            },
            State::Blank(_) | State::Extension(_) if self.seen > MAX_CHUNK_LINE => return Err(BadChunk),
            State::Blank(size) => match byte {
                b'\r' => State::SizeLf(size),
                b';' => State::Extension(size),
                b' ' | b'\t' => State::Blank(size),
                _ => return Err(BadChunk),
            },
            State::Extension(size) => match byte {
                b'\r' => State::SizeLf(size),
                _ if is_text(byte) => State::Extension(size),
                _ => return Err(BadChunk),
            },
            State::SizeLf(size) => {
                expect(byte, b'\n')?;
                self.seen = 0;
                if size == 0 { State::TrailerStart } else { State::Data(size) }
            }
            State::Data(left) => {
                let count = left.min(bytes.len() as u64);
                self.state = if count == left { State::DataCr } else { State::Data(left - count) };
                return Ok((count as usize, true));
            }
            State::DataCr => expect(byte, b'\r').map(|()| State::DataLf)?,
            State::DataLf => expect(byte, b'\n').map(|()| State::Size(0, 0))?,
            State::TrailerStart => match byte {
                b'\r' => State::LastLf,
                _ if is_token(byte) => State::TrailerName(self.trailers.len() - 1),
                _ => return Err(BadChunk),
            },
            State::TrailerName(start) => match byte {
                b':' if self.forbids(&self.trailers[start..self.trailers.len() - 1]) => return Err(BadChunk),
                b':' => State::TrailerValue,
                _ if is_token(byte) => State::TrailerName(start),
                _ => return Err(BadChunk),
            },
            State::TrailerValue => match byte {
                b'\r' => State::TrailerLf,
                _ if is_text(byte) => State::TrailerValue,
                _ => return Err(BadChunk),
            },
            State::TrailerLf => expect(byte, b'\n').map(|()| State::TrailerStart)?,
            State::LastLf => expect(byte, b'\n').map(|()| State::Done)?,
            State::Done => return Ok((0, false)),
        };
        Ok((1, false))
    }
}

/// What a visitor may not send behind its body, in either version of HTTP.
pub fn is_no_trailer(name: &str) -> bool {
    is_said_by_us(name) || NO_TRAILERS.iter().any(|other| name.eq_ignore_ascii_case(other))
}

/// What may stand in a value (RFC 9110 section 5.5).
fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

fn expect(byte: u8, wanted: u8) -> Result<(), BadChunk> {
    if byte == wanted { Ok(()) } else { Err(BadChunk) }
}

/// RFC 9110 section 5.6.2.
pub fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn taken(wire: &[u8]) -> Result<(usize, bool), BadChunk> {
        let mut body = Body::chunked(Whose::Visitors);
        let count = body.take(wire)?;
        Ok((count, body.is_done()))
    }

    #[test]
    fn whole_chunked_bodies() {
        for wire in [
            &b"0\r\n\r\n"[..],
            b"5\r\nhello\r\n0\r\n\r\n",
            b"5;ext=1\r\nhello\r\n0\r\nX-Trailer: t\r\nY: u\r\n\r\n",
            b"00A \r\n0123456789\r\n0 ; last\r\n\r\n",
        ] {
            assert_eq!(taken(wire), Ok((wire.len(), true)), "{wire:?}");
            let mut with_more = wire.to_vec();
            with_more.extend(b"GET / HTTP/1.1");
            assert_eq!(taken(&with_more), Ok((wire.len(), true)));
        }
    }

    #[test]
    fn trailers_are_kept_as_they_came() {
        let mut body = Body::chunked(Whose::Visitors);
        body.take(b"0\r\nX: 1\r\nY: 2\r\n\r\n").unwrap();
        assert_eq!(body.trailers(), b"X: 1\r\nY: 2\r\n");
    }

    #[test]
    fn malformed_chunked_bodies() {
        for wire in [
            &b"\r\n"[..],
            b"0x5\r\n",
            b"-5\r\n",
            b"+5\r\n",
            b"g\r\n",
            b"5\nhello",
            b"5\rhello",
            b"5\r\nhelloXX",
            b"5\r\nhello\n0",
            b"10000000000000005\r\n",
            b"2;x\nxx\r\n",
            b"0\r\n\n",
            b"0\r\n X: folded\r\n\r\n",
            b"0\r\nX: a\n\r\n",
            b"5 0\r\nhello",
            b"5;\x01\r\nhello",
            b"0\r\na\r\n\r\n",
            b"0\r\nContent-Length: 5\r\n\r\n",
            b"0\r\nX-Forwarded-For: 6.6.6.6\r\n\r\n",
        ] {
            assert_eq!(taken(wire), Err(BadChunk), "{:?}", String::from_utf8_lossy(wire));
        }
    }

    #[test]
    fn endless_extensions_and_trailers_are_cut() {
        let mut wire = b"1;".to_vec();
        wire.resize(MAX_CHUNK_LINE + 10, b'x');
        assert_eq!(taken(&wire), Err(BadChunk));
        let mut wire = b"0\r\nX: ".to_vec();
        wire.resize(MAX_TRAILERS + 10, b'x');
        assert_eq!(taken(&wire), Err(BadChunk));
        let wire = [&b"0\r\n"[..], &b"a:\r\n".repeat(MAX_TRAILERS)].concat();
        assert_eq!(taken(&wire), Err(BadChunk));
    }

    proptest! {
        /// Any content, in any chunks, cut anywhere: the same content comes out.
        #[test]
        fn content_survives(
            chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..200), 0..8),
            cut in 1usize..50,
        ) {
            let mut wire = Vec::new();
            for chunk in &chunks {
                wire.extend(format!("{:x}\r\n", chunk.len()).bytes());
                wire.extend(chunk);
                wire.extend(b"\r\n");
            }
            wire.extend(b"0\r\n\r\n");
            let mut body = Body::chunked(Whose::Visitors);
            let (mut content, mut ranges) = (Vec::<u8>::new(), Vec::new());
            for piece in wire.chunks(cut) {
                prop_assert_eq!(body.take_content(piece, &mut ranges), Ok(piece.len()));
                for range in &ranges {
                    content.extend(&piece[range.clone()]);
                }
            }
            prop_assert!(body.is_done());
            prop_assert_eq!(content, chunks.concat());
        }

        #[test]
        fn taking_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = taken(&bytes);
        }
    }
}
