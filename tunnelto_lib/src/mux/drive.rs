//! The two loops around a connection's halves.

use std::{future::poll_fn, io, time::Instant};

use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    time::timeout,
};

use super::{
    MAX_PAUSE, Mux,
    outbox::{Batch, Then},
    stream::Stream,
};
use crate::{
    packet::{Packet, PacketError},
    read_buffer::ReadBuffer,
    token::Secret,
    ws::{Decoder, Message, WsError},
};

/// Turns a connection's bytes into streams and into what its owner has to answer.
pub struct Reader<R> {
    mux: Mux,
    io: R,
    decoder: Decoder,
    buffer: ReadBuffer,
}

/// What the owner of a connection has to deal with.
pub enum Incoming {
    /// A new stream with the payload of its Init (empty in protocol 1).
    Opened(Stream, Bytes),
    Ping(Option<Secret>),
    Terminate(Bytes),
    GoAway(Bytes),
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    #[error("closed by the other side")]
    Closed,
    #[error("ended without a goodbye")]
    Eof,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] WsError),
    #[error(transparent)]
    Packet(#[from] PacketError),
    #[error("protocol violation: {0}")]
    Protocol(&'static str),
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// `decoder` and `buffer` go on where the hellos ended.
    pub fn new(mux: Mux, io: R, decoder: Decoder, buffer: ReadBuffer) -> Self {
        Self { mux, io, decoder, buffer }
    }

    /// Applies packets until one concerns the owner. Cancel-safe: packets already read stay in the buffer.
    pub async fn next(&mut self) -> Result<Incoming, Lost> {
        loop {
            let now = Instant::now();
            while let Some(message) = self.decoder.decode(&mut self.buffer.bytes)? {
                match message {
                    Message::Binary(bytes) | Message::Text(bytes) => {
                        if let Some(incoming) = self.mux.receive(Packet::decode(bytes)?, now)? {
                            return Ok(incoming);
                        }
                    }
                    Message::Ping(payload) => self.mux.pong(payload),
                    Message::Pong => {}
                    Message::Close => return Err(Lost::Closed),
                }
            }
            self.wait_for_room().await;
            if self.buffer.fill(&mut self.io).await? == 0 {
                return Err(Lost::Eof);
            }
            self.mux.heard(Instant::now());
        }
    }

    /// Protocol 1 has no flow control: the only brake is not to read.
    async fn wait_for_room(&self) {
        while timeout(MAX_PAUSE, poll_fn(|cx| self.mux.poll_room(cx))).await.is_err() {
            self.mux.cut_furthest_behind();
            self.mux.heard(Instant::now());
        }
    }
}

/// Writes what the streams queue until the connection is closed or abandoned.
pub async fn write_all(mux: &Mux, io: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    loop {
        let mut batch = Batch::default();
        let then = poll_fn(|cx| mux.poll_batch(cx, &mut batch)).await;
        poll_fn(|cx| batch.poll_write(cx, io)).await?;
        io.flush().await?;
        if let Then::Stop = then {
            return io.shutdown().await;
        }
    }
}
