//! Small pieces around sockets: bounded waits, whole vectored writes, and a socket with bytes put back.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    io::{self, IoSlice},
    pin::{Pin, pin},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf},
    time::{Instant, Sleep, sleep_until, timeout},
};
use tunnelto_lib::backlog::advance;

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

/// A timer for one wait after the other, of which hardly any is ever over. What it is set to is a note: the runtime's own
/// timer behind it stays where it is, goes off early, and is set again by the note.
#[derive(Default)]
pub struct Timer {
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timer {
    /// Bounds a wait, as [`within`] does.
    pub async fn within<F: Future>(&mut self, limit: Duration, future: F) -> Result<F::Output, TooLong> {
        let mut future = pin!(future);
        let mut deadline = None;
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => {
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + limit);
                self.poll_until(deadline, cx).map(|()| Err(TooLong))
            }
        })
        .await
    }

    fn poll_until(&mut self, deadline: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if sleep.deadline() > deadline {
            sleep.as_mut().reset(deadline);
        }
        loop {
            ready!(sleep.as_mut().poll(cx));
            if sleep.deadline() >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
        }
    }
}

/// Writes, and on to the system: TLS may keep some back otherwise.
pub async fn write(io: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    io.write_all(bytes).await?;
    io.flush().await
}

/// Writes two pieces as one, and on to the system.
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
    write(io, if first.is_empty() { &second } else { &first }).await
}

/// Nothing more is written. TLS says so in bytes, for which a visitor that reads nothing leaves no room.
pub async fn finish(io: &mut (impl AsyncWrite + Unpin), limit: Duration) -> io::Result<()> {
    within(limit, io.shutdown()).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Writes many pieces with as few calls as the system allows.
pub async fn write_all(io: &mut (impl AsyncWrite + Unpin), mut pieces: VecDeque<Bytes>) -> io::Result<()> {
    pieces.retain(|piece| !piece.is_empty());
    while !pieces.is_empty() {
        let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let written = io.write_vectored(&slices).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        advance(&mut pieces, written);
    }
    io.flush().await
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

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const SHORT: Duration = Duration::from_secs(1);
    const LONG: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_timer_keeps_each_of_its_limits() {
        let mut timer = Timer::default();
        for limit in [LONG, SHORT, LONG, LONG, SHORT] {
            let began = Instant::now();
            assert!(timer.within(limit, pending::<()>()).await.is_err());
            let waited = began.elapsed();
            assert!(waited >= limit && waited < limit + Duration::from_millis(5), "{waited:?} for {limit:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_went_well_shortens_none_that_follows() {
        let mut timer = Timer::default();
        assert!(timer.within(SHORT, tokio::time::sleep(SHORT / 2)).await.is_ok());
        // The note of the first wait would be over in the middle of this one.
        assert!(timer.within(LONG, tokio::time::sleep(SHORT * 5)).await.is_ok());
        let mut polls = 0;
        let ready = poll_fn(|_| {
            polls += 1;
            Poll::Ready(())
        });
        assert!(timer.within(SHORT, ready).await.is_ok());
        assert_eq!(polls, 1);
    }
}
