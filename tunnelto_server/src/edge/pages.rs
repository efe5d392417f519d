//! Answers of the server itself: refusals in the form that the visitor reads, the bare host, health.

use bytes::{Bytes, BytesMut};
use http::{Method, StatusCode};

use super::{
    h1::request::{Form, put_field},
    handler::{Health, Opening},
};
use crate::error::Refusal;

/// A whole answer, before it is framed for one protocol.
pub struct Page {
    pub status: StatusCode,
    pub fields: Vec<(&'static str, String)>,
    pub body: String,
}

/// Whether the connection goes on after a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    KeepAlive,
    Close,
}

impl Page {
    pub fn refusal(refusal: Refusal, form: Form) -> Self {
        let status = refusal.status();
        let (content_type, body) = match form {
            Form::Text => ("text/plain; charset=utf-8", refusal.words().to_owned()),
            Form::Html => ("text/html; charset=utf-8", html(refusal.words(), refusal.explanation(), status)),
            Form::Json => ("application/json", json(refusal)),
        };
        let mut fields = vec![
            ("Content-Type", content_type.to_owned()),
            ("Tunnelto-Error", refusal.code().to_owned()),
            ("Cache-Control", "no-store".to_owned()),
        ];
        if let Some(seconds) = refusal.retry_after() {
            fields.push(("Retry-After", seconds.to_string()));
        }
        Self { status, fields, body }
    }

    /// What is answered here without a tunnel; `None` for what is not answered here.
    pub fn local(opening: &Opening) -> Option<Self> {
        match opening {
            Opening::Home(Some(url)) => Some(Self::redirect(StatusCode::FOUND, url)),
            // The method stays (RFC 9110 section 15.4.9).
            Opening::Secure(url) => Some(Self::redirect(StatusCode::PERMANENT_REDIRECT, url)),
            Opening::Home(None) => {
                let words = "A tunnelto server runs here.";
                let next = "Open a tunnel of your own with: tunnelto 3000 -s NAME";
                let fields = vec![("Content-Type", "text/html; charset=utf-8".to_owned())];
                Some(Self { status: StatusCode::OK, fields, body: html(words, next, StatusCode::OK) })
            }
            Opening::Health(health) => Some(Self::health(*health)),
            Opening::Words(words) => Some(Self::text(StatusCode::OK, words)),
            Opening::Stream(_) | Opening::Pipe(_) | Opening::Elsewhere(_) | Opening::Wormhole => None,
        }
    }

    fn redirect(status: StatusCode, url: &str) -> Self {
        Self { status, fields: vec![("Location", url.to_owned())], body: String::new() }
    }

    pub fn health(health: Health) -> Self {
        match health {
            Health::Ok => Self::text(StatusCode::OK, "ok"),
            Health::Draining => Self::text(StatusCode::SERVICE_UNAVAILABLE, "draining"),
        }
    }

    fn text(status: StatusCode, words: &str) -> Self {
        let fields = vec![("Content-Type", "text/plain; charset=utf-8".to_owned())];
        Self { status, fields, body: words.to_owned() }
    }

    /// The bytes of an HTTP/1.1 answer to a request of `method`.
    pub fn to_http1(&self, method: &Method, connection: Connection) -> Bytes {
        let mut out = BytesMut::with_capacity(256 + self.body.len());
        let reason = self.status.canonical_reason().unwrap_or_default();
        out.extend_from_slice(format!("HTTP/1.1 {} {reason}\r\n", self.status.as_u16()).as_bytes());
        for (name, value) in &self.fields {
            put_field(&mut out, name, value.as_bytes());
        }
        put_field(&mut out, "Content-Length", self.body.len().to_string().as_bytes());
        if connection == Connection::Close {
            put_field(&mut out, "Connection", b"close");
        }
        out.extend_from_slice(b"\r\n");
        if *method != Method::HEAD {
            out.extend_from_slice(self.body.as_bytes());
        }
        out.freeze()
    }
}

fn json(refusal: Refusal) -> String {
    let body = serde_json::json!({
        "error": refusal.code(),
        "message": refusal.words(),
        "retry_after": refusal.retry_after(),
    });
    body.to_string()
}

/// One self-contained page, light and dark.
fn html(words: &str, explanation: &str, status: StatusCode) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>{words}</title><style>\
         :root{{color-scheme:light dark}}body{{margin:0;min-height:100vh;display:grid;place-items:center;\
         font:1rem/1.5 system-ui,sans-serif;background:light-dark(#f6f7f9,#14161a);color:light-dark(#1d2127,#e6e8eb)}}\
         main{{max-width:34rem;padding:2rem}}h1{{font-size:1.5rem;margin:0 0 .5rem}}\
         p{{margin:0;color:light-dark(#555c66,#a3a9b3)}}small{{display:block;margin-top:2rem;\
         color:light-dark(#7a818c,#7d8591)}}</style></head><body><main><h1>{words}</h1><p>{explanation}</p>\
         <small>{} · tunnelto</small></main></body></html>\n",
        status.as_u16()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_has_every_form() {
        for refusal in Refusal::ALL {
            for (form, content_type) in
                [(Form::Text, "text/plain"), (Form::Html, "text/html"), (Form::Json, "application/json")]
            {
                let page = Page::refusal(refusal, form);
                let text =
                    String::from_utf8(page.to_http1(&Method::GET, Connection::Close).to_vec()).unwrap();
                let status = refusal.status().as_u16();
                assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{text}");
                assert!(text.contains(&format!("\r\nContent-Type: {content_type}")), "{text}");
                assert!(text.contains(&format!("\r\nTunnelto-Error: {}\r\n", refusal.code())), "{text}");
                let wanted = if form == Form::Json { refusal.code() } else { refusal.words() };
                assert!(page.body.contains(wanted), "{text}");
                assert_eq!(text.contains("\r\nRetry-After: "), refusal.retry_after().is_some());
            }
        }
    }

    #[test]
    fn an_answer_to_head_has_no_body() {
        let page = Page::refusal(Refusal::TunnelNotFound, Form::Text);
        let bytes = page.to_http1(&Method::HEAD, Connection::KeepAlive);
        assert!(bytes.ends_with(b"\r\n\r\n"));
        assert!(String::from_utf8_lossy(&bytes).contains("Content-Length: 23\r\n"));
    }
}
