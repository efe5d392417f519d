//! etcd's JSON gateway: its gRPC interface as HTTP/1.1, with bytes in base64 and numbers as strings.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{
    Request, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE},
    uri::Authority,
};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{sync::Mutex, time::timeout};

use super::super::store::StoreError;
use crate::{config::Credentials, limits::MAX_PEER_ANSWER};

pub struct Gateway {
    client: Client<HttpConnector, Full<Bytes>>,
    endpoints: Vec<Authority>,
    /// Which of them is asked.
    present: AtomicUsize,
    /// How long one of them may take.
    limit: Duration,
    user: Option<Credentials>,
    /// Held while one is being asked for.
    token: Mutex<Option<String>>,
}

/// Why there is no answer.
enum Failure {
    /// It does not come through; another endpoint may do better.
    Silent(StoreError),
    /// The token has ended.
    Token(StoreError),
    Refused(StoreError),
}

/// A key or value as the gateway wants it.
#[derive(Clone, Debug, Serialize)]
pub struct Key(String);

impl Key {
    pub fn of(parts: &[&str]) -> Self {
        Self(STANDARD.encode(parts.concat()))
    }
}

/// All keys that begin with `prefix`, which ends with a slash.
pub fn keys_in(prefix: &str) -> Value {
    // The character after the slash.
    let end = Key::of(&[prefix.trim_end_matches('/'), "0"]);
    json!({ "key": Key::of(&[prefix]), "range_end": end })
}

pub fn range(of: Value) -> Value {
    json!({ "request_range": of })
}

/// A key or value in an answer.
pub fn text(value: &Value) -> Option<String> {
    String::from_utf8(STANDARD.decode(value.as_str()?).ok()?).ok()
}

/// A number in an answer; zeros are left out there.
pub fn number(value: &Value) -> u64 {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or_default()
}

impl Gateway {
    /// `limit` is how long a call may take, whatever becomes of it.
    pub fn new(endpoints: &[Authority], user: Option<&Credentials>, limit: Duration) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        Self {
            client,
            endpoints: endpoints.to_vec(),
            present: AtomicUsize::new(0),
            // So that a second one has its time too.
            limit: if endpoints.len() > 1 { limit * 2 / 5 } else { limit },
            user: user.cloned(),
            token: Mutex::default(),
        }
    }

    pub fn endpoint(&self) -> &Authority {
        &self.endpoints[self.present.load(Ordering::Relaxed) % self.endpoints.len()]
    }

    /// Calls `method` with `question`, at another endpoint where one is silent. Whatever is asked here may be asked twice.
    pub async fn ask(&self, method: &str, question: &Value) -> Result<Value, StoreError> {
        let mut tries = self.endpoints.len();
        let mut may_renew = true;
        loop {
            let present = self.present.load(Ordering::Relaxed);
            let token = match self.token().await {
                Ok(token) => token,
                Err(Failure::Silent(error)) if tries > 1 => {
                    tries -= 1;
                    self.leave(present, &error);
                    continue;
                }
                Err(Failure::Silent(error) | Failure::Token(error) | Failure::Refused(error)) => {
                    return Err(error);
                }
            };
            match self.post(method, question, token.as_deref()).await {
                Ok(answer) => return Ok(answer),
                Err(Failure::Silent(error)) => {
                    tries -= 1;
                    self.leave(present, &error);
                    if tries == 0 {
                        return Err(error);
                    }
                }
                Err(Failure::Token(_)) if may_renew && self.user.is_some() => {
                    may_renew = false;
                    let mut known = self.token.lock().await;
                    // Another call may have got a new one meanwhile.
                    if *known == token {
                        *known = None;
                    }
                }
                Err(Failure::Token(error) | Failure::Refused(error)) => return Err(error),
            }
        }
    }

    /// The next one is asked from now on, unless another call has seen to that.
    fn leave(&self, present: usize, error: &StoreError) {
        let next = present.wrapping_add(1);
        let left = self.present.compare_exchange(present, next, Ordering::Relaxed, Ordering::Relaxed);
        if left.is_ok() && self.endpoints.len() > 1 {
            tracing::warn!(%error, "etcd: an endpoint does not answer; asking the next");
        }
    }

    async fn token(&self) -> Result<Option<String>, Failure> {
        let Some(Credentials { name, password }) = &self.user else { return Ok(None) };
        let mut known = self.token.lock().await;
        if known.is_none() {
            let who = json!({ "name": name, "password": password });
            let answer = self.post("auth/authenticate", &who, None).await?;
            *known = answer["token"].as_str().map(str::to_owned);
        }
        Ok(known.clone())
    }

    async fn post(&self, method: &str, question: &Value, token: Option<&str>) -> Result<Value, Failure> {
        let at = self.endpoint();
        let failed = |error: &dyn std::fmt::Display| StoreError(format!("{at}: {error}").into());
        let mut request =
            Request::post(format!("http://{at}/v3/{method}")).header(CONTENT_TYPE, "application/json");
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, token);
        }
        let request = request.body(Full::from(question.to_string()));
        let request = request.map_err(|error| Failure::Refused(failed(&error)))?;
        let exchange = async {
            let answer = self.client.request(request).await.map_err(|error| failed(&error))?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), MAX_PEER_ANSWER).collect().await;
            Ok((status, body.map_err(|error| failed(&error))?.to_bytes()))
        };
        let silence = |_| Err(failed(&format_args!("no answer in {:?}", self.limit)));
        let answered = timeout(self.limit, exchange).await.unwrap_or_else(silence);
        let (status, body) = answered.map_err(Failure::Silent)?;
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        if status == StatusCode::OK && answer["error"].is_null() {
            return Ok(answer);
        }
        let words = answer["message"].as_str().or(answer["error"].as_str());
        let words = words.unwrap_or("no answer that is understood");
        let error = failed(&format_args!("{status}: {words}"));
        // Users and roles that are changed end tokens as well.
        let is_token = ["invalid auth token", "revision of auth store is old", "user name is empty"]
            .iter()
            .any(|phrase| words.contains(phrase));
        Err(match status {
            _ if is_token || status == StatusCode::UNAUTHORIZED => Failure::Token(error),
            _ if status.is_server_error() || answer.is_null() => Failure::Silent(error),
            _ => Failure::Refused(error),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_folder_and_no_others() {
        let all = keys_in("/a/");
        assert_eq!(text(&all["key"]).as_deref(), Some("/a/"));
        assert_eq!(text(&all["range_end"]).as_deref(), Some("/a0"));
        assert!("/a/zzz" < "/a0" && "/a/" > "/a" && "/ab" > "/a0");
    }
}
