//! A folder served as a web site, in memory: index pages, ranges, ETag.

use std::path::Path;

use http::{HeaderMap, Response, StatusCode, header};
use hyper::{server::conn::http1, service::service_fn};
use hyper_staticfile::{Body, Static};
use hyper_util::rt::TokioIo;
use tokio::io::{DuplexStream, duplex};

/// Bytes on their way between the tunnel and the file server.
const PIPE: usize = 64 * 1024;

/// A fresh connection to the folder. Must be called within a local runtime; the task ends with the connection.
pub fn connect(folder: &Path) -> DuplexStream {
    let (ours, theirs) = duplex(PIPE);
    let files = Static::new(folder);
    tokio::task::spawn_local(async move {
        let service = service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
            let files = files.clone();
            async move {
                let wanted = request.headers().get(header::IF_NONE_MATCH).cloned();
                if wanted.is_some() {
                    // It rules alone (RFC 9110 section 13.1.3).
                    request.headers_mut().remove(header::IF_MODIFIED_SINCE);
                }
                let response = files.serve(request).await?;
                let is_known = wanted.is_some_and(|wanted| matches(wanted.as_bytes(), response.headers()));
                Ok::<_, std::io::Error>(if is_known { not_modified(response) } else { response })
            }
        });
        if let Err(error) = http1::Builder::new().serve_connection(TokioIo::new(theirs), service).await {
            tracing::debug!(%error, "file connection ended");
        }
    });
    ours
}

/// Whether If-None-Match names what would be sent (RFC 9110 section 13.1.2, weak comparison). The library knows
/// ETag for ranges only.
fn matches(wanted: &[u8], response: &HeaderMap) -> bool {
    let Some(etag) = response.get(header::ETAG) else { return false };
    let strong = |tag: &[u8]| tag.trim_ascii().strip_prefix(b"W/").unwrap_or(tag.trim_ascii()).to_vec();
    wanted.trim_ascii() == b"*"
        || wanted.split(|byte| *byte == b',').any(|tag| strong(tag) == strong(etag.as_bytes()))
}

fn not_modified(response: Response<Body>) -> Response<Body> {
    let (mut parts, _) = response.into_parts();
    parts.status = StatusCode::NOT_MODIFIED;
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.remove(header::CONTENT_TYPE);
    Response::from_parts(parts, Body::Empty)
}
