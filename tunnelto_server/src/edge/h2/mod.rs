//! HTTP/2 (RFC 9113) towards visitors, without TLS and by prior knowledge. Each request becomes one HTTP/1.1
//! request to the local service, by the same rules as a visitor's own: `request` writes it, `respond` turns the
//! answer back.

mod request;
mod respond;
mod serve;
mod switch;

pub use serve::{serve, serve_moved};
