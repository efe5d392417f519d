//! The operator's door, on this machine only.

use std::{net::SocketAddr, sync::Arc};

use http::{StatusCode, header};
use warp::{Filter, Reply, filters::BoxedFilter, reply::Response};

use crate::{
    network::Directory,
    observability::metrics::{Metrics, Present},
    parking::Lot,
    serving,
    socket::Socket,
};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone)]
pub struct Admin {
    routes: BoxedFilter<(Response,)>,
}

impl Admin {
    pub fn new(metrics: Arc<Metrics>, lot: Arc<Lot>, directory: Directory) -> Self {
        let metrics = warp::path!("metrics").and(warp::get()).map(move || {
            let present =
                Present { parked: lot.parked(), peers: directory.count(), store: directory.store() };
            let text = metrics.encode(present);
            warp::reply::with_header(text, header::CONTENT_TYPE, OPEN_METRICS).into_response()
        });
        let nothing = warp::any()
            .map(|| warp::reply::with_status("here are: /metrics\n", StatusCode::NOT_FOUND).into_response());
        Self { routes: metrics.or(nothing).unify().boxed() }
    }

    pub async fn serve(self, socket: Socket, peer: SocketAddr) {
        serving::serve(&serving::http1(), self.routes, socket, peer).await;
    }
}
