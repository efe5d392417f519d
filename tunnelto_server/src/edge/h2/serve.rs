//! One connection: requests side by side, each an exchange of its own.

use std::{net::SocketAddr, rc::Rc};

use bytes::Bytes;
use h2::{RecvStream, server::SendResponse};
use http::Request;
use tokio::{task::JoinSet, time::sleep};
use tunnelto_lib::read_buffer::ReadBuffer;

use super::{
    request::{Upload, to_http1},
    respond::Respond,
};
use crate::{
    active_stream::Reuse,
    edge::{
        h1::{
            answer::{Answer, Failure},
            request::{After, RequestHead, Version},
        },
        handler::{Handler, Health, Opening, is_health_check},
        listener::Accepted,
        pages::Page,
    },
    error::Refusal,
    exchange::{Exchange, Outcome},
    io::{Rewind, within},
    limits::{ANSWER_TIME, H2_CONNECTION_WINDOW, H2_STREAMS, H2_WINDOW, HEAD_TIME, KEEP_ALIVE, MAX_HEAD},
};

/// Resets that a visitor may have waiting before it is sent away (CVE-2023-44487).
const MAX_RESETS: usize = 100;

/// How often a connection looks whether the server is draining.
const LOOK: std::time::Duration = std::time::Duration::from_secs(1);

pub async fn serve<H: Handler + 'static>(accepted: Accepted, mut first: ReadBuffer, handler: Rc<H>) {
    let Accepted { socket, peer, place: _place } = accepted;
    let io = Rewind { first: first.take(), io: socket };
    let mut builder = h2::server::Builder::new();
    builder
        .max_concurrent_streams(H2_STREAMS)
        .initial_window_size(H2_WINDOW)
        .initial_connection_window_size(H2_CONNECTION_WINDOW)
        .max_header_list_size(MAX_HEAD as u32)
        .max_pending_accept_reset_streams(MAX_RESETS);
    let Ok(Ok(mut connection)) = within(HEAD_TIME, builder.handshake::<_, Bytes>(io)).await else { return };
    let mut requests = JoinSet::new();
    let mut is_going = false;
    loop {
        let idle = requests.is_empty();
        tokio::select! {
            accepted = connection.accept() => match accepted {
                Some(Ok((request, respond))) => {
                    requests.spawn_local(exchange(request, respond, peer, handler.clone()));
                }
                Some(Err(error)) => {
                    tracing::debug!(%error, %peer, "HTTP/2 connection broke");
                    return;
                }
                None => return,
            },
            Some(_) = requests.join_next(), if !idle => {}
            () = sleep(KEEP_ALIVE), if idle => {
                connection.graceful_shutdown();
            }
            () = sleep(LOOK), if !is_going => {
                is_going = handler.health() == Health::Draining;
                if is_going {
                    connection.graceful_shutdown();
                }
            }
        }
    }
}

async fn exchange<H: Handler>(
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
    peer: SocketAddr,
    handler: Rc<H>,
) {
    let (parts, body) = request.into_parts();
    let head = to_http1(&parts, body.is_end_stream());
    let parsed = head.and_then(|head| RequestHead::parse(head, peer, handler.trusted_proxies()));
    let target = Bytes::copy_from_slice(parts.uri.path().as_bytes());
    let mut exchange = Exchange::new(peer, parts.method.clone(), target);
    let mut respond = Respond::new(respond);
    match parsed {
        Err(refusal) => refuse(&mut respond, &mut exchange, refusal, None).await,
        Ok(head) => {
            exchange.visitor = head.visitor;
            exchange.target = head.target.clone();
            let outcome = answer(&head, body, &mut respond, &mut exchange, &*handler).await;
            exchange.bytes_out = respond.bytes_out;
            if let Err(refusal) = outcome {
                refuse(&mut respond, &mut exchange, refusal, Some(&head)).await;
            }
        }
    }
}

/// Routes, opens, carries. A refusal comes back only while the visitor has not got a head.
async fn answer<H: Handler>(
    head: &RequestHead,
    body: RecvStream,
    respond: &mut Respond,
    exchange: &mut Exchange,
    handler: &H,
) -> Result<(), Refusal> {
    let opening = match is_health_check(&head.method, &head.target) {
        true => Opening::Health(handler.health()),
        // A body cannot be asked for twice, and a reused stream may turn out to be dead.
        false => handler.open(exchange, &head.host, Reuse::Never).await?,
    };
    let stream = match opening {
        Opening::Stream(stream) => stream,
        Opening::Wormhole => return Err(Refusal::BadRequest("clients connect by HTTP/1.1")),
        local => {
            exchange.outcome = Outcome::Local;
            if let Some(page) = Page::local(&local) {
                exchange.status = Some(page.status.as_u16());
                respond.page(&page, &head.method).await;
            }
            return Ok(());
        }
    };
    stream.send(head.onward(After::Close)).map_err(|ended| Refusal::from(Failure::Ended(ended)))?;
    let upload = Upload::new(body, head.body.clone());
    let mut answer = Answer::new(&stream);
    let mut uploading = std::pin::pin!(upload.run(&stream));
    let mut is_sent = false;
    let response = loop {
        tokio::select! {
            biased;
            next = answer.head(&head.method, Version::Http11) => match next.map_err(Refusal::from)? {
                interim if interim.is_interim() => respond.interim(&interim),
                response => break response,
            },
            sent = &mut uploading, if !is_sent => {
                is_sent = true;
                exchange.bytes_in = sent.map_err(|_| Refusal::BadRequest("the request broke off"))?;
            }
            () = respond.until_reset() => return Ok(()),
            () = sleep(ANSWER_TIME), if is_sent => return Err(Refusal::UpstreamTimeout),
        }
    };
    exchange.status = Some(response.status);
    if response.status == 101 {
        return Err(Refusal::ProxyingFailed);
    }
    let mut relaying = std::pin::pin!(respond.relay(response, answer, &stream, head));
    exchange.outcome = loop {
        tokio::select! {
            biased;
            outcome = &mut relaying => break outcome,
            // An answer may be whole before its request is; what is left of the request is of no use then.
            sent = &mut uploading, if !is_sent => {
                is_sent = true;
                exchange.bytes_in = sent.unwrap_or(0);
            }
        }
    };
    Ok(())
}

async fn refuse(
    respond: &mut Respond,
    exchange: &mut Exchange,
    refusal: Refusal,
    head: Option<&RequestHead>,
) {
    exchange.outcome = Outcome::Refused(refusal);
    exchange.status = Some(refusal.status().as_u16());
    let form = head.map(|head| head.accept).unwrap_or_default();
    respond.page(&Page::refusal(refusal, form), &exchange.method).await;
}
