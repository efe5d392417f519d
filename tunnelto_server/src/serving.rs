//! Serving routes to clients, other instances and operators: hyper reads the requests, warp's filters answer them.

use std::net::SocketAddr;

use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::io::{AsyncRead, AsyncWrite};
use warp::{filters::BoxedFilter, reply::Response};

use crate::limits::CONTROL_HEAD_TIME;

pub fn http1() -> http1::Builder {
    let mut http1 = http1::Builder::new();
    http1.timer(TokioTimer::new()).header_read_timeout(CONTROL_HEAD_TIME);
    http1
}

/// Serves one connection up to its upgrade or end. Filters find `peer` among the request's extensions.
pub async fn serve(
    http1: &http1::Builder,
    routes: BoxedFilter<(Response,)>,
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: SocketAddr,
) {
    let routes = TowerToHyperService::new(warp::service(routes));
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        let routes = routes.clone();
        async move { hyper::service::Service::call(&routes, request).await }
    });
    let connection = http1.serve_connection(TokioIo::new(io), service).with_upgrades();
    if let Err(error) = connection.await {
        tracing::debug!(%error, %peer, "connection ended");
    }
}
