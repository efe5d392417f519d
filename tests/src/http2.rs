//! A visitor that speaks HTTP/2 by prior knowledge.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::{self, SendRequest};
use http::{HeaderMap, Request, Response};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

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
        Self::to(server.visitors).await
    }

    pub async fn to(door: SocketAddr) -> Self {
        Self::over(TcpStream::connect(door).await.expect("the door is open")).await
    }

    pub async fn over(socket: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        let (sender, connection) = soon("the handshake", client::handshake(socket)).await.expect("HTTP/2");
        tokio::spawn(connection);
        Self(sender)
    }

    pub async fn ask(&self, request: Request<()>, body: Option<&[u8]>) -> Got {
        soon("an answer comes", self.try_ask(request, body)).await.expect("a whole answer")
    }

    /// For a visitor whose request may be broken off.
    pub async fn try_ask(&self, request: Request<()>, body: Option<&[u8]>) -> Result<Got, h2::Error> {
        let mut sender = self.0.clone().ready().await?;
        let (answer, mut sending) = sender.send_request(request, body.is_none())?;
        if let Some(body) = body {
            sending.send_data(Bytes::copy_from_slice(body), true)?;
        }
        let (parts, mut coming) = answer.await?.into_parts();
        let mut body = Vec::new();
        while let Some(data) = coming.data().await {
            let data = data?;
            let _ = coming.flow_control().release_capacity(data.len());
            body.extend_from_slice(&data);
        }
        let trailers = coming.trailers().await?;
        Ok(Got { response: Response::from_parts(parts, ()), body, trailers })
    }
}

/// A request to the tunnel `name`.
pub fn request_to(name: &str, method: &str, path: &str) -> Request<()> {
    let uri = format!("http://{name}.localhost{path}");
    Request::builder().method(method).uri(uri).body(()).expect("a request")
}
