//! One connection: requests side by side, each an exchange of its own.

use std::{cell::Cell, net::SocketAddr, rc::Rc, time::Duration};

use bytes::Bytes;
use h2::{Reason, RecvStream, server::SendResponse};
use http::{Method, Request};
use tokio::{
    sync::oneshot,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tunnelto_lib::read_buffer::ReadBuffer;

use super::{
    request::{Upload, to_http1},
    respond::Respond,
    switch::switch,
};
use crate::{
    active_stream::Reuse,
    edge::{
        h1::{
            answer::{Answer, Failure},
            request::{After, RequestHead, Version},
        },
        handler::{HEALTH_CHECK, Handler, Opening},
        handover::{Ending, MovedRequest, Parcel},
        listener::Accepted,
        pages::Page,
    },
    error::Refusal,
    exchange::{Exchange, Outcome, Reach, Way},
    gauge::Counted,
    io::{Rewind, within},
    limits::{
        ANSWER_TIME, H2_CONNECTION_WINDOW, H2_STREAMS, H2_WINDOW, HEAD_TIME, KEEP_ALIVE, MAX_HEAD,
        MAX_INTERIM, MAX_TRIES,
    },
    upstream::Upstream,
};

/// Requests that a visitor may take back within [`RESET_TIME`], and that may be waiting taken back, before it is sent away.
const MAX_RESETS: usize = 200;
const RESET_TIME: Duration = Duration::from_secs(10);

/// How long a visitor may take to hang up after it was asked to.
const GOODBYE: Duration = Duration::from_secs(5);

/// How often a visitor that was brought is looked after.
const BROUGHT_LOOK: Duration = Duration::from_secs(1);

pub async fn serve<H: Handler + 'static>(accepted: Accepted, mut first: ReadBuffer, handler: Rc<H>) {
    let Accepted { socket, peer, place: _place, arrival } = accepted;
    let way = arrival.way.clone();
    let io = Rewind { first: first.take(), io: socket };
    let mut builder = h2::server::Builder::new();
    builder
        .max_concurrent_streams(H2_STREAMS)
        .initial_window_size(H2_WINDOW)
        .initial_connection_window_size(H2_CONNECTION_WINDOW)
        .max_header_list_size(MAX_HEAD as u32)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .enable_connect_protocol();
    let Ok(Ok(mut connection)) = within(HEAD_TIME, builder.handshake::<_, Bytes>(io)).await else { return };
    let mut requests = JoinSet::new();
    let mut idle_since = Instant::now();
    let mut patience = Patience { since: Instant::now(), resets: 0 };
    // A visitor that does not answer our goodbye is left.
    let mut leave_at = None;
    let mut says_goodbye = false;
    loop {
        let is_idle = requests.is_empty();
        let idle_until = idle_since + KEEP_ALIVE;
        tokio::select! {
            accepted = connection.accept() => match accepted {
                Some(Ok((request, respond))) => {
                    says_goodbye |= handler.is_last(&arrival);
                    requests.spawn_local(exchange(request, respond, (peer, way.clone()), None, handler.clone()));
                }
                Some(Err(error)) => {
                    tracing::debug!(%error, %peer, "HTTP/2 connection broke");
                    return;
                }
                None => return,
            },
            Some(ending) = requests.join_next(), if !is_idle => {
                idle_since = Instant::now();
                if matches!(ending, Ok(Ending::Reset)) && patience.is_lost(Instant::now()) {
                    tracing::debug!(%peer, "HTTP/2 visitor sent away: requests reset without end");
                    connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                    leave_at.get_or_insert(Instant::now() + GOODBYE);
                }
            }
            () = sleep_until(idle_until), if is_idle && leave_at.is_none() => says_goodbye = true,
            () = handler.until_draining(), if leave_at.is_none() => says_goodbye = true,
            // Nobody but us can tell it that the instance stops which has brought it.
            () = sleep(BROUGHT_LOOK), if arrival.brought.is_some() && leave_at.is_none() => {
                says_goodbye = handler.is_last(&arrival);
            }
            () = sleep_until(leave_at.unwrap_or(idle_until)), if is_idle && leave_at.is_some() => return,
        }
        if says_goodbye && leave_at.is_none() {
            connection.graceful_shutdown();
            leave_at = Some(Instant::now() + GOODBYE);
        }
    }
}

/// Requests that a visitor took back of late: some are the way of browsers, masses are an attack (CVE-2023-44487).
struct Patience {
    since: Instant,
    resets: usize,
}

impl Patience {
    fn is_lost(&mut self, now: Instant) -> bool {
        if now.duration_since(self.since) > RESET_TIME {
            *self = Self { since: now, resets: 0 };
        }
        self.resets += 1;
        self.resets > MAX_RESETS
    }
}

/// A request that another shard has given away.
pub async fn serve_moved<H: Handler>(moved: MovedRequest, handler: Rc<H>) {
    let MovedRequest { request, respond, peer, way, busy, ending } = moved;
    let ended = exchange(request, respond, (peer, way), Some(busy), handler).await;
    // A connection that is gone does not ask.
    let _ = ending.send(ended);
}

async fn exchange<H: Handler>(
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
    (peer, way): (SocketAddr, Way),
    moved: Option<Counted>,
    handler: Rc<H>,
) -> Ending {
    let busy = handler.begin();
    let has_moved = moved.is_some();
    drop(moved);
    let (parts, mut body) = request.into_parts();
    let parsed = to_http1(&parts, body.is_end_stream()).and_then(|plain| {
        let head = RequestHead::parse(plain.clone(), peer, handler.trusted_proxies(), way.is_tls())?;
        Ok((head, plain))
    });
    let target = Bytes::copy_from_slice(parts.uri.path().as_bytes());
    let mut exchange = Exchange::new(peer, peer, parts.method.clone(), target);
    exchange.has_moved = has_moved;
    exchange.reach = Reach::Request;
    exchange.way = way.clone();
    let mut responding = Respond::new(respond);
    let (head, plain) = match parsed {
        Ok(parsed) => parsed,
        Err(refusal) => return refuse(&mut responding, &mut exchange, refusal, None).await,
    };
    exchange.method = head.method.clone();
    exchange.visitor = head.visitor;
    exchange.is_secure = head.is_secure;
    exchange.target = head.target.clone();
    let mut tries = 1;
    let mut refused = None;
    let outcome = loop {
        let opening = match head.method == Method::GET && head.target == HEALTH_CHECK {
            true => Ok(Opening::Health(handler.health())),
            false => handler.open(&mut exchange, &head.host, reuse(&head, tries)).await,
        };
        break match opening {
            Ok(Opening::Stream(stream)) => {
                let result = answer(&head, &plain, &mut body, &mut responding, &mut exchange, &stream).await;
                exchange.bytes_out = responding.bytes_out;
                match result {
                    Err(NotAnswered { again: true, refusal }) if tries < MAX_TRIES => {
                        tries += 1;
                        refused = Some(refusal).filter(|refusal| *refusal == Refusal::TunnelRefused);
                        continue;
                    }
                    Err(not) => Err(not.refusal),
                    Ok(Answered { ending, keep_alive, stays }) => {
                        if exchange.outcome == Outcome::Answered {
                            stream.give_back(keep_alive, stays);
                        }
                        Ok(ending)
                    }
                }
            }
            Ok(Opening::Elsewhere(shard)) => {
                exchange.move_on();
                let (ending, ended) = oneshot::channel();
                let (request, respond) = (Request::from_parts(parts, body), responding.into_inner());
                let moved = MovedRequest { request, respond, peer, way, busy, ending };
                handler.hand_over(shard, Parcel::Request(Box::new(moved))).await;
                // Nothing comes when the server stops, and then nobody counts.
                return ended.await.unwrap_or(Ending::Answered);
            }
            Ok(Opening::Wormhole | Opening::Pipe(_)) => {
                Err(Refusal::BadRequest("clients connect by HTTP/1.1"))
            }
            Ok(local) => {
                exchange.outcome = Outcome::Local;
                if let Some(page) = Page::local(&local) {
                    exchange.status = Some(page.status.as_u16());
                    responding.page(&page, &head.method).await;
                }
                Ok(Ending::Answered)
            }
            // There is no other that might do better.
            Err(refusal) => Err(refused.unwrap_or(refusal)),
        };
    };
    match outcome {
        Ok(ending) => ending,
        Err(refusal) => refuse(&mut responding, &mut exchange, refusal, Some(&head)).await,
    }
}

/// A body cannot be asked for twice, and a reused stream may turn out to be dead.
fn reuse(head: &RequestHead, tries: usize) -> Reuse {
    match () {
        () if tries > 1 || !head.body.is_done() || head.upgrade.is_some() => Reuse::Never,
        () if head.is_repeatable() => Reuse::Allowed,
        () => Reuse::Proved,
    }
}

/// The visitor has got its answer, or has left.
struct Answered {
    ending: Ending,
    /// What the local service says of how long it keeps its connection.
    keep_alive: Option<Duration>,
    /// Whether the stream can serve another exchange.
    stays: bool,
}

impl From<Ending> for Answered {
    fn from(ending: Ending) -> Self {
        Self { ending, keep_alive: None, stays: false }
    }
}

/// The visitor has not got a head.
struct NotAnswered {
    refusal: Refusal,
    /// Whether another stream may be tried.
    again: bool,
}

impl From<Refusal> for NotAnswered {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, again: false }
    }
}

/// Carries both ways.
async fn answer(
    head: &RequestHead,
    as_it_came: &Bytes,
    body: &mut RecvStream,
    respond: &mut Respond,
    exchange: &mut Exchange,
    stream: &Upstream,
) -> Result<Answered, NotAnswered> {
    let sent = Cell::new(0);
    let after = if stream.protocol() == 1 { After::Close } else { After::Keep };
    let onward = if stream.wants_head_as_it_came() { as_it_came.clone() } else { head.onward(after) };
    let ended = stream.send(onward);
    let upload = Upload::new(body, &head.body, &sent);
    let mut answer = Answer::new(stream);
    let mut uploading = Box::pin(upload.run(stream));
    // What belongs to the other protocol waits until that is spoken.
    let mut is_sent = head.upgrade.is_some();
    let mut is_whole = true;
    let mut interims = 0;
    let failed = |failure: Failure, exchange: &mut Exchange| {
        if failure.is_refusal() {
            exchange.avoid.extend(stream.connection());
        }
        let again = sent.get() == 0 && failure.may_be_repeated(stream.is_reused(), head.is_repeatable());
        NotAnswered { refusal: failure.into(), again }
    };
    ended.map_err(|ended| failed(Failure::Ended(ended), exchange))?;
    let response = loop {
        tokio::select! {
            biased;
            next = answer.head(&head.method, Version::Http11) => match next.map_err(|why| failed(why, exchange))? {
                interim if interim.is_interim() => {
                    interims += 1;
                    if interims > MAX_INTERIM {
                        return Err(Refusal::ProxyingFailed.into());
                    }
                    respond.interim(&interim);
                }
                response => break response,
            },
            uploaded = &mut uploading, if !is_sent => {
                is_sent = true;
                uploaded.map_err(|_| Refusal::BadRequest("the request broke off"))?;
            }
            () = respond.until_reset() => return Ok(Ending::Reset.into()),
            () = sleep(ANSWER_TIME), if is_sent => return Err(Refusal::UpstreamTimeout.into()),
        }
    };
    exchange.status = Some(response.status);
    if head.upgrade.is_some() && response.status == 101 {
        drop(uploading);
        exchange.outcome = Outcome::Upgraded;
        // Whoever watches the log need not wait for the end of a conversation that may last for days.
        exchange.record();
        switch(respond, &response, answer.take_rest(), body, stream).await;
        return Ok(Ending::Answered.into());
    }
    // Success would mean that protocols are switched.
    if response.status == 101 || (head.upgrade.is_some() && (200..300).contains(&response.status)) {
        return Err(Refusal::ProxyingFailed.into());
    }
    let keep_alive = response.keep_alive;
    let mut relaying = std::pin::pin!(respond.relay(response, answer, stream));
    let relayed = loop {
        tokio::select! {
            biased;
            relayed = &mut relaying => break relayed,
            // An answer may be whole before its request is; what is left of the request is of no use then.
            uploaded = &mut uploading, if !is_sent => {
                is_sent = true;
                is_whole = uploaded.is_ok();
            }
        }
    };
    exchange.outcome = relayed.outcome;
    exchange.bytes_in = sent.get();
    let stays = relayed.stream_stays && is_sent && is_whole && stream.protocol() >= 2;
    Ok(Answered { ending: Ending::Answered, keep_alive, stays })
}

async fn refuse(
    respond: &mut Respond,
    exchange: &mut Exchange,
    refusal: Refusal,
    head: Option<&RequestHead>,
) -> Ending {
    exchange.outcome = Outcome::Refused(refusal);
    exchange.status = Some(refusal.status().as_u16());
    let form = head.map(|head| head.accept).unwrap_or_default();
    respond.page(&Page::refusal(refusal, form), &exchange.method).await;
    Ending::Answered
}
