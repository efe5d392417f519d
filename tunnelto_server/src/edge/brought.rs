//! Visitors that another instance brings. Nobody else is believed.

use std::time::SystemTime;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{Instant, timeout_at},
};
use tunnelto_lib::{name::Label, read_buffer::ReadBuffer};

use super::{
    classify::Classified,
    h1::request::Form,
    listener::{Accepted, Brought},
    pages::{Connection, Page},
};
use crate::{
    error::Refusal,
    exchange::Way,
    limits::{HEAD_TIME, LINGER, LINGER_BYTES, MAX_HOP_HEAD},
    network::{
        hop::{BadHop, Bringing, MINE, NOT_MINE},
        proxy::Hops,
    },
    observability::metrics::Hop,
    socket::Socket,
};

/// Reads what the instance says and answers whether the tunnel is here. Then the connection is as if the visitor had
/// come itself.
pub async fn receive(
    classified: Classified,
    hops: &Hops,
    serves: impl Fn(&Label) -> bool,
) -> Option<(Accepted, ReadBuffer)> {
    let Classified { mut accepted, mut first, .. } = classified;
    let bringing = match read(&mut accepted.socket, &mut first, hops).await {
        Ok(Some(bringing)) => bringing,
        Ok(None) => return None,
        Err(bad) => {
            tracing::warn!(peer = %accepted.peer, %bad, "visitor not believed to be brought by another instance");
            hops.metrics.hop(Hop::Rejected);
            refuse(accepted.socket).await;
            return None;
        }
    };
    if !serves(&bringing.name) {
        say_not_mine(accepted.socket).await;
        return None;
    }
    accepted.socket.write_all(&[MINE]).await.ok()?;
    hops.metrics.hop(Hop::Arrived);
    accepted.peer = bringing.visitor;
    if bringing.is_tls {
        accepted.arrival.way = Way::Tls(None);
    }
    accepted.arrival.brought = Some(Brought { kind: bringing.kind, by: bringing.from });
    Some((accepted, first))
}

async fn read(socket: &mut Socket, first: &mut ReadBuffer, hops: &Hops) -> Result<Option<Bringing>, BadHop> {
    let deadline = Instant::now() + HEAD_TIME;
    loop {
        let read = Bringing::read(&first.bytes, &hops.keys, &hops.instance, SystemTime::now())?;
        if let Some((bringing, size)) = read {
            let _ = first.bytes.split_to(size);
            return Ok(Some(bringing));
        }
        if first.bytes.len() > MAX_HOP_HEAD {
            return Err(BadHop::Malformed("longer than any of ours".into()));
        }
        match timeout_at(deadline, first.fill(socket)).await {
            Ok(Ok(count)) if count > 0 => {}
            _ => return Ok(None),
        }
    }
}

/// Our own instances sign; whoever does not is a visitor that pretends, and reads so.
async fn refuse(mut socket: Socket) {
    let page =
        Page::refusal(Refusal::BadRequest("a PROXY header is taken from our own instances only"), Form::Text);
    let bytes = page.to_http1(&http::Method::GET, Connection::Close);
    if socket.write_all(&bytes).await.is_ok() {
        hang_up(socket).await;
    }
}

async fn say_not_mine(mut socket: Socket) {
    if socket.write_all(&[NOT_MINE]).await.is_ok() {
        hang_up(socket).await;
    }
}

/// Takes what is on its way, so that the answer is not lost to a reset.
async fn hang_up(mut socket: Socket) {
    if socket.shutdown().await.is_err() {
        return;
    }
    let mut rest = [0; 4096];
    let mut left = LINGER_BYTES;
    let deadline = Instant::now() + LINGER;
    while let Ok(Ok(count @ 1..)) = timeout_at(deadline, socket.read(&mut rest)).await {
        left = left.saturating_sub(count);
        if left == 0 {
            return;
        }
    }
}
