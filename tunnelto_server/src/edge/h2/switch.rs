//! WebSockets of HTTP/2 visitors (RFC 8441): the local service has switched protocols, and from then on it is plain bytes both ways
//! with half-close.

use bytes::Bytes;
use h2::RecvStream;
use tokio::time::sleep;
use tunnelto_lib::packet::ResetCode;

use super::respond::{Gone, Respond, Sending};
use crate::{edge::h1::response::ResponseHead, limits::PROTOCOL_1_LINGER, upstream::Upstream};

/// Tells the visitor, and carries bytes until both sides have finished or one is gone. `rest` is what the service has sent ahead.
pub async fn switch(
    respond: &mut Respond,
    head: &ResponseHead,
    rest: Bytes,
    body: &mut RecvStream,
    stream: &Upstream,
) {
    let Some(mut sending) = respond.switch(head) else { return };
    let ended = tokio::try_join!(from_visitor(body, stream), to_visitor(&mut sending, rest, stream));
    if ended.is_err() {
        stream.reset(ResetCode::Cancelled);
        sending.cancel();
    }
}

async fn from_visitor(body: &mut RecvStream, stream: &Upstream) -> Result<(), Gone> {
    while let Some(data) = body.data().await {
        let data = data.map_err(|_| Gone)?;
        let size = data.len();
        stream.ready().await.and_then(|()| stream.send(data)).map_err(|_| Gone)?;
        // The window opens again once the bytes are on their way.
        let _ = body.flow_control().release_capacity(size);
    }
    stream.finish();
    if stream.protocol() == 1 {
        // Nobody will say that the service has closed.
        sleep(PROTOCOL_1_LINGER).await;
        return Err(Gone);
    }
    Ok(())
}

async fn to_visitor(sending: &mut Sending<'_>, rest: Bytes, stream: &Upstream) -> Result<(), Gone> {
    let mut next = Some(rest);
    while let Some(piece) = next {
        let size = piece.len();
        sending.send(piece).await?;
        stream.consumed(size);
        next = stream.recv().await.map_err(|_| Gone)?;
    }
    sending.finish()
}
