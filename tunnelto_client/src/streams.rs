//! One stream between the server and the local service.

use std::{cell::Cell, future::poll_fn, io, rc::Rc, time::Duration};

use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    time::sleep,
};
use tunnelto_lib::{hello::Refusal, mux::Stream, packet::ResetCode, read_buffer::poll_read_slice};

use crate::local::dial::{DialError, Dialer, Local};

/// A protocol 1 server's End means that the visitor is gone; its answer may still be on the way.
const PROTOCOL_1_END: Duration = Duration::from_secs(5);

/// Dials once the first bytes are there, then carries both ways until both sides are done.
pub async fn serve(stream: Stream, dialer: Rc<Dialer>, protocol: u8) {
    let Ok(Some(first)) = stream.recv().await else { return };
    match dialer.dial().await {
        Ok(Local::Tcp(mut socket)) => {
            let (reading, writing) = socket.split();
            Pump::new(&stream, protocol).run(first, reading, writing).await;
        }
        Ok(Local::Unix(mut socket)) => {
            let (reading, writing) = socket.split();
            Pump::new(&stream, protocol).run(first, reading, writing).await;
        }
        Ok(Local::Tls(socket)) => {
            let (reading, writing) = tokio::io::split(socket);
            Pump::new(&stream, protocol).run(first, reading, writing).await;
        }
        Ok(Local::Memory(pipe)) => {
            let (reading, writing) = tokio::io::split(pipe);
            Pump::new(&stream, protocol).run(first, reading, writing).await;
        }
        Err(error) => {
            tracing::warn!(%error, "no connection to the local service");
            stream.refuse(refusal(&error));
        }
    }
}

/// Both directions of one stream.
struct Pump<'s> {
    stream: &'s Stream,
    protocol: u8,
    /// The local service has finished sending.
    has_ended: Cell<bool>,
    /// Bytes went to the local service since it last said something: it may be working on them.
    is_asked: Cell<bool>,
    /// The service has changed protocols: from now on its end is no end of the visitor's.
    has_switched: Cell<bool>,
}

/// One side is gone; the other need not go on.
struct Gone;

impl<'s> Pump<'s> {
    fn new(stream: &'s Stream, protocol: u8) -> Self {
        Self {
            stream,
            protocol,
            has_ended: Cell::new(false),
            is_asked: Cell::new(false),
            has_switched: Cell::new(false),
        }
    }

    /// What the local service has said is delivered however this ends: the stream's last words wait for it.
    async fn run(self, first: Bytes, reading: impl AsyncRead + Unpin, writing: impl AsyncWrite + Unpin) {
        // What comes from the local service is looked at first: if it has hung up, nothing more is written to it.
        let _ = tokio::try_join!(biased; self.read_local(reading), self.write_local(first, writing));
    }

    async fn read_local(&self, mut local: impl AsyncRead + Unpin) -> Result<(), Gone> {
        loop {
            self.stream.ready().await.map_err(|_| Gone)?;
            match poll_fn(|cx| poll_read_slice(cx, &mut local)).await {
                Ok(bytes) if bytes.is_empty() => {
                    self.has_ended.set(true);
                    self.stream.finish();
                    // Nobody will tell a protocol 1 server; the stream is over.
                    return if self.protocol == 1 { Err(Gone) } else { Ok(()) };
                }
                Ok(bytes) => {
                    if self.is_asked.replace(false) && says_switching(&bytes) {
                        self.has_switched.set(true);
                    }
                    self.stream.send(bytes).map_err(|_| Gone)?;
                }
                Err(error) => {
                    tracing::debug!(%error, "the local service broke off");
                    let code = if self.is_asked.get() { ResetCode::LocalFailed } else { ResetCode::Unused };
                    self.stream.reset_after_queue(code);
                    return Err(Gone);
                }
            }
        }
    }

    async fn write_local(&self, first: Bytes, mut local: impl AsyncWrite + Unpin) -> Result<(), Gone> {
        let mut next = Some(first);
        while let Some(bytes) = next {
            if self.has_ended.get() && !self.is_asked.get() && !self.has_switched.get() {
                // The service had answered and hung up before this came, and none of it was written: the server may
                // send it again on a new stream.
                self.stream.reset_after_queue(ResetCode::Unused);
                return Err(Gone);
            }
            self.is_asked.set(true);
            if write(&mut local, &bytes).await.is_err() {
                // It takes no more, but what it has answered may still be read.
                return Ok(());
            }
            self.stream.consumed(bytes.len());
            next = self.stream.recv().await.map_err(|_| Gone)?;
        }
        if self.protocol == 1 {
            sleep(PROTOCOL_1_END).await;
        }
        // A service that is gone needs no goodbye.
        let _ = local.shutdown().await;
        Ok(())
    }
}

/// 101, the only answer after which both sides go on (RFC 9110 section 15.2.2).
fn says_switching(answer: &[u8]) -> bool {
    answer.starts_with(b"HTTP/1.1 101") || answer.starts_with(b"HTTP/1.0 101")
}

async fn write(local: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    local.write_all(bytes).await?;
    local.flush().await
}

fn refusal(error: &DialError) -> Refusal {
    let code = match error {
        DialError::Refused(_) => "connection_refused",
        DialError::TimedOut(_) => "dial_timeout",
        DialError::Io(..) => "dial_failed",
    };
    Refusal { code: code.into(), message: error.to_string(), retry_after: None }
}
