//! etcd's JSON gateway: its gRPC interface as HTTP/1.1, with bytes in base64 and numbers as strings.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
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

use super::super::store::StoreError;
use crate::{config::Credentials, limits::MAX_PEER_ANSWER};

pub struct Gateway {
    client: Client<HttpConnector, Full<Bytes>>,
    endpoints: Vec<Authority>,
    /// Which of them is asked.
    present: AtomicUsize,
    user: Option<Credentials>,
    token: Mutex<Option<String>>,
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
    pub fn new(endpoints: &[Authority], user: Option<&Credentials>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        Self {
            client,
            endpoints: endpoints.to_vec(),
            present: AtomicUsize::new(0),
            user: user.cloned(),
            token: Mutex::default(),
        }
    }

    pub fn endpoint(&self) -> &Authority {
        &self.endpoints[self.present.load(Ordering::Relaxed) % self.endpoints.len()]
    }

    /// Calls `method` with `question`. A failure makes the next call go to the next endpoint.
    pub async fn ask(&self, method: &str, question: &Value) -> Result<Value, StoreError> {
        let token = self.token().await?;
        let result = self.post(method, question, token).await;
        if result.is_err() {
            self.present.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    async fn token(&self) -> Result<Option<String>, StoreError> {
        let Some(Credentials { name, password }) = &self.user else { return Ok(None) };
        let known = self.token.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if known.is_some() {
            return Ok(known);
        }
        let who = json!({ "name": name, "password": password });
        let answer = self.post("auth/authenticate", &who, None).await?;
        let token = answer["token"].as_str().map(str::to_owned);
        self.token.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&token);
        Ok(token)
    }

    async fn post(&self, method: &str, question: &Value, token: Option<String>) -> Result<Value, StoreError> {
        let at = self.endpoint();
        let mut request =
            Request::post(format!("http://{at}/v3/{method}")).header(CONTENT_TYPE, "application/json");
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, token);
        }
        let failed = |error: &dyn std::fmt::Display| StoreError(format!("{at}: {error}").into());
        let request = request.body(Full::from(question.to_string())).map_err(|error| failed(&error))?;
        let answer = self.client.request(request).await.map_err(|error| failed(&error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_PEER_ANSWER).collect().await;
        let body = body.map_err(|error| failed(&error))?.to_bytes();
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        if status == StatusCode::OK && answer["error"].is_null() {
            return Ok(answer);
        }
        // Tokens end; the next call asks for a new one.
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let words = answer["message"].as_str().or(answer["error"].as_str());
        Err(failed(&format_args!("{status}: {}", words.unwrap_or("no answer that is understood"))))
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
