//! Plain bytes both ways, with half-close: what follows a protocol switch.

use bytes::Bytes;
use tokio::time::sleep;
use tunnelto_lib::{packet::ResetCode, read_buffer::ReadBuffer};

use crate::{
    io::{Timer, finish, within, write, write_both},
    limits::{PROTOCOL_1_LINGER, VISITOR_STALL},
    socket::{ReadHalf, Socket, WriteHalf},
    upstream::Upstream,
};

/// Both directions broke for the same reason: one side is gone.
struct Broken;

/// Tells the visitor of the switch and carries bytes until both sides have finished or one is gone. `early` is
/// what the visitor, `rest` what the service has sent ahead.
pub async fn switch(visitor: &mut Socket, early: Bytes, stream: &Upstream, head: Bytes, rest: Bytes) {
    let consumed = rest.len();
    if !matches!(within(VISITOR_STALL, write_both(visitor, head, rest)).await, Ok(Ok(()))) {
        return;
    }
    stream.consumed(consumed);
    let (mut reading, mut writing) = visitor.split();
    let result =
        tokio::try_join!(from_visitor(&mut reading, early, stream), to_visitor(&mut writing, stream),);
    if result.is_err() {
        stream.reset(ResetCode::Cancelled);
    }
}

async fn from_visitor(visitor: &mut ReadHalf<'_>, early: Bytes, stream: &Upstream) -> Result<(), Broken> {
    stream.send(early).map_err(|_| Broken)?;
    let mut buffer = ReadBuffer::default();
    loop {
        stream.ready().await.map_err(|_| Broken)?;
        if buffer.fill(visitor).await.map_err(|_| Broken)? == 0 {
            stream.finish();
            if stream.protocol() == 1 {
                // Nobody will say that the service has closed.
                sleep(PROTOCOL_1_LINGER).await;
                return Err(Broken);
            }
            return Ok(());
        }
        stream.send(buffer.take()).map_err(|_| Broken)?;
    }
}

async fn to_visitor(visitor: &mut WriteHalf<'_>, stream: &Upstream) -> Result<(), Broken> {
    let mut timer = Timer::default();
    while let Some(piece) = stream.recv().await.map_err(|_| Broken)? {
        let written = timer.within(VISITOR_STALL, write(visitor, &piece)).await;
        written.map_err(|_| Broken)?.map_err(|_| Broken)?;
        stream.consumed(piece.len());
    }
    // The visitor may have gone by now, which is no news.
    let _ = finish(visitor, VISITOR_STALL).await;
    Ok(())
}
