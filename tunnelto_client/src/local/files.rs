//! A folder served as a web site, in memory: index pages, ranges, ETag.

use std::path::Path;

use hyper::{server::conn::http1, service::service_fn};
use hyper_staticfile::Static;
use hyper_util::rt::TokioIo;
use tokio::io::{DuplexStream, duplex};

/// Bytes on their way between the tunnel and the file server.
const PIPE: usize = 64 * 1024;

/// A fresh connection to the folder. Must be called within a local runtime; the task ends with the connection.
pub fn connect(folder: &Path) -> DuplexStream {
    let (ours, theirs) = duplex(PIPE);
    let files = Static::new(folder);
    tokio::task::spawn_local(async move {
        let service = service_fn(move |request| {
            let files = files.clone();
            async move { files.serve(request).await }
        });
        if let Err(error) = http1::Builder::new().serve_connection(TokioIo::new(theirs), service).await {
            tracing::debug!(%error, "file connection ended");
        }
    });
    ours
}
