//! Visitors that another instance or a proxy in front brings. Nobody else is believed.

use std::time::SystemTime;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{Instant, timeout_at},
};
use tunnelto_lib::{name::Label, read_buffer::ReadBuffer};

use super::{
    announced::{self, Announced},
    classify::Classified,
    forwarded::TrustedProxies,
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

/// Who brings a visitor, and what is said of it.
enum By {
    Instance(Bringing),
    Proxy(Announced),
}

#[derive(Debug, thiserror::Error)]
enum Bad {
    #[error("malformed PROXY header: {0}")]
    Malformed(String),
    #[error("a PROXY header from an address that is not among TRUSTED_PROXIES")]
    Untrusted,
    #[error(transparent)]
    Hop(#[from] BadHop),
}

/// Reads what is said of the visitor, and answers an instance whether the tunnel is here. Then the connection is as if the
/// visitor had come itself.
pub async fn receive(
    classified: Classified,
    hops: &Hops,
    proxies: &TrustedProxies,
    serves: impl Fn(&Label) -> bool,
) -> Option<(Accepted, ReadBuffer)> {
    let Classified { mut accepted, mut first, .. } = classified;
    let bringing = match read(&mut accepted, &mut first, hops, proxies).await {
        Ok(Some(By::Instance(bringing))) => bringing,
        Ok(Some(By::Proxy(announced))) => {
            accepted.peer = announced.visitor.unwrap_or(accepted.peer);
            if announced.is_tls {
                accepted.arrival.way = Way::Tls(None);
            }
            return Some((accepted, first));
        }
        Ok(None) => return None,
        Err(bad) => {
            tracing::warn!(peer = %accepted.peer, %bad, "visitor not believed to be brought by somebody");
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

async fn read(
    accepted: &mut Accepted,
    first: &mut ReadBuffer,
    hops: &Hops,
    proxies: &TrustedProxies,
) -> Result<Option<By>, Bad> {
    let deadline = Instant::now() + HEAD_TIME;
    let announced = loop {
        match announced::read(&first.bytes).map_err(Bad::Malformed)? {
            Some(announced) => break announced,
            None if first.bytes.len() > MAX_HOP_HEAD => {
                return Err(Bad::Malformed("longer than any there is".into()));
            }
            None => {}
        }
        match timeout_at(deadline, first.fill(&mut accepted.socket)).await {
            Ok(Ok(count)) if count > 0 => {}
            _ => return Ok(None),
        }
    };
    let by = if announced.is_ours {
        let bringing = Bringing::read(&first.bytes, &hops.keys, &hops.instance, SystemTime::now())?;
        bringing.map(|(bringing, _)| By::Instance(bringing))
    } else if proxies.trusts(accepted.peer.ip()) {
        Some(By::Proxy(announced))
    } else {
        return Err(Bad::Untrusted);
    };
    let _ = first.bytes.split_to(announced.size);
    Ok(by)
}

/// Our own instances sign, and proxies are known; whoever else is a visitor that pretends reads so.
async fn refuse(mut socket: Socket) {
    let page =
        Page::refusal(Refusal::BadRequest("a PROXY header is taken from TRUSTED_PROXIES only"), Form::Text);
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
