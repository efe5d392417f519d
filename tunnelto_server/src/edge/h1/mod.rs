//! HTTP/1 of our own (RFC 9110, RFC 9112), towards visitors and towards the local service.
//!
//! `request` and `response` read and rewrite heads, `framing` finds where bodies end; `visitor` is the
//! connection and `answer` the stream; `upload` and `download` are an exchange's two directions, `carry` runs
//! them side by side, `serve` goes from one exchange to the next.

pub mod answer;
mod carry;
mod download;
pub mod framing;
pub mod request;
pub mod response;
mod serve;
mod upload;
mod visitor;

pub use serve::{Elsewhere, HandOver, serve};
