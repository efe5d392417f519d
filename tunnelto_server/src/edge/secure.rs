//! Ending TLS: the hello is read whole before anything answers it, since it may be for another instance.

use std::sync::Arc;

use rustls::ServerConfig;
use tokio::{
    io::AsyncWriteExt,
    time::{Instant, timeout_at},
};
use tokio_rustls::TlsAcceptor;
use tunnelto_lib::read_buffer::ReadBuffer;

use super::listener::Accepted;
use crate::{
    exchange::Way,
    io::within,
    limits::{HEAD_TIME, MAX_TLS_HELLO},
    socket::{Socket, carrier},
    tls::{
        certificate::Certificate,
        hello::{self, Hello, Wanted},
    },
};

/// A TLS alert, unrecognized_name (RFC 6066 section 3): no certificate is for the host that the visitor asks for.
const NO_SUCH_NAME: [u8; 7] = [0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x70];

/// A TLS alert, protocol_version (RFC 8446 section 6.2): what a TLS client understands on a plain port.
const NO_TLS_HERE: [u8; 7] = [0x15, 0x03, 0x01, 0x00, 0x02, 0x02, 0x46];

/// What a visitor asks for. `Err` when it left or takes too long.
pub async fn read_hello(accepted: &mut Accepted, first: &mut ReadBuffer) -> Result<Wanted, ()> {
    let deadline = Instant::now() + HEAD_TIME;
    loop {
        match hello::read(&first.bytes) {
            Hello::Whole(wanted) => return Ok(wanted),
            // Going on finds the same, and says so to the visitor.
            Hello::Malformed => return Ok(Wanted::default()),
            Hello::Incomplete if first.bytes.len() > MAX_TLS_HELLO => return Err(()),
            Hello::Incomplete => {}
        }
        match timeout_at(deadline, first.fill(&mut accepted.socket)).await {
            Ok(Ok(count)) if count > 0 => {}
            _ => return Err(()),
        }
    }
}

/// Shakes hands. `None` when that fails, which the visitor is told by an alert.
pub async fn accept(
    accepted: Accepted,
    mut first: ReadBuffer,
    wanted: &Wanted,
    certificate: Option<Arc<Certificate>>,
) -> Option<Accepted> {
    let Accepted { socket, peer, place, mut arrival } = accepted;
    let Socket::Plain(mut socket) = socket else { return None };
    let Some(certificate) = certificate else {
        tracing::debug!(%peer, ?wanted, "no certificate for the visitor's host");
        // It learns nothing more if it is gone.
        let _ = socket.write_all(&NO_SUCH_NAME).await;
        return None;
    };
    let acceptor = TlsAcceptor::from(certificate.config.clone());
    let shaking = acceptor.accept(carrier(first.take(), socket));
    match within(HEAD_TIME, shaking).await {
        Ok(Ok(tls)) => {
            arrival.way = Way::Tls(Some(certificate.names.clone()));
            Some(Accepted { socket: tls.into(), peer, place, arrival })
        }
        Ok(Err(error)) => {
            tracing::debug!(%peer, ?wanted, %error, "TLS handshake failed");
            None
        }
        Err(_) => None,
    }
}

/// Shows a validation what it has come for. It ends the connection as soon as the handshake is done (RFC 8737 section 3).
pub async fn prove(accepted: Accepted, mut first: ReadBuffer, proof: Arc<ServerConfig>) {
    if let Socket::Plain(socket) = accepted.socket {
        // Its end tells the authority whatever it did not like.
        let _ = within(HEAD_TIME, TlsAcceptor::from(proof).accept(carrier(first.take(), socket))).await;
    }
}

/// Whoever speaks TLS to a plain port is told in its own language.
pub async fn refuse(accepted: Accepted) {
    let mut socket = accepted.socket;
    // It may be gone already.
    let _ = socket.write_all(&NO_TLS_HERE).await;
}
