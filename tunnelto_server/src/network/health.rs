//! `GET /health_check`, on the clients' and the peers' ports alike.

use http::StatusCode;
use warp::{Filter, Reply, filters::BoxedFilter, reply::Response};

use crate::shutdown::Shutdown;

pub fn route(shutdown: Shutdown) -> BoxedFilter<(Response,)> {
    let answer = move || match shutdown.is_draining() {
        false => "ok".into_response(),
        true => warp::reply::with_status("draining", StatusCode::SERVICE_UNAVAILABLE).into_response(),
    };
    warp::path!("health_check").and(warp::get()).map(answer).boxed()
}
