//! One connection of a tunnel, connected anew whenever it ends.

use std::{
    rc::Rc,
    time::{Duration, Instant},
};

use tokio::{task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;
use tunnelto_lib::hello::Refusal;

use super::Tunnel;
use crate::{
    config::ServerAddress,
    connect::{ConnectError, Connected, connect},
    error::ClientError,
    reconnect::Backoff,
    session::{self, End, Signals},
    ui::Event,
};

/// How often in a row another instance is tried for than the one where a connection stands already.
const SPREAD_TRIES: u32 = 3;

/// How long two connections stay with one instance before another one is tried for again: doubling.
const SPREAD_AGAIN: Duration = Duration::from_secs(30);
const SPREAD_LONGEST: Duration = Duration::from_secs(600);

pub struct Slot {
    tunnel: Rc<Tunnel>,
    number: u16,
    backoff: Backoff,
    /// Connections that the server has asked us to leave; each ends when nothing is open on it.
    leaving: JoinSet<End>,
    /// Tries to connect that failed since the last one that did not.
    failed_tries: u32,
    /// Tries for another instance that led to the same.
    spread_tries: u32,
    spread_pause: Duration,
}

/// Why a connection is needed anew.
struct Anew {
    reason: String,
    /// What the server asked for.
    after: Option<Duration>,
}

impl Slot {
    pub fn new(tunnel: Rc<Tunnel>, number: u16) -> Self {
        Self {
            tunnel,
            number,
            backoff: Backoff::default(),
            leaving: JoinSet::new(),
            failed_tries: 0,
            spread_tries: 0,
            spread_pause: SPREAD_AGAIN,
        }
    }

    /// Returns when the user stops it; an error is final.
    pub async fn keep_up(mut self) -> Result<(), ClientError> {
        while !self.tunnel.stop.is_cancelled() {
            let hello = self.tunnel.identity.hello(&self.tunnel.config, self.number);
            let attempt = usize::from(self.number) + (self.failed_tries + self.spread_tries) as usize;
            let (server, first) = self.tunnel.server(attempt);
            let connected = tokio::select! {
                biased;
                () = self.tunnel.stop.cancelled() => break,
                connected = connect(&server, &self.tunnel.config.tls, &hello, first) => connected,
            };
            let anew = match connected {
                Ok(connected) => {
                    self.failed_tries = 0;
                    if self.tunnel.is_double(self.number, &connected.success)
                        && self.spread_tries < SPREAD_TRIES
                    {
                        self.spread_tries += 1;
                        self.leave(connected);
                        continue;
                    }
                    match self.serve(&server, connected).await? {
                        Some(anew) => anew,
                        None => break,
                    }
                }
                Err(error) => self.failed(&server, error)?,
            };
            self.pause(anew).await;
        }
        // Their goodbyes are bounded.
        while self.leaving.join_next().await.is_some() {}
        Ok(())
    }

    /// Whether a failure to connect is final. While another connection stands none is.
    fn failed(&mut self, server: &ServerAddress, error: ConnectError) -> Result<Anew, ClientError> {
        self.failed_tries += 1;
        let is_standing = self.tunnel.is_standing();
        let after = match error {
            ConnectError::Refused(refusal) if refusal.retry_after.is_none() && !is_standing => {
                return Err(fatal(refusal));
            }
            ConnectError::Status { status: 401 | 403, .. } if !is_standing => {
                let text = "the server does not let this address or key in";
                return Err(ClientError::NotAuthorised(text.into()));
            }
            ConnectError::Status { retry_after, .. } => retry_after,
            ConnectError::Refused(ref refusal) => seconds(refusal),
            _ => None,
        };
        let too_often = self.tunnel.config.retries.is_some_and(|retries| self.failed_tries > retries);
        if too_often && !is_standing {
            return Err(ClientError::Unreachable(format!("{}: {error}", server.url())));
        }
        Ok(Anew { reason: format!("{}: {error}", server.url()), after })
    }

    /// Ends a connection that leads nowhere new, with a goodbye: a visitor may have come on it.
    fn leave(&mut self, connected: Connected) {
        let signals = self.signals();
        signals.finish.cancel();
        let (identity, dialer) = (self.tunnel.identity.clone(), self.tunnel.dialer.clone());
        self.leaving.spawn_local(session::serve(connected, identity, dialer, signals));
    }

    fn signals(&self) -> Signals {
        Signals {
            stop: self.tunnel.stop.clone(),
            stop_now: self.tunnel.stop_now.clone(),
            go_away: CancellationToken::new(),
            finish: CancellationToken::new(),
        }
    }

    /// One connection, until another one is needed. `None` when the user stops it.
    async fn serve(
        &mut self,
        server: &ServerAddress,
        connected: Connected,
    ) -> Result<Option<Anew>, ClientError> {
        while self.leaving.try_join_next().is_some() {}
        let began = Instant::now();
        let is_double = self.tunnel.is_double(self.number, &connected.success);
        self.spread_tries = 0;
        if !is_double {
            self.spread_pause = SPREAD_AGAIN;
        }
        self.tunnel.stands(self.number, server, &connected.success);
        let signals = self.signals();
        let (identity, dialer) = (self.tunnel.identity.clone(), self.tunnel.dialer.clone());
        let mut sessions = JoinSet::new();
        sessions.spawn_local(session::serve(connected, identity, dialer, signals.clone()));
        let end = tokio::select! {
            biased;
            Some(end) = sessions.join_next() => Some(end),
            () = signals.go_away.cancelled() => None,
            () = sleep(self.spread_pause), if is_double => {
                self.spread_pause = (self.spread_pause * 2).min(SPREAD_LONGEST);
                None
            }
        };
        self.tunnel.fell(self.number);
        self.backoff.ended(began.elapsed());
        let Some(end) = end else {
            // What is open goes on there until another connection stands.
            if self.tunnel.is_standing() {
                signals.finish.cancel();
            } else {
                self.tunnel.to_finish.borrow_mut().push(signals.finish);
            }
            self.leaving.spawn_local(async move {
                sessions.join_next().await.and_then(Result::ok).unwrap_or(End::Finished)
            });
            let reason = format!("{}: the server asks us to connect anew", server.url());
            return Ok(Some(Anew { reason, after: None }));
        };
        match end.map_err(|error| ClientError::Unexpected(error.to_string()))? {
            End::Finished => Ok(None),
            End::Terminated(refusal) if refusal.retry_after.is_none() => Err(fatal(refusal)),
            end => Ok(Some(Anew { reason: format!("{}: {end}", server.url()), after: asked_by(&end) })),
        }
    }

    async fn pause(&mut self, Anew { reason, after }: Anew) {
        let wait = self.backoff.next(rand::random(), after);
        if self.tunnel.is_standing() {
            tracing::info!(number = self.number, %reason, ?wait, "a connection is gone; another stands");
        } else {
            let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            self.tunnel.ui.borrow_mut().tell(&Event::Reconnecting { reason, wait_ms });
        }
        tokio::select! {
            () = self.tunnel.stop.cancelled() => {}
            () = sleep(wait) => {}
        }
    }
}

/// What the server's refusal means for whoever started us.
fn fatal(refusal: Refusal) -> ClientError {
    match refusal.code.as_str() {
        "auth_failed" | "revoked" | "expired" => ClientError::NotAuthorised(refusal.message),
        "name_taken" | "name_invalid" | "name_not_allowed" | "taken_over" | "lost_claim" => {
            ClientError::Name(refusal.message)
        }
        _ => ClientError::Unexpected(refusal.message),
    }
}

fn asked_by(end: &End) -> Option<Duration> {
    match end {
        End::Terminated(refusal) => seconds(refusal),
        _ => None,
    }
}

fn seconds(refusal: &Refusal) -> Option<Duration> {
    refusal.retry_after.map(|seconds| Duration::from_secs(seconds.into()))
}
