//! Names written down in a store, so that a name that is not here costs one question instead of one to each instance. It
//! is an index only: an instance's own word counts more, and while the store is away or may lack something, instances
//! ask and tell each other as if there were none.

mod etcd;
mod redis;
mod store;
mod tending;
mod writing;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use tokio::{net::UdpSocket, sync::Notify, time::timeout};
use tunnelto_lib::name::Label;

pub use store::{Page, StoreError};
pub use tending::tend;
pub use writing::write_changes;

use self::store::{Beat, Store, Words};
use super::{discovery::Listed, peer::Introduction};
use crate::{
    config::{Config, StoreUrl},
    connected_clients::Held,
    limits::{LIST_PAUSE, STORE_TIME},
    observability::metrics::{Asked, Metrics},
    sign::{MasterKeys, Purpose},
};

pub struct Index {
    store: Store,
    url: StoreUrl,
    keys: MasterKeys,
    metrics: Arc<Metrics>,
    /// Where other instances reach this one, if that is known beforehand.
    advertise: Option<IpAddr>,
    net_port: u16,
    lease: Duration,
    state: Mutex<State>,
    /// Others must be told something now.
    kick: Notify,
    /// The store must be looked after, but not all the time.
    doubt: Notify,
}

#[derive(Default)]
struct State {
    /// The last sign of life was answered.
    is_up: bool,
    /// Whether any was.
    was_up: bool,
    /// From when on what the store lacks does not exist, as far as is known.
    trusted_from: Option<Instant>,
    /// Something it was asked has failed; the next sign of life shows what that means.
    is_doubted: bool,
    born: String,
    /// How often the store may have lost what was written.
    losses: u64,
    /// Not everything that is held here is written.
    has_backlog: bool,
    /// The others are not listed again before.
    list_at: Option<Instant>,
}

/// What an instance writes of itself; its signature says that it is one of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    #[serde(flatten)]
    pub introduction: Introduction,
    pub ip: IpAddr,
    pub net_port: u16,
    /// Everything that it holds is written too.
    #[serde(default)]
    pub is_complete: bool,
}

/// What an instance writes of a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// [`Introduction::life`]: what another life has written does not count.
    pub life: u64,
    #[serde(flatten)]
    pub held: Held,
}

impl Registration {
    pub fn at(&self) -> SocketAddr {
        (self.ip, self.net_port).into()
    }
}

impl From<Registration> for Listed {
    fn from(registration: Registration) -> Self {
        Self { introduction: registration.introduction, is_complete: registration.is_complete }
    }
}

impl Index {
    /// `net_port` is where this instance answers others.
    pub fn new(
        url: &StoreUrl,
        config: &Config,
        metrics: Arc<Metrics>,
        net_port: u16,
    ) -> Result<Self, StoreError> {
        Ok(Self {
            store: Store::new(url, config.lease, STORE_TIME)?,
            url: url.clone(),
            keys: config.keys.clone(),
            metrics,
            advertise: config.advertise,
            lease: config.lease,
            net_port,
            state: Mutex::default(),
            kick: Notify::new(),
            doubt: Notify::new(),
        })
    }

    /// Nothing that can panic happens under this lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_up(&self) -> bool {
        self.state().is_up
    }

    /// Whether what it does not have does not exist, but for what instances say that it lacks.
    pub fn is_trusted(&self) -> bool {
        let state = self.state();
        !state.is_doubted && state.trusted_from.is_some_and(|from| from <= Instant::now())
    }

    /// Whether everything that is held here is written, as far as is known.
    pub fn is_complete(&self) -> bool {
        let state = self.state();
        state.is_up && !state.is_doubted && !state.has_backlog
    }

    /// The page of `name`.
    pub async fn read(&self, name: &Label) -> Result<Page, StoreError> {
        let page = self.limited(Asked::Read, self.store.read(name)).await?;
        let mut state = self.state();
        if page.born.as_ref() != Some(&state.born) && state.trusted_from.is_some() {
            // It was emptied. What is there is still true.
            state.trusted_from = Some(Instant::now() + self.lease);
            self.kick.notify_one();
        }
        Ok(page)
    }

    /// Writes what `me` holds of `name`, unless the page has changed; returns whether that was so.
    pub async fn write(
        &self,
        name: &Label,
        page: &Page,
        me: &Introduction,
        held: Option<&Held>,
    ) -> Result<bool, StoreError> {
        let entry = held.map(|held| entry(me, held));
        self.limited(Asked::Write, self.store.write(name, page, &me.instance, entry.as_deref())).await
    }

    /// What `instance` has written of itself.
    pub async fn instance(&self, instance: &str) -> Result<Option<Registration>, StoreError> {
        let text = self.limited(Asked::Instance, self.store.instance(instance)).await?;
        Ok(text.and_then(|text| self.open(&text)))
    }

    /// All instances that show life.
    pub async fn instances(&self) -> Result<Vec<Registration>, StoreError> {
        let texts = self.in_time(self.store.list()).await?;
        Ok(texts.iter().filter_map(|text| self.open(text)).collect())
    }

    pub async fn leave(&self, instance: &str) {
        // Its lease ends soon anyway.
        let _ = self.in_time(self.store.leave(instance)).await;
    }

    /// This instance's address as others see it, where the settings do not say it.
    pub async fn own_address(&self) -> Result<IpAddr, StoreError> {
        if let Some(known) = self.advertise {
            return Ok(known);
        }
        let from = async {
            let store = self.store.address().await?;
            let any: IpAddr =
                if store.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            let socket = UdpSocket::bind((any, 0)).await?;
            // Sends nothing: the system only chooses a way.
            socket.connect(store).await?;
            socket.local_addr()
        };
        from.await.map(|at| at.ip()).map_err(|error| StoreError(error.to_string().into()))
    }

    /// `me` as it is written.
    fn words(&self, me: &Registration) -> Words {
        let seal = |registration: &Registration| self.keys.seal(Purpose::Registration, registration);
        Words { if_kept: seal(me), if_lost: seal(&Registration { is_complete: false, ..me.clone() }) }
    }

    fn open(&self, text: &str) -> Option<Registration> {
        let opened = self.keys.open(Purpose::Registration, text);
        opened
            .inspect_err(
                |error| tracing::warn!(%error, store = %self.url, "an instance there is not one of ours"),
            )
            .ok()
    }

    /// Asks a store that is there, and notices if it does not answer.
    async fn limited<T>(
        &self,
        asked: Asked,
        asking: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        if !self.is_up() {
            return Err(StoreError("the store is away".into()));
        }
        let result = self.in_time(asking).await;
        self.metrics.asked_store(if result.is_ok() { asked } else { Asked::Failed });
        if let Err(error) = &result {
            tracing::debug!(%error, "the store does not answer as it should");
            self.state().is_doubted = true;
            self.doubt.notify_one();
        }
        result
    }

    async fn in_time<T>(&self, asking: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let answer = timeout(STORE_TIME, asking).await;
        answer.unwrap_or_else(|_| Err(StoreError(format!("no answer in {STORE_TIME:?}").into())))
    }

    /// It has not answered a sign of life.
    fn failed(&self, error: &StoreError) {
        let mut state = self.state();
        state.trusted_from = None;
        if std::mem::take(&mut state.is_up) {
            tracing::warn!(%error, store = %self.url, "the store is away; instances ask each other meanwhile");
        }
    }

    /// It has.
    fn answered(&self, beat: &Beat) {
        let mut state = self.state();
        let now = Instant::now();
        let was_away = !state.is_up;
        let was_emptied = state.was_up && state.born != beat.born;
        // What others could not write while it was away they write now.
        let lacking = if (was_away && state.was_up) || was_emptied { self.lease } else { beat.lacking };
        if state.trusted_from.is_none() || lacking > Duration::ZERO {
            state.trusted_from = state.trusted_from.max(Some(now + lacking));
        }
        if !beat.was_kept {
            state.losses += 1;
        }
        if was_away || !beat.was_kept {
            self.falls_behind(&mut state);
        }
        state.is_doubted = false;
        if let Some(instances) = &beat.instances {
            state.list_at = Some(now + LIST_PAUSE * instances.len() as u32);
        }
        (state.is_up, state.was_up) = (true, true);
        state.born.clone_from(&beat.born);
        drop(state);
        if was_away {
            tracing::info!(store = %self.url, "the store answers");
        }
    }

    /// Something that is held here cannot be written just now.
    fn fell_behind(&self) {
        self.falls_behind(&mut self.state());
    }

    fn falls_behind(&self, state: &mut State) {
        if !std::mem::replace(&mut state.has_backlog, true) {
            self.kick.notify_one();
        }
    }

    /// Everything is written that was held here when the store had lost something so often.
    fn caught_up(&self, losses: u64) {
        let mut state = self.state();
        if state.is_up && state.losses == losses && std::mem::take(&mut state.has_backlog) {
            // Others may rely on it from now on.
            self.kick.notify_one();
        }
    }
}

/// As `me` writes it. How long a name is still kept changes all the time, and is asked for.
fn entry(me: &Introduction, held: &Held) -> String {
    let held = Held { away_ms: held.away_ms.map(|_| 0), ..held.clone() };
    serde_json::to_string(&Entry { life: me.life, held }).unwrap_or_default()
}
