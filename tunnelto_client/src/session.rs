//! One connection to the server, from its hello to its end.

use std::{
    cell::RefCell,
    future::ready,
    rc::Rc,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinSet,
    time::{sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tunnelto_lib::{
    hello::{
        Agent, ClientHello, ClientType, GOODBYE, GoAway, Kind, PROTOCOL, Refusal, Success, TunnelRequest,
        WINDOW,
    },
    mux::{self, Incoming, Lost, Mux, Reader, Settings},
    token::Secret,
    ws::Role,
};
use uuid::Uuid;

use crate::{
    config::Config,
    connect::{Connected, ServerIo},
    local::dial::Dialer,
    streams,
};

/// Streams that the server may have open here at once: each is one connection to the local service.
const MAX_STREAMS: usize = 1024;

/// Silence that means a dead line: three of the server's Pings.
const SILENCE_PROTOCOL_1: Duration = Duration::from_secs(100);
const SILENCE_PROTOCOL_2: Duration = Duration::from_secs(50);

/// A stream that has not moved for this long does not hold up a stop: most are idle ones kept for the next request.
const QUIET: Duration = Duration::from_secs(1);

/// How long the last packets and the goodbye may take.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What lasts over reconnects.
pub struct Identity {
    session: Uuid,
    /// The name that the server gave, asked for again after a break.
    pub name: RefCell<Option<String>>,
    token: RefCell<Option<Secret>>,
}

/// How a connection ended.
#[derive(Debug)]
pub enum End {
    /// Said goodbye, as we were told to.
    Finished,
    Lost(Lost),
    Silent,
    /// We are out. With seconds in it we may come back after them.
    Terminated(Refusal),
}

impl Identity {
    pub fn new() -> Self {
        Self { session: Uuid::new_v4(), name: RefCell::default(), token: RefCell::default() }
    }

    /// `number` tells the session's connections apart.
    pub fn hello(&self, config: &Config, number: u16) -> ClientHello {
        ClientHello {
            id: self.session.to_string(),
            sub_domain: config.name.clone().or_else(|| self.name.borrow().clone()),
            client_type: match &config.key {
                Some(key) => ClientType::Auth { key: key.clone() },
                None => ClientType::Anonymous,
            },
            reconnect_token: self.token.borrow().clone(),
            version: None,
            protocol: Some(PROTOCOL),
            session: Some(self.session),
            connection: Some(number),
            window: Some(WINDOW),
            max_streams: Some(MAX_STREAMS as u32),
            capabilities: Some(Vec::new()),
            tunnel: Some(TunnelRequest {
                kind: Kind::Http,
                remote_port: None,
                pool: config.pool,
                takeover: config.takeover,
            }),
            agent: Some(Agent { version: env!("CARGO_PKG_VERSION").into(), os: std::env::consts::OS.into() }),
        }
    }

    /// Keeps what the server gave us.
    pub fn keep(&self, success: &Success) {
        *self.name.borrow_mut() = Some(success.sub_domain.clone());
        if let Some(extended) = &success.extended {
            *self.token.borrow_mut() = Some(extended.reconnect_token.clone());
        }
    }
}

impl Default for Identity {
    fn default() -> Self {
        Self::new()
    }
}

/// What a session is told, and what it tells.
#[derive(Clone, Debug, Default)]
pub struct Signals {
    /// The user wants to stop: take no new streams, say goodbye once nothing moves.
    pub stop: CancellationToken,
    /// The user wants to stop now.
    pub stop_now: CancellationToken,
    /// The server asks us to connect elsewhere. What is open goes on here.
    pub go_away: CancellationToken,
    /// Another connection stands: take no new streams, say goodbye once nothing is open here.
    pub finish: CancellationToken,
}

/// Serves streams until the connection ends or is told to.
pub async fn serve(
    connected: Connected,
    identity: Rc<Identity>,
    dialer: Rc<Dialer>,
    signals: Signals,
) -> End {
    let Connected { io, buffer, decoder, success } = connected;
    let protocol = success.extended.as_ref().map_or(1, |extended| extended.protocol.clamp(1, PROTOCOL));
    let capabilities =
        success.extended.as_ref().map(|extended| &extended.capabilities[..]).unwrap_or_default();
    let goodbye = match capabilities.iter().any(|capability| capability == GOODBYE) {
        true => Goodbye::Unsaid,
        false => Goodbye::Unknown,
    };
    let settings = Settings {
        role: Role::Client,
        protocol,
        send_window: success.extended.as_ref().map_or(WINDOW, |extended| extended.window),
        receive_window: WINDOW,
        max_streams: MAX_STREAMS,
    };
    let mux = Mux::new(settings, Instant::now());
    match io {
        ServerIo::Plain(socket) => {
            let (reading, writing) = socket.into_split();
            let reader = Reader::new(mux.clone(), reading, decoder, buffer);
            run(mux, reader, writing, goodbye, &identity, &dialer, &signals).await
        }
        ServerIo::Other(transport) => {
            let (reading, writing) = tokio::io::split(transport);
            let reader = Reader::new(mux.clone(), reading, decoder, buffer);
            run(mux, reader, writing, goodbye, &identity, &dialer, &signals).await
        }
    }
}

/// How far the goodbye to a server has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goodbye {
    /// It has no word for it: streams may come until the end.
    Unknown,
    Unsaid,
    Said,
    /// No further stream will come.
    Answered,
}

async fn run<R, W>(
    mux: Mux,
    mut reader: Reader<R>,
    mut writing: W,
    mut goodbye: Goodbye,
    identity: &Identity,
    dialer: &Rc<Dialer>,
    signals: &Signals,
) -> End
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin + 'static,
{
    let protocol = mux.protocol();
    let silence = if protocol == 1 { SILENCE_PROTOCOL_1 } else { SILENCE_PROTOCOL_2 };
    let mut writer = tokio::task::spawn_local({
        let mux = mux.clone();
        async move { mux::write_all(&mux, &mut writing).await }
    });
    // Dropped at the end, and all streams' tasks with it.
    let mut tasks = JoinSet::new();
    let end = loop {
        let deadline = mux.last_heard() + silence;
        let is_stopping = signals.stop.is_cancelled();
        let is_finishing = is_stopping || signals.finish.is_cancelled();
        if is_finishing && goodbye == Goodbye::Unsaid {
            mux.go_away(&GoAway::goodbye());
            goodbye = Goodbye::Said;
        }
        let quiet_at = mux.last_data() + QUIET;
        let is_done = goodbye != Goodbye::Said
            && (mux.open_streams() == 0 || (is_stopping && quiet_at <= Instant::now()));
        tokio::select! {
            biased;
            () = signals.stop_now.cancelled() => break End::Finished,
            () = signals.stop.cancelled(), if !is_stopping => {}
            () = signals.finish.cancelled(), if !is_finishing => {}
            () = ready(()), if is_finishing && is_done => break End::Finished,
            // Until the goodbye is answered that decides nothing, and once it is over it would keep the reader from its turn.
            () = sleep_until(quiet_at.into()), if is_stopping && goodbye != Goodbye::Said => {}
            incoming = reader.next() => match incoming {
                Ok(Incoming::Opened(stream, _)) if is_stopping && goodbye == Goodbye::Unknown => {
                    stream.refuse(stopping());
                }
                Ok(Incoming::Opened(stream, _)) => {
                    tasks.spawn_local(streams::serve(stream, dialer.clone(), protocol));
                }
                Ok(Incoming::Ping(token)) => {
                    if token.is_some() {
                        *identity.token.borrow_mut() = token;
                    }
                    mux.ping(None);
                }
                Ok(Incoming::GoAway(about)) if GoAway::is_goodbye(&about) => goodbye = Goodbye::Answered,
                Ok(Incoming::GoAway(_)) => signals.go_away.cancel(),
                Ok(Incoming::Terminate(about)) => break End::Terminated(refusal(&about)),
                Err(lost) => break End::Lost(lost),
            },
            Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
            _ = &mut writer => break End::Lost(Lost::Eof),
            () = sleep_until(deadline.into()) => {
                if mux.last_heard() + silence <= Instant::now() {
                    break End::Silent;
                }
            }
        }
    };
    if matches!(end, End::Finished) && protocol >= 2 {
        mux.close_gracefully();
        // A server that does not read has our goodbye cut off.
        let _ = timeout(LAST_WORDS, &mut writer).await;
    }
    mux.abandon();
    writer.abort();
    end
}

fn stopping() -> Refusal {
    Refusal { code: "too_many".into(), message: "the client stops".into(), retry_after: Some(1) }
}

fn refusal(about: &[u8]) -> Refusal {
    serde_json::from_slice(about).unwrap_or_else(|_| Refusal {
        code: "terminated".into(),
        message: String::from_utf8_lossy(about).into_owned(),
        retry_after: None,
    })
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lost(lost) => lost.fmt(f),
            Self::Silent => f.write_str("no sign of life from the server"),
            Self::Finished => f.write_str("finished"),
            Self::Terminated(refusal) => f.write_str(&refusal.message),
        }
    }
}
