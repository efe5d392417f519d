//! Small pieces around sockets: bounded waits, whole vectored writes, and a socket with bytes put back.

use std::{
    future::{Future, poll_fn},
    io::{self, IoSlice},
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, Bytes};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf},
    time::timeout,
};

/// The wait was over before the thing happened.
#[derive(Debug, thiserror::Error)]
#[error("took too long")]
pub struct TooLong;

/// Bounds a wait. A future that is ready at once never costs a timer.
pub async fn within<F: Future>(limit: Duration, future: F) -> Result<F::Output, TooLong> {
    let mut future = pin!(future);
    let first = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
    match first {
        Poll::Ready(output) => Ok(output),
        Poll::Pending => timeout(limit, future).await.map_err(|_| TooLong),
    }
}

/// Writes two pieces as one.
pub async fn write_both(
    io: &mut (impl AsyncWrite + Unpin),
    mut first: Bytes,
    mut second: Bytes,
) -> io::Result<()> {
    while !first.is_empty() && !second.is_empty() {
        let written = io.write_vectored(&[IoSlice::new(&first), IoSlice::new(&second)]).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let of_first = written.min(first.len());
        first.advance(of_first);
        second.advance(written - of_first);
    }
    io.write_all(if first.is_empty() { &second } else { &first }).await
}

/// A socket whose first bytes were already read and are put back in front.
pub struct Rewind<T> {
    pub first: Bytes,
    pub io: T,
}

impl<T: AsyncRead + Unpin> AsyncRead for Rewind<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, out);
        }
        let count = out.remaining().min(self.first.len());
        out.put_slice(&self.first.split_to(count));
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Rewind<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
