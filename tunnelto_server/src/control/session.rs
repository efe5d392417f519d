//! The actor of one client connection: it owns the socket, answers the client, and ends everything that hangs
//! on the connection when it ends.

use std::{rc::Rc, sync::Arc, time::Instant};

use bytes::Bytes;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::{sleep, sleep_until, timeout},
};
use tunnelto_lib::{
    hello::{Extended, GOODBYE, GoAway, Refusal, ServerHello, Success, WINDOW},
    mux::{self, Incoming, Lost, Mux, Reader},
    ws::Role,
};

use super::{
    heartbeat::{Beat, Heartbeat},
    welcome::{Names, Seat, Welcomed, welcome},
    wire::Fresh,
};
use crate::{
    active_stream::{Connection, ConnectionId},
    auth::Prover,
    config::{Config, PublicUrl},
    connected_clients::{ConnectedClients, Farewell, Order, Orders, Reason},
    gauge::Gauge,
    limits::{
        HELLO_TIME, IDLE_STREAM, LAST_LOOK, PROBE_LOOK, PROTOCOL_1_FINISH, PROTOCOL_1_STREAMS, REPLACED_LIFE,
        TCP_USER_TIMEOUT,
    },
    network::Directory,
    shard::Shard,
    shutdown::Shutdown,
    socket::{Detached, OwnedReadHalf},
};

/// What all sessions of a shard share.
pub struct Lobby {
    pub config: Arc<Config>,
    pub prover: Prover,
    pub clients: Arc<ConnectedClients>,
    pub shard: Rc<Shard>,
    pub shutdown: Shutdown,
    pub directory: Directory,
    /// How visitors reach this server.
    pub public: PublicUrl,
}

/// Serves one upgraded connection to its end.
pub async fn run(lobby: &Lobby, socket: Detached, first: Bytes) {
    // Fails only on a socket that is gone, which its first read shows.
    let _ = socket.tcp().set_tcp_user_timeout(Some(TCP_USER_TIMEOUT));
    // Fails only where the runtime is at its end.
    let Ok(socket) = socket.attach() else { return };
    let id = lobby.clients.next_id(lobby.shard.id);
    let load = Gauge::default();
    let mut fresh = Fresh::new(socket, first);
    let hello = match timeout(HELLO_TIME, fresh.read_hello()).await {
        Ok(Ok(hello)) => hello,
        Ok(Err(error)) => return tracing::debug!(%error, "no usable hello"),
        Err(_) => return tracing::debug!("no hello in time"),
    };
    let protocol = hello.negotiated();
    let (orders, inbox) = Orders::new();
    let seat = Seat { connection: id, load: load.clone(), orders };
    let names = Names { clients: &lobby.clients, directory: &lobby.directory };
    let welcomed = match welcome(&hello, &lobby.prover, &names, &seat).await {
        Ok(welcomed) => welcomed,
        Err(refusal) => {
            tracing::info!(code = refusal.code(), name = ?hello.sub_domain, "client refused");
            // A client that is gone needs no refusal.
            let _ = timeout(HELLO_TIME, async {
                fresh.write_hello(&refusal.to_hello(protocol)).await?;
                fresh.close().await
            })
            .await;
            return;
        }
    };
    // From here on the name is given back whatever happens.
    let mut claimed = Claimed { lobby, id, welcomed, farewell: Farewell::None };
    let answer = success(lobby, &claimed.welcomed, protocol);
    if !matches!(timeout(HELLO_TIME, fresh.write_hello(&answer)).await, Ok(Ok(()))) {
        return;
    }
    let settings = mux::Settings {
        role: Role::Server,
        protocol,
        send_window: hello.window.unwrap_or(WINDOW),
        receive_window: WINDOW,
        max_streams: hello.max_streams.map_or(PROTOCOL_1_STREAMS, |streams| streams as usize),
    };
    let mux = Mux::new(settings, Instant::now());
    let connection = Connection::new(id, mux.clone(), load);
    lobby.shard.add(connection.clone());
    lobby.clients.ready(&claimed.welcomed.name, id);
    let name = claimed.welcomed.name.clone();
    tracing::info!(%name, protocol, client = %claimed.welcomed.client_id, "tunnel open");

    let (reading, mut writing) = fresh.socket.into_split();
    let writer = Owned(tokio::task::spawn_local({
        let mux = mux.clone();
        async move { mux::write_all(&mux, &mut writing).await }
    }));
    let mut session = Session {
        lobby,
        mux: mux.clone(),
        connection,
        reader: Reader::new(mux.clone(), reading, fresh.decoder, fresh.buffer),
        writer,
        inbox,
        heartbeat: Heartbeat::new(protocol, Instant::now()),
        probes: Vec::new(),
        last_call: None,
        protocol,
        knows_terminate: protocol >= 2 || hello.version.is_some(),
    };
    let end = session.serve(&claimed.welcomed).await;
    claimed.farewell = end.farewell(protocol);
    // First, so that nobody is sent here any more.
    drop(claimed);
    tracing::info!(%name, reason = %end, "tunnel closed");
    session.leave(&end).await;
}

struct Session<'l> {
    lobby: &'l Lobby,
    mux: Mux,
    connection: Rc<Connection>,
    reader: Reader<OwnedReadHalf>,
    writer: Owned<std::io::Result<()>>,
    inbox: mpsc::Receiver<Order>,
    heartbeat: Heartbeat,
    /// Who wants to know whether the client lives, and since when.
    probes: Vec<(oneshot::Sender<()>, Instant)>,
    /// The connection is out of use, and ends once its streams have.
    last_call: Option<LastCall>,
    protocol: u8,
    /// Later clients of protocol 1 say that they understand Terminate.
    knows_terminate: bool,
}

/// Why a session ends.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("{0}")]
    Lost(Lost),
    #[error("no sign of life from the client")]
    Dead,
    #[error("could not write to the client")]
    Unwritable,
    #[error("the client has connected anew")]
    Replaced,
    #[error("another session of the owner has taken the name")]
    TakenOver,
    #[error("another owner had the name first, on another instance")]
    LostClaim,
    #[error("the server stops")]
    Stopping,
}

/// A connection that is out of use and may still finish what is open on it.
struct LastCall {
    since: Instant,
    end: fn() -> End,
    /// It ends then, whatever is open, if its client has shown no life until then.
    life_until: Option<Instant>,
    /// It ends then in any case.
    until: Option<Instant>,
}

impl LastCall {
    fn replaced() -> Self {
        let since = Instant::now();
        Self { since, end: || End::Replaced, life_until: Some(since + REPLACED_LIFE), until: None }
    }

    fn stopping() -> Self {
        let since = Instant::now();
        Self { since, end: || End::Stopping, life_until: None, until: Some(since + PROTOCOL_1_FINISH) }
    }

    fn end(&self, mux: &Mux) -> Option<End> {
        let now = Instant::now();
        let is_dead = self.life_until.is_some_and(|until| until <= now && mux.last_heard() <= self.since);
        let is_late = self.until.is_some_and(|until| until <= now);
        (is_dead || is_late || mux.open_streams() == 0).then(self.end)
    }
}

impl Session<'_> {
    async fn serve(&mut self, welcomed: &Welcomed) -> End {
        let mut told_to_go = false;
        loop {
            let next_beat = self.heartbeat.next();
            // Idle streams are looked after only while there are any.
            let next_look = Instant::now() + IDLE_STREAM;
            tokio::select! {
                // What ends the session first, then the client, then the clock.
                biased;
                () = self.lobby.shutdown.until_ended() => return End::Stopping,
                () = self.lobby.shutdown.until_draining(), if !told_to_go => {
                    told_to_go = true;
                    self.ask_to_go(welcomed);
                }
                () = sleep(LAST_LOOK), if self.last_call.is_some() => {
                    if let Some(end) = self.last_call.as_ref().and_then(|call| call.end(&self.mux)) {
                        return end;
                    }
                }
                Some(order) = self.inbox.recv() => match order {
                    Order::Probe(answer) => {
                        self.probes.push((answer, Instant::now()));
                        self.mux.ping(self.token(welcomed));
                    }
                    // Its client may be finishing what is open here.
                    Order::Leave(Reason::Replaced) => {
                        self.mux.ping(self.token(welcomed));
                        self.last_call = Some(LastCall::replaced());
                    }
                    Order::Leave(Reason::TakenOver) => return End::TakenOver,
                    Order::Leave(Reason::LostClaim) => return End::LostClaim,
                },
                incoming = self.reader.next() => match incoming {
                    Ok(Incoming::Ping(_)) => self.answer_probes(),
                    Ok(Incoming::GoAway(_)) => {
                        // It is found no more, so after our answer no stream comes.
                        self.retire(welcomed, Farewell::Said);
                        self.mux.go_away(&GoAway::goodbye());
                    }
                    Ok(_) => return End::Lost(Lost::Protocol("a packet that only servers send")),
                    Err(lost) => return End::Lost(lost),
                },
                _ = &mut self.writer.0 => return End::Unwritable,
                () = sleep_until(next_beat.into()) => {
                    match self.heartbeat.beat(Instant::now(), self.mux.last_heard()) {
                        Beat::Ping => self.mux.ping(self.token(welcomed)),
                        Beat::Dead => return End::Dead,
                        Beat::Wait => {}
                    }
                }
                () = sleep(PROBE_LOOK), if !self.probes.is_empty() => self.answer_probes(),
                () = sleep_until(next_look.into()), if self.connection.has_idle() => {
                    self.connection.drop_stale(Instant::now());
                }
            }
        }
    }

    /// Any byte counts as life, and a reader that we have paused says nothing about the client.
    fn answer_probes(&mut self) {
        let heard = self.mux.last_heard();
        let is_paused = self.mux.is_paused();
        for (probe, asked) in std::mem::take(&mut self.probes) {
            if is_paused || heard > asked {
                // Whoever waited for this answer may have gone.
                let _ = probe.send(());
            } else if !probe.is_closed() {
                self.probes.push((probe, asked));
            }
        }
    }

    fn token(&self, welcomed: &Welcomed) -> Option<tunnelto_lib::token::Secret> {
        let Welcomed { name, owner, session, has_key, .. } = welcomed;
        (self.protocol >= 2 || !has_key).then(|| self.lobby.prover.token(name, owner, *session))
    }

    /// Protocol 1 has no word for it but Close, which waits for its streams for a while; its visitors wait for the client to
    /// come back on another instance, if there are any.
    fn ask_to_go(&mut self, welcomed: &Welcomed) {
        if self.protocol >= 2 {
            let within = self.lobby.config.drain.as_millis();
            let reconnect_within_ms = u32::try_from(within).unwrap_or(u32::MAX);
            self.mux.go_away(&GoAway { reason: "the server stops".into(), reconnect_within_ms });
        } else if !self.lobby.directory.is_alone() {
            self.retire(welcomed, Farewell::None);
            self.last_call = Some(LastCall::stopping());
        }
    }

    /// No exchange comes here any more; those that are open go on.
    fn retire(&self, welcomed: &Welcomed, farewell: Farewell) {
        self.lobby.clients.depart(&welcomed.name, self.connection.id, farewell, Instant::now());
        self.connection.drop_idle();
    }

    fn terminate(&self, code: &str, message: &str) -> Bytes {
        if self.protocol == 1 {
            return Bytes::copy_from_slice(message.as_bytes());
        }
        let about = Refusal { code: code.into(), message: message.into(), retry_after: None };
        serde_json::to_vec(&about).unwrap_or_default().into()
    }

    /// Says goodbye where there is somebody to hear it.
    async fn leave(mut self, end: &End) {
        self.lobby.shard.remove(self.connection.id);
        self.connection.drop_idle();
        let says = match end {
            End::Lost(_) | End::Dead | End::Unwritable => false,
            End::TakenOver | End::LostClaim => {
                if self.knows_terminate {
                    let code = if matches!(end, End::LostClaim) { "lost_claim" } else { "taken_over" };
                    self.mux.terminate(self.terminate(code, &end.to_string()));
                }
                true
            }
            End::Replaced | End::Stopping => true,
        };
        if says {
            self.mux.close_gracefully();
            // A client that does not read has its goodbye cut off.
            let _ = timeout(std::time::Duration::from_secs(1), &mut self.writer.0).await;
        }
        self.mux.abandon();
    }
}

impl End {
    fn farewell(&self, protocol: u8) -> Farewell {
        match self {
            // The published client never says goodbye.
            Self::Lost(Lost::Closed) if protocol >= 2 => Farewell::Said,
            _ => Farewell::None,
        }
    }
}

/// A name that is given back when this is dropped.
struct Claimed<'l> {
    lobby: &'l Lobby,
    id: ConnectionId,
    welcomed: Welcomed,
    farewell: Farewell,
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        self.lobby.clients.depart(&self.welcomed.name, self.id, self.farewell, Instant::now());
    }
}

/// A task that ends with its owner.
struct Owned<T>(JoinHandle<T>);

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn success(lobby: &Lobby, welcomed: &Welcomed, protocol: u8) -> ServerHello {
    let Welcomed { name, owner, client_id, session, .. } = welcomed;
    let extended = (protocol >= 2).then(|| Extended {
        protocol,
        window: WINDOW,
        max_streams: 0,
        capabilities: vec![GOODBYE.into()],
        urls: vec![lobby.public.of(&format_args!("{name}.{}", lobby.config.tunnel_host))],
        instance: lobby.config.instance.clone(),
        connections: if lobby.directory.count() > 0 { 2 } else { 1 },
        reconnect_token: lobby.prover.token(name, owner, *session),
    });
    ServerHello::Success(Box::new(Success {
        sub_domain: name.to_string(),
        hostname: format!("{name}.{}", lobby.config.tunnel_host),
        client_id: client_id.to_string(),
        extended,
    }))
}
