//! The operator's door, on this machine only.

use http::{StatusCode, header};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use std::sync::Arc;
use tokio::net::TcpStream;
use warp::{Filter, Reply, filters::BoxedFilter, reply::Response};

use crate::{limits::CONTROL_HEAD_TIME, network::Directory, observability::metrics::Metrics, parking::Lot};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone)]
pub struct Admin {
    routes: BoxedFilter<(Response,)>,
}

impl Admin {
    pub fn new(metrics: Arc<Metrics>, lot: Arc<Lot>, directory: Directory) -> Self {
        let metrics = warp::path!("metrics").and(warp::get()).map(move || {
            let text = metrics.encode(lot.parked(), directory.count());
            warp::reply::with_header(text, header::CONTENT_TYPE, OPEN_METRICS).into_response()
        });
        let nothing = warp::any()
            .map(|| warp::reply::with_status("here are: /metrics\n", StatusCode::NOT_FOUND).into_response());
        Self { routes: metrics.or(nothing).unify().boxed() }
    }

    pub async fn serve(self, socket: TcpStream) {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(CONTROL_HEAD_TIME)
            .serve_connection(TokioIo::new(socket), TowerToHyperService::new(warp::service(self.routes)));
        if let Err(error) = connection.await {
            tracing::debug!(%error, "an operator's connection ended");
        }
    }
}
