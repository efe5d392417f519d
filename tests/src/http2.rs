//! A visitor that speaks HTTP/2 by prior knowledge.

use bytes::Bytes;
use h2::client::{self, SendRequest};
use http::{HeaderMap, Request, Response};
use tokio::net::TcpStream;

use crate::{eventually::soon, server::Server};

/// One connection; clones ask on it side by side.
#[derive(Clone)]
pub struct Asker(pub SendRequest<Bytes>);

/// A whole answer.
pub struct Got {
    pub response: Response<()>,
    pub body: Vec<u8>,
    pub trailers: Option<HeaderMap>,
}

impl Asker {
    pub async fn connect(server: &Server) -> Self {
        let socket = TcpStream::connect(server.visitors).await.expect("the door is open");
        let (sender, connection) = soon("the handshake", client::handshake(socket)).await.expect("HTTP/2");
        tokio::spawn(connection);
        Self(sender)
    }

    pub async fn ask(&self, request: Request<()>, body: Option<&[u8]>) -> Got {
        let mut sender = soon("room for a request", self.0.clone().ready()).await.expect("a connection");
        let (answer, mut sending) = sender.send_request(request, body.is_none()).expect("a request");
        if let Some(body) = body {
            sending.send_data(Bytes::copy_from_slice(body), true).expect("a body");
        }
        let (parts, mut coming) = soon("an answer", answer).await.expect("an answer").into_parts();
        let mut body = Vec::new();
        while let Some(data) = soon("its body", coming.data()).await {
            let data = data.expect("a whole body");
            let _ = coming.flow_control().release_capacity(data.len());
            body.extend_from_slice(&data);
        }
        let trailers = coming.trailers().await.expect("an end");
        Got { response: Response::from_parts(parts, ()), body, trailers }
    }
}

/// A request to the tunnel `name`.
pub fn request_to(name: &str, method: &str, path: &str) -> Request<()> {
    let uri = format!("http://{name}.localhost{path}");
    Request::builder().method(method).uri(uri).body(()).expect("a request")
}
