//! Asking another instance: one HTTP client for all questions.

use std::{error::Error, io, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::{
    peer::{Down, Peer},
    question::{QUESTION_FIELD, Question, SIGNATURE_FIELD},
};
use crate::{limits::MAX_PEER_ANSWER, sign::MasterKeys};

pub struct Asker {
    client: Client<HttpConnector, Empty<Bytes>>,
    keys: MasterKeys,
}

/// Why there is no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AskError {
    #[error("nobody listens at {0}")]
    Refused(std::net::SocketAddr),
    #[error("{0}")]
    Io(Arc<str>),
    #[error("{0}")]
    Request(Arc<str>),
}

impl Asker {
    pub fn new(keys: MasterKeys, connect: Duration) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(connect));
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(15))
            .build(connector);
        Self { client, keys }
    }

    /// Asks `peer`; the answer is known to be its own.
    pub async fn ask<T: DeserializeOwned>(
        &self,
        peer: &Peer,
        question: Question,
        limit: Duration,
    ) -> Result<T, AskError> {
        let answer = timeout(limit, self.exchange(peer, &question)).await;
        let answer = answer
            .unwrap_or_else(|_| Err(AskError::Io(format!("{} did not answer in {limit:?}", peer.at).into())));
        let body = answer?;
        serde_json::from_slice(&body)
            .map_err(|error| request(peer, &format!("answer not understood: {error}")))
    }

    async fn exchange(&self, peer: &Peer, question: &Question) -> Result<Bytes, AskError> {
        let uri = format!("http://{}{}", peer.at, question.path);
        let asking = Request::get(uri)
            .header(QUESTION_FIELD, question.seal(&self.keys))
            .body(Empty::new())
            .map_err(|error| request(peer, &error.to_string()))?;
        let answer = self.client.request(asking).await.map_err(|error| failure(peer, &error))?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, MAX_PEER_ANSWER).collect().await;
        let body = body.map_err(|error| AskError::Io(format!("{}: {error}", peer.at).into()))?.to_bytes();
        if head.status != StatusCode::OK {
            let words = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
            return Err(request(peer, &format!("{}: {words}", head.status)));
        }
        let signature =
            head.headers.get(SIGNATURE_FIELD).and_then(|value| value.to_str().ok()).unwrap_or_default();
        match question.is_answered_by(&self.keys, &body, signature) {
            true => Ok(body),
            false => Err(request(
                peer,
                "the answer's signature is not ours: MASTER_SIG_KEY must be the same on every instance",
            )),
        }
    }
}

impl AskError {
    /// What it says of the instance, if anything. One that answers wrongly is there.
    pub fn down(&self) -> Option<Down> {
        match self {
            Self::Refused(_) => Some(Down::Refuses),
            Self::Io(_) => Some(Down::Silent),
            Self::Request(_) => None,
        }
    }
}

fn request(peer: &Peer, text: &str) -> AskError {
    AskError::Request(format!("{}: {text}", peer.at).into())
}

fn failure(peer: &Peer, error: &(dyn Error + 'static)) -> AskError {
    let mut cause = Some(error);
    let mut last = String::new();
    while let Some(error) = cause {
        let is_refused =
            error.downcast_ref::<io::Error>().is_some_and(|io| io.kind() == io::ErrorKind::ConnectionRefused);
        if is_refused {
            return AskError::Refused(peer.at);
        }
        last = error.to_string();
        cause = error.source();
    }
    AskError::Io(format!("{}: {last}", peer.at).into())
}
