//! One visitor connection: exchange after exchange, each routed by its own Host.

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use http::Method;
use tunnelto_lib::read_buffer::ReadBuffer;

use super::{
    carry::{Carrying, Tried},
    framing::Body,
    request::{Form, RequestHead, Version, form_of},
    visitor::Visitor,
};
use crate::{
    active_stream::{Reuse, ShardId},
    edge::{
        handler::{Handler, Opening, is_health_request},
        listener::{Accepted, Arrival, Place},
        pages::{Connection, Page},
    },
    error::Refusal,
    exchange::{Exchange, Outcome, Reach},
    gauge::Counted,
    limits::{MAX_LOOKS, MAX_TRIES, REPLAY},
    network::proxy::Reached,
    socket::Socket,
    upstream::Upstream,
};

/// A connection that goes on elsewhere, with the request that says so still to be read.
pub struct HandOver {
    pub to: Elsewhere,
    pub socket: Socket,
    pub first: Bytes,
    pub peer: SocketAddr,
    pub place: Place,
    pub arrival: Arrival,
    pub busy: Counted,
}

pub enum Elsewhere {
    /// It is a client's.
    Control,
    Shard(ShardId),
    /// The instance that has taken it, along with what was read.
    Peer(Reached),
}

/// What becomes of the visitor's connection after an exchange.
enum Next {
    Another,
    Close,
    /// Some of the request may be unread.
    Linger,
    /// The visitor must notice that its answer is not whole.
    Abort,
    /// Its tunnel's client is on another shard now; `sent` is what was used of the request's body.
    Move {
        to: ShardId,
        sent: BytesMut,
    },
}

/// Serves a connection to its end, or to the request that hands it over. `moved` counts the first exchange of one
/// that another shard has given away.
pub async fn serve<H: Handler>(
    accepted: Accepted,
    first: ReadBuffer,
    mut moved: Option<Counted>,
    handler: &H,
) -> Option<HandOver> {
    let mut visitor = Visitor::new(accepted, first);
    loop {
        let parsed = match visitor.next_head().await {
            Ok(Some(head)) if is_health_request(&head) => {
                let page = Page::health(handler.health());
                match visitor.answer(&page, &Method::GET, Connection::Close).await {
                    Ok(()) => visitor.linger().await,
                    Err(error) => tracing::debug!(%error, "health check not answered"),
                }
                return None;
            }
            Ok(Some(head)) => RequestHead::parse(
                head.clone(),
                visitor.peer,
                handler.trusted_proxies(),
                visitor.arrival.way.is_tls(),
            )
            .map_err(|refusal| (refusal, form_of(&head)))
            .map(|request| (head, request)),
            Ok(None) => return None,
            Err(refusal) => Err((refusal, Form::Text)),
        };
        let busy = handler.begin();
        let has_moved = moved.take().is_some();
        let (head, request) = match parsed {
            Ok(parsed) => parsed,
            Err((refusal, form)) => {
                refuse_head(visitor, refusal, form).await;
                return None;
            }
        };
        let mut exchange =
            Exchange::new(request.visitor, visitor.peer, request.method.clone(), request.target.clone());
        exchange.has_moved = has_moved;
        exchange.reach = visitor.arrival.reach();
        exchange.way = visitor.arrival.way.clone();
        exchange.is_secure = request.is_secure;
        let opening = open_or_bring(handler, &mut exchange, &request, &[&head, &visitor.buffer.bytes]).await;
        visitor.arrival.has_asked = !matches!(opening, Ok(Found::Here(Opening::Elsewhere(_))));
        let next = match opening {
            Ok(Found::Taken(reached)) => {
                exchange.move_on();
                visitor.buffer = ReadBuffer::default();
                return Some(HandOver::new(Elsewhere::Peer(reached), visitor, busy, &[], &[]));
            }
            Ok(Found::Here(opening)) => match opening {
                Opening::Stream(stream) => {
                    carry(&mut visitor, handler, &mut exchange, &request, &head, stream).await
                }
                Opening::Wormhole => {
                    exchange.outcome = Outcome::Local;
                    return Some(HandOver::new(Elsewhere::Control, visitor, busy, &head, &[]));
                }
                Opening::Elsewhere(to) => Next::Move { to, sent: BytesMut::new() },
                local => answer_locally(&mut visitor, &mut exchange, &request, &local).await,
            },
            Err(refusal) => refuse(&mut visitor, &mut exchange, &request, refusal).await,
        };
        if matches!(next, Next::Move { .. }) {
            exchange.move_on();
        }
        drop(exchange);
        match next {
            Next::Another => {}
            Next::Move { to, sent } => {
                return Some(HandOver::new(Elsewhere::Shard(to), visitor, busy, &head, &sent));
            }
            Next::Close => return None,
            Next::Linger => {
                visitor.linger().await;
                return None;
            }
            Next::Abort => {
                visitor.abort();
                return None;
            }
        }
    }
}

impl HandOver {
    fn new(to: Elsewhere, visitor: Visitor, busy: Counted, head: &[u8], sent: &[u8]) -> Self {
        let Visitor { socket, buffer, peer, place, arrival, timer: _ } = visitor;
        Self {
            to,
            socket,
            first: [head, sent, &buffer.bytes[..]].concat().into(),
            peer,
            place,
            arrival,
            busy,
        }
    }
}

/// What a request has led to.
enum Found {
    Here(Opening),
    /// Another instance has taken the whole connection.
    Taken(Reached),
}

/// Opens, or brings the connection to the instance that serves the tunnel. One that turns out not to, or to be gone, is
/// looked for once more.
async fn open_or_bring<H: Handler>(
    handler: &H,
    exchange: &mut Exchange,
    request: &RequestHead,
    first: &[&[u8]],
) -> Result<Found, Refusal> {
    let mut looks = 1;
    loop {
        let bound = match open(handler, exchange, request, Reuse::Allowed).await? {
            Opening::Pipe(bound) => bound,
            opening => return Ok(Found::Here(opening)),
        };
        match handler.bring(exchange, &bound, first).await {
            Ok(reached) => return Ok(Found::Taken(reached)),
            Err(not) if looks < MAX_LOOKS && (!not.was_used || request.is_repeatable()) => looks += 1,
            Err(not) => return Err(not.refusal),
        }
    }
}

async fn open<H: Handler>(
    handler: &H,
    exchange: &mut Exchange,
    request: &RequestHead,
    reuse: Reuse,
) -> Result<Opening, Refusal> {
    // What may have to be sent twice must fit in memory; all else goes onto a fresh stream.
    let is_small = matches!(request.body, Body::Length(length) if length <= REPLAY as u64);
    let reuse = match reuse {
        Reuse::Allowed if !is_small || request.upgrade.is_some() => Reuse::Never,
        Reuse::Allowed if !request.is_repeatable() => Reuse::Proved,
        other => other,
    };
    handler.open(exchange, &request.host, reuse).await
}

/// Sends the request and relays the answer; on another stream where that is safe.
async fn carry<H: Handler>(
    visitor: &mut Visitor,
    handler: &H,
    exchange: &mut Exchange,
    request: &RequestHead,
    head: &Bytes,
    mut stream: Upstream,
) -> Next {
    let mut carrying = Carrying::new(visitor, request, head);
    // A visitor that is already known here stays.
    exchange.reach = exchange.reach.max(Reach::Request);
    let mut tries = 1;
    let refusal = loop {
        let failure = match carrying.run(stream, handler, exchange).await {
            Tried::Answered { stays: true } => return Next::Another,
            Tried::Answered { stays: false } => return Next::Linger,
            Tried::Broken => return Next::Abort,
            Tried::VisitorGone => return Next::Close,
            Tried::TimedOut => break Refusal::UpstreamTimeout,
            Tried::BadBody => break Refusal::BadRequest("malformed chunked body"),
            Tried::Failed { failure, again } if !again || tries == MAX_TRIES => break failure.into(),
            Tried::Failed { failure, .. } => failure,
        };
        tries += 1;
        stream = match open(handler, exchange, request, Reuse::Never).await {
            Ok(Opening::Stream(stream)) => stream,
            Ok(Opening::Elsewhere(to)) => return Next::Move { to, sent: carrying.into_sent() },
            Ok(_) => return Next::Close,
            // There is no other that might do better.
            Err(_) if failure.is_refusal() => break failure.into(),
            Err(refusal) => break refusal,
        };
    };
    let is_read = carrying.is_read();
    refuse_read(visitor, exchange, request, refusal, is_read).await
}

/// A head that cannot be understood is answered, and nothing behind it is read as a request.
async fn refuse_head(mut visitor: Visitor, refusal: Refusal, form: Form) {
    let mut exchange = Exchange::new(visitor.peer, visitor.peer, Method::GET, Bytes::new());
    exchange.outcome = Outcome::Refused(refusal);
    exchange.status = Some(refusal.status().as_u16());
    let page = Page::refusal(refusal, form);
    if visitor.answer(&page, &Method::GET, Connection::Close).await.is_ok() {
        visitor.linger().await;
    }
}

async fn refuse(
    visitor: &mut Visitor,
    exchange: &mut Exchange,
    request: &RequestHead,
    refusal: Refusal,
) -> Next {
    refuse_read(visitor, exchange, request, refusal, request.body.is_done()).await
}

async fn refuse_read(
    visitor: &mut Visitor,
    exchange: &mut Exchange,
    request: &RequestHead,
    refusal: Refusal,
    is_read: bool,
) -> Next {
    exchange.outcome = Outcome::Refused(refusal);
    let page = Page::refusal(refusal, request.accept);
    answer(visitor, exchange, request, &page, is_read && refusal.keeps_connection()).await
}

async fn answer_locally(
    visitor: &mut Visitor,
    exchange: &mut Exchange,
    request: &RequestHead,
    opening: &Opening,
) -> Next {
    exchange.outcome = Outcome::Local;
    let Some(page) = Page::local(opening) else { return Next::Close };
    answer(visitor, exchange, request, &page, request.body.is_done()).await
}

/// A body that nobody took is never read as a request: then the connection does not stay.
async fn answer(
    visitor: &mut Visitor,
    exchange: &mut Exchange,
    request: &RequestHead,
    page: &Page,
    may_stay: bool,
) -> Next {
    exchange.status = Some(page.status.as_u16());
    let stays = may_stay && request.keeps_alive && request.version == Version::Http11;
    let connection = if stays { Connection::KeepAlive } else { Connection::Close };
    match visitor.answer(page, &request.method, connection).await {
        Err(_) => Next::Close,
        Ok(()) if stays => Next::Another,
        Ok(()) => Next::Linger,
    }
}
