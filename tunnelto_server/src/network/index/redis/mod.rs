//! The index in Redis or Valkey. Each instance is a hash that expires with its lease; all of them are one sorted set by
//! when that is; each name is a hash with an entry of each instance and a version, which scripts compare and set. Redis
//! may come back from a restart without its last writes, so after each broken connection it counts as lacking some.

use std::{
    io,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, InfoDict, RedisError, Script, aio::MultiplexedConnection,
    pipe,
};
use tunnelto_lib::name::Label;

use super::store::{Beat, Page, StoreError, Words};
use crate::limits::PAGE_LIFE;

const BORN: &str = "tunnelto:born";
const YOUNG: &str = "tunnelto:young";
const INSTANCE: &str = "tunnelto:instance:";
const INSTANCES: &str = "tunnelto:instances";
const VERSION: &str = "tunnelto:instances:version";
const NAME: &str = "tunnelto:name:";
/// Before an instance in a page.
const BY: &str = "by:";

pub struct Redis {
    client: Client,
    lease: Duration,
    limit: Duration,
    beat: Script,
    write: Script,
    leave: Script,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    connection: Option<MultiplexedConnection>,
    /// How many connections there have been.
    connections: u64,
    /// Something may be lost since the last sign of life.
    has_lost: bool,
    /// It throws away what nobody has used for a while.
    evicts: bool,
    /// Until then it may lack what it had when it was started, or when the connection broke.
    lacking_until: Option<Instant>,
    /// What the last sign of life has left there.
    token: String,
    /// All instances as they were told last.
    version: String,
}

struct Connection {
    connection: MultiplexedConnection,
    number: u64,
}

/// born, being young in ms, was kept, version of the instances, the instances
type Answer = (String, u64, bool, String, Vec<String>);

impl Redis {
    pub fn new(url: &str, lease: Duration, limit: Duration) -> Result<Self, StoreError> {
        // For rediss://. It may be there already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Ok(Self {
            client: Client::open(url)?,
            lease,
            limit,
            beat: Script::new(include_str!("beat.lua")),
            write: Script::new(include_str!("write.lua")),
            leave: Script::new(include_str!("leave.lua")),
            state: Mutex::default(),
        })
    }

    /// Nothing that can panic happens under this lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn host(&self) -> io::Result<(String, u16)> {
        match self.client.get_connection_info().addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Ok((host.clone(), *port))
            }
            _ => Err(io::Error::other("a socket has no address; set ADVERTISE")),
        }
    }

    /// Only signs of life connect; everything else fails while there is no connection.
    fn connection(&self) -> Result<Connection, StoreError> {
        let state = self.state();
        let connection = state.connection.clone().ok_or_else(|| StoreError("not connected".into()))?;
        Ok(Connection { connection, number: state.connections })
    }

    async fn connect(&self) -> Result<Connection, StoreError> {
        if let Ok(connection) = self.connection() {
            return Ok(connection);
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.limit))
            .set_response_timeout(Some(self.limit));
        let mut connection = self.client.get_multiplexed_async_connection_with_config(&config).await?;
        let info: InfoDict = redis::cmd("INFO").query_async(&mut connection).await?;
        let up = Duration::from_secs(info.get("uptime_in_seconds").unwrap_or_default());
        let policy: String = info.get("maxmemory_policy").unwrap_or_default();
        let limit: u64 = info.get("maxmemory").unwrap_or_default();
        let evicts = limit > 0 && policy != "noeviction";
        if evicts {
            tracing::warn!(
                policy,
                "Redis throws names away when its memory is full, so instances are asked as well; set maxmemory-policy \
                 noeviction, or maxmemory 0"
            );
        }
        let mut state = self.state();
        state.evicts = evicts;
        if let Some(left) = self.lease.checked_sub(up) {
            state.lacking_until = state.lacking_until.max(Some(Instant::now() + left));
        }
        state.connection = Some(connection.clone());
        state.connections += 1;
        Ok(Connection { connection, number: state.connections })
    }

    /// Notices what happens to the connection of this number.
    fn heard<T>(&self, number: u64, result: Result<T, RedisError>) -> Result<T, StoreError> {
        if let Err(error) = &result
            && (error.is_io_error() || error.is_unrecoverable_error() || error.is_connection_dropped())
        {
            self.broken(number);
        }
        Ok(result?)
    }

    fn broken(&self, number: u64) {
        let mut state = self.state();
        // It may be another one by now.
        if state.connections == number && state.connection.take().is_some() {
            state.has_lost = true;
            state.lacking_until = Some(Instant::now() + self.lease);
        }
    }

    pub async fn beat(&self, instance: &str, words: &Words, lists: bool) -> Result<Beat, StoreError> {
        let Connection { mut connection, number } = self.connect().await?;
        let token = rand::random::<u64>().to_string();
        let (left_before, known, if_kept) = {
            let state = self.state();
            let if_kept = if state.has_lost { &words.if_lost } else { &words.if_kept };
            (state.token.clone(), state.version.clone(), if_kept)
        };
        let beat = self
            .beat
            .key(BORN)
            .key(YOUNG)
            .key(format!("{INSTANCE}{instance}"))
            .key(INSTANCES)
            .key(VERSION)
            .arg(rand::random::<u64>().to_string())
            .arg(self.lease.as_millis() as u64)
            .arg(instance)
            .arg(if_kept)
            .arg(left_before)
            .arg(&token)
            .arg(&known)
            .arg(INSTANCE)
            .arg(lists)
            .arg(&words.if_lost)
            .invoke_async::<Answer>(&mut connection)
            .await;
        if beat.is_err() {
            // It may be one that only answers, and takes nothing.
            self.broken(number);
        }
        let (born, young_ms, was_kept, version, instances) = beat?;
        let mut state = self.state();
        state.token = token;
        let left = |until: Instant| until.duration_since(Instant::now());
        let lacking =
            if state.evicts { self.lease } else { state.lacking_until.map_or(Duration::ZERO, left) };
        let instances = (lists && version != state.version).then_some(instances);
        if lists {
            state.version = version;
        }
        let was_kept = was_kept && !std::mem::take(&mut state.has_lost);
        Ok(Beat { born, lacking: lacking.max(Duration::from_millis(young_ms)), was_kept, instances })
    }

    pub async fn leave(&self, instance: &str) -> Result<(), StoreError> {
        let Connection { mut connection, number } = self.connection()?;
        let left = self
            .leave
            .key(format!("{INSTANCE}{instance}"))
            .key(INSTANCES)
            .key(VERSION)
            .arg(instance)
            .invoke_async(&mut connection)
            .await;
        self.heard(number, left)
    }

    pub async fn list(&self) -> Result<Vec<String>, StoreError> {
        let Connection { mut connection, number } = self.connect().await?;
        let instances: Result<Vec<String>, _> =
            redis::cmd("ZRANGE").arg(INSTANCES).arg(0).arg(-1).query_async(&mut connection).await;
        let mut all = Vec::new();
        for instance in self.heard(number, instances)? {
            all.extend(self.instance(&instance).await?);
        }
        Ok(all)
    }

    pub async fn instance(&self, instance: &str) -> Result<Option<String>, StoreError> {
        let Connection { mut connection, number } = self.connection()?;
        let mut get = redis::cmd("HGET");
        let text = get.arg(format!("{INSTANCE}{instance}")).arg("text").query_async(&mut connection).await;
        self.heard(number, text)
    }

    pub async fn read(&self, name: &Label) -> Result<Page, StoreError> {
        let Connection { mut connection, number } = self.connection()?;
        let read = pipe()
            .atomic()
            .get(BORN)
            .hgetall(format!("{NAME}{name}"))
            .query_async::<(Option<String>, Vec<(String, String)>)>(&mut connection)
            .await;
        let (born, fields) = self.heard(number, read)?;
        let mut page = Page { born, ..Page::default() };
        for (field, text) in fields {
            match field.strip_prefix(BY) {
                Some(instance) => page.entries.push((instance.into(), text)),
                None => page.version = text,
            }
        }
        Ok(page)
    }

    pub async fn write(
        &self,
        name: &Label,
        page: &Page,
        instance: &str,
        entry: Option<&str>,
    ) -> Result<bool, StoreError> {
        let Connection { mut connection, number } = self.connection()?;
        let written = self
            .write
            .key(format!("{NAME}{name}"))
            .arg(&page.version)
            // Never one that was there before the store was emptied.
            .arg(rand::random::<u64>().to_string())
            .arg(instance)
            .arg(entry.unwrap_or_default())
            .arg(PAGE_LIFE.as_millis() as u64)
            .arg(INSTANCE)
            .invoke_async(&mut connection)
            .await;
        self.heard(number, written)
    }
}

impl From<RedisError> for StoreError {
    fn from(error: RedisError) -> Self {
        Self(error.to_string().into())
    }
}
