//! `tunnelto http TARGET`: one tunnel, kept open until the user stops it.

use std::{
    rc::Rc,
    time::{Duration, Instant},
};

use tokio::{signal::unix, task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;
use tunnelto_lib::hello::{Refusal, Success};

use crate::{
    cli::HttpOptions,
    config::{Config, ServerAddress},
    connect::{ConnectError, Connected, connect},
    error::ClientError,
    local::dial::Dialer,
    reconnect::Backoff,
    session::{self, End, Identity, Signals},
    ui::{Event, Ui},
};

/// How long open answers may take to finish when the user stops the client.
const PATIENCE: Duration = Duration::from_secs(20);

pub async fn run(target: Option<&str>, options: &HttpOptions) -> Result<(), ClientError> {
    let config = Config::new(target, options)?;
    let dialer = Rc::new(Dialer::new(config.target.clone()).map_err(ClientError::Configuration)?);
    let (stop, stop_now) = stop_on_signals()?;
    if config.require_target {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            dialled = dialer.dial() => dialled.map_err(|error| ClientError::TargetDown(error.to_string()))?,
        };
    }
    let mut tunnel = Tunnel {
        config,
        dialer,
        identity: Rc::default(),
        backoff: Backoff::default(),
        ui: Ui::new(options.output),
        leaving: JoinSet::new(),
        failed_tries: 0,
        stop,
        stop_now,
    };
    if let Err(error) = tunnel.keep_open().await {
        tunnel.ui.failed(&error);
        return Err(error);
    }
    // Their goodbyes are bounded.
    while tunnel.leaving.join_next().await.is_some() {}
    tunnel.ui.tell(&Event::Stopped { reason: "by the user" });
    Ok(())
}

struct Tunnel {
    config: Config,
    dialer: Rc<Dialer>,
    identity: Rc<Identity>,
    backoff: Backoff,
    ui: Ui,
    /// Connections that the server has asked us to leave; each ends when nothing is open on it.
    leaving: JoinSet<End>,
    /// Tries to connect that failed since the last one that did not.
    failed_tries: u32,
    stop: CancellationToken,
    stop_now: CancellationToken,
}

impl Tunnel {
    /// Connects again and again. Returns when the user stops it; an error is final.
    async fn keep_open(&mut self) -> Result<(), ClientError> {
        let mut finish = CancellationToken::new();
        loop {
            let hello = self.identity.hello(&self.config);
            let connected = tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ok(()),
                connected = connect(&self.config.server, &hello) => connected,
            };
            let (reason, asked) = match connected {
                Ok(connected) => {
                    self.failed_tries = 0;
                    self.greet(&connected.success);
                    finish.cancel();
                    finish = CancellationToken::new();
                    match self.serve(connected, &finish).await? {
                        Some(end) => end,
                        None => return Ok(()),
                    }
                }
                Err(ConnectError::Refused(refusal)) if refusal.retry_after.is_none() => {
                    return Err(fatal(refusal));
                }
                Err(ConnectError::Status { status: 401 | 403, .. }) => {
                    return Err(ClientError::NotAuthorised(
                        "the server does not let this address or key in".into(),
                    ));
                }
                Err(error) => {
                    let asked = match &error {
                        ConnectError::Status { retry_after, .. } => *retry_after,
                        ConnectError::Refused(refusal) => seconds(refusal),
                        _ => None,
                    };
                    self.failed_tries += 1;
                    if self.config.retries.is_some_and(|retries| self.failed_tries > retries) {
                        let server = self.config.server.url();
                        return Err(ClientError::Unreachable(format!("{server}: {error}")));
                    }
                    (error.to_string(), asked)
                }
            };
            self.pause(&reason, asked).await;
        }
    }

    /// One connection, until another one is needed: why, and after how long. `None` when the user stops it.
    async fn serve(
        &mut self,
        connected: Connected,
        finish: &CancellationToken,
    ) -> Result<Option<(String, Option<Duration>)>, ClientError> {
        while self.leaving.try_join_next().is_some() {}
        let began = Instant::now();
        let signals = Signals {
            stop: self.stop.clone(),
            stop_now: self.stop_now.clone(),
            go_away: CancellationToken::new(),
            finish: finish.clone(),
        };
        let serving = session::serve(connected, self.identity.clone(), self.dialer.clone(), signals.clone());
        let mut sessions = JoinSet::new();
        sessions.spawn_local(serving);
        let end = tokio::select! {
            biased;
            Some(end) = sessions.join_next() => end,
            () = signals.go_away.cancelled() => {
                self.leaving.spawn_local(async move {
                    sessions.join_next().await.and_then(Result::ok).unwrap_or(End::Finished)
                });
                self.backoff.ended(began.elapsed());
                return Ok(Some(("the server asks us to connect anew".into(), None)));
            }
        };
        self.backoff.ended(began.elapsed());
        match end.map_err(|error| ClientError::Unexpected(error.to_string()))? {
            End::Finished => Ok(None),
            End::Terminated(refusal) if refusal.retry_after.is_none() => Err(fatal(refusal)),
            end => Ok(Some((end.to_string(), asked_by(&end)))),
        }
    }

    fn greet(&mut self, success: &Success) {
        self.identity.keep(success);
        let url = match &success.extended {
            Some(extended) if !extended.urls.is_empty() => extended.urls[0].clone(),
            _ => protocol_1_url(&success.hostname, &self.config.server),
        };
        self.ui.tell(&Event::Connected {
            url: &url,
            name: &success.sub_domain,
            target: &self.dialer.target().to_string(),
            server: &self.config.server.url(),
        });
    }

    async fn pause(&mut self, reason: &str, asked: Option<Duration>) {
        let wait = self.backoff.next(rand::random(), asked);
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let reason = format!("{}: {reason}", self.config.server.url());
        self.ui.tell(&Event::Reconnecting { reason, wait_ms });
        tokio::select! {
            () = self.stop.cancelled() => {}
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

/// Protocol 1 names the host only.
fn protocol_1_url(hostname: &str, server: &ServerAddress) -> String {
    let scheme = if server.tls { "https" } else { "http" };
    format!("{scheme}://{hostname}")
}

/// The first signal stops, the second stops now, and so does patience.
fn stop_on_signals() -> Result<(CancellationToken, CancellationToken), ClientError> {
    let (stop, stop_now) = (CancellationToken::new(), CancellationToken::new());
    let signal = |kind| {
        unix::signal(kind).map_err(|error| ClientError::Unexpected(format!("cannot hear signals: {error}")))
    };
    let mut interrupt = signal(unix::SignalKind::interrupt())?;
    let mut terminate = signal(unix::SignalKind::terminate())?;
    let tokens = (stop.clone(), stop_now.clone());
    tokio::task::spawn_local(async move {
        let mut next = async || tokio::select! { _ = interrupt.recv() => (), _ = terminate.recv() => () };
        next().await;
        stop.cancel();
        tokio::select! { () = next() => {}, () = sleep(PATIENCE) => {} }
        stop_now.cancel();
    });
    Ok(tokens)
}
