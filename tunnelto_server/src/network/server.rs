//! Questions from other instances: who is here, and is this instance well?

use std::{collections::HashMap, sync::Arc};

use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use serde_json::json;
use tokio::net::TcpStream;
use tunnelto_lib::name::Label;
use warp::{Filter, Reply, filters::BoxedFilter, reply::Response};

use super::health;
use crate::{connected_clients::ConnectedClients, limits::CONTROL_HEAD_TIME, shutdown::Shutdown};

#[derive(Clone)]
pub struct PeerServer {
    routes: BoxedFilter<(Response,)>,
}

impl PeerServer {
    pub fn new(clients: Arc<ConnectedClients>, shutdown: Shutdown) -> Self {
        // Only for what this instance holds itself.
        let question = warp::path::end()
            .and(warp::get())
            .and(warp::query::<HashMap<String, String>>())
            .map(move |query: HashMap<String, String>| {
                let name = query.get("host").and_then(|host| Label::parse(host).ok());
                let client_id = name.and_then(|name| clients.client_id(&name));
                warp::reply::json(&json!({ "client_id": client_id.as_deref() })).into_response()
            })
            .boxed();
        Self { routes: question.or(health::route(shutdown)).unify().boxed() }
    }

    pub async fn serve(self, socket: TcpStream) {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(CONTROL_HEAD_TIME)
            .serve_connection(TokioIo::new(socket), TowerToHyperService::new(warp::service(self.routes)));
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a peer's connection ended");
        }
    }
}
