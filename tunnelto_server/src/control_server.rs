//! The clients' door: `/wormhole` upgrades to a WebSocket and hands the bare socket on, `/health_check` tells
//! how the server is. hyper reads the requests; what follows the upgrade is `control`'s.

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tunnelto_lib::ws::accept_value;
use warp::{Filter, Reply, filters::BoxedFilter, reply::Response};

use crate::{
    edge::handover::Mailboxes, gauge::Gauge, io::Rewind, limits::CONTROL_HEAD, network::health,
    policy::Chain, serving, shutdown::Shutdown, socket::Socket,
};

/// What answers on the clients' door.
#[derive(Clone)]
pub struct ControlServer {
    routes: BoxedFilter<(Response,)>,
}

impl ControlServer {
    /// At most `most` clients are connected at once.
    pub fn new(mailboxes: Mailboxes, most: usize, chain: Chain, shutdown: Shutdown) -> Self {
        let clients = Gauge::default();
        let health = health::route(shutdown.clone());
        let chain = Arc::new(chain);
        let wormhole = warp::path!("wormhole")
            .and(warp::get())
            .and(warp::header::headers_cloned())
            .and(warp::ext::optional::<OnUpgrade>())
            .and(warp::ext::get::<SocketAddr>())
            .map(move |headers: HeaderMap, upgrade: Option<OnUpgrade>, peer: SocketAddr| {
                if chain.is_blocked(peer.ip()) {
                    return plain(StatusCode::FORBIDDEN, "your address is blocked");
                }
                if shutdown.is_draining() {
                    return unavailable("draining");
                }
                let Some(upgrade) = upgrade else { return not_a_handshake() };
                // A full mailbox means a busy server, and so does a shard that is gone.
                let Some(slot) = mailboxes.for_client() else { return unavailable("busy") };
                let Some(place) = clients.try_enter(most) else { return unavailable("full") };
                let response = accept(&headers);
                if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                    // Ends with the connection at the latest.
                    tokio::spawn(async move {
                        if let Some((socket, first)) = upgraded(upgrade).await
                            && let Err(error) = slot.send(socket, first, place)
                        {
                            tracing::debug!(%error, "client not handed over");
                        }
                    });
                }
                response
            })
            .boxed();
        let routes = wormhole.or(health).unify().boxed();
        Self { routes }
    }

    /// Serves one connection up to its upgrade or end. `first` was read of it already.
    pub async fn serve(self, socket: Socket, first: Bytes, peer: SocketAddr) {
        let mut http1 = serving::http1();
        http1.max_buf_size(CONTROL_HEAD);
        serving::serve(&http1, self.routes, Rewind { first, io: socket }, peer).await;
    }
}

/// The answer to a proper opening handshake (RFC 6455 section 4.2).
fn accept(headers: &HeaderMap) -> Response {
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    if !text(header::UPGRADE).is_some_and(|value| value.eq_ignore_ascii_case("websocket")) {
        return not_a_handshake();
    }
    if text(header::SEC_WEBSOCKET_VERSION) != Some("13") {
        let reply = plain(StatusCode::UPGRADE_REQUIRED, "WebSocket version 13 is wanted");
        return warp::reply::with_header(reply, header::SEC_WEBSOCKET_VERSION, "13").into_response();
    }
    let Some(key) = text(header::SEC_WEBSOCKET_KEY) else { return not_a_handshake() };
    let reply = warp::reply::with_status(warp::reply(), StatusCode::SWITCHING_PROTOCOLS);
    let reply = warp::reply::with_header(reply, header::UPGRADE, "websocket");
    let reply = warp::reply::with_header(reply, header::CONNECTION, "Upgrade");
    warp::reply::with_header(reply, header::SEC_WEBSOCKET_ACCEPT, accept_value(key)).into_response()
}

async fn upgraded(upgrade: OnUpgrade) -> Option<(Socket, Bytes)> {
    let upgraded = upgrade.await.ok()?;
    let parts = upgraded.downcast::<TokioIo<Rewind<Socket>>>().ok()?;
    Some((parts.io.into_inner().io, parts.read_buf))
}

fn not_a_handshake() -> Response {
    plain(
        StatusCode::BAD_REQUEST,
        "this is where tunnelto clients connect; a WebSocket handshake was expected",
    )
}

/// Temporary refusals are never spoken on the WebSocket: the published client would give up for good.
fn unavailable(reason: &'static str) -> Response {
    let reply = plain(StatusCode::SERVICE_UNAVAILABLE, reason);
    warp::reply::with_header(reply, header::RETRY_AFTER, "1").into_response()
}

fn plain(status: StatusCode, text: &'static str) -> Response {
    warp::reply::with_status(text, status).into_response()
}
