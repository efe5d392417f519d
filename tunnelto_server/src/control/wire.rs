//! Hellos on a fresh connection, before there are streams.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncWriteExt;
use tunnelto_lib::{
    hello::{ClientHello, ServerHello},
    read_buffer::ReadBuffer,
    ws::{Decoder, Message, Opcode, Role, WsError, put_frame_head},
};

use crate::{io::write, socket::Socket};

/// A client's socket, the bytes read of it, and the decoder in its state.
pub struct Fresh {
    pub socket: Socket,
    pub buffer: ReadBuffer,
    pub decoder: Decoder,
}

#[derive(Debug, thiserror::Error)]
pub enum HelloError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("closed before its hello")]
    Closed,
    #[error(transparent)]
    Frame(#[from] WsError),
    #[error("hello is not the JSON it should be: {0}")]
    Json(#[from] serde_json::Error),
}

impl Fresh {
    pub fn new(socket: Socket, first: Bytes) -> Self {
        let buffer = ReadBuffer { bytes: BytesMut::from(first) };
        Self { socket, buffer, decoder: Decoder::new(Role::Server) }
    }

    pub async fn read_hello(&mut self) -> Result<ClientHello, HelloError> {
        loop {
            while let Some(message) = self.decoder.decode(&mut self.buffer.bytes)? {
                match message {
                    Message::Binary(bytes) | Message::Text(bytes) => {
                        return Ok(serde_json::from_slice(&bytes)?);
                    }
                    Message::Ping(_) | Message::Pong => {}
                    Message::Close => return Err(HelloError::Closed),
                }
            }
            if self.buffer.fill(&mut self.socket).await? == 0 {
                return Err(HelloError::Closed);
            }
        }
    }

    pub async fn write_hello(&mut self, hello: &ServerHello) -> io::Result<()> {
        let json = serde_json::to_vec(hello).map_err(io::Error::other)?;
        self.write(Opcode::Binary, &json).await
    }

    /// A Close with status 1000, after a refusal.
    pub async fn close(mut self) -> io::Result<()> {
        self.write(Opcode::Close, &1000u16.to_be_bytes()).await?;
        self.socket.shutdown().await
    }

    async fn write(&mut self, opcode: Opcode, payload: &[u8]) -> io::Result<()> {
        let mut frame = BytesMut::with_capacity(payload.len() + 16);
        put_frame_head(&mut frame, Role::Server, opcode, payload.len());
        frame.extend_from_slice(payload);
        write(&mut self.socket, &frame).await
    }
}
