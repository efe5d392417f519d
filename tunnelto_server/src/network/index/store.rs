//! What is kept in a store, and the stores that can keep it. Instances and names are strings to them; what those mean is
//! known to the index alone.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tunnelto_lib::name::Label;

use super::{etcd::Etcd, redis::Redis};
use crate::{config::StoreUrl, limits::PAGE_LIFE};

pub enum Store {
    Redis(Redis),
    Etcd(Etcd),
}

/// What a sign of life came to.
#[derive(Debug, Default)]
pub struct Beat {
    /// Another one each time the store has been empty.
    pub born: String,
    /// For so long it may lack what it once had: it was empty or away a short time ago.
    pub lacking: Duration,
    /// Everything that this instance has written was still there.
    pub was_kept: bool,
    /// What all instances have written of themselves, the latest last, if it is wanted and any of it is new.
    pub instances: Option<Vec<String>>,
}

/// What an instance writes of itself.
#[derive(Debug)]
pub struct Words {
    pub if_kept: String,
    /// Where nothing is there any more of what it has written.
    pub if_lost: String,
}

/// All that is written down of one name.
#[derive(Debug, Default)]
pub struct Page {
    pub born: Option<String>,
    /// Another one after each change; empty if nothing is written.
    pub version: String,
    /// By instance.
    pub entries: Vec<(String, String)>,
}

#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct StoreError(pub Arc<str>);

impl Store {
    /// Nothing is asked of it yet. `lease` is how long an instance counts that shows no life.
    pub fn new(url: &StoreUrl, lease: Duration, limit: Duration) -> Result<Self, StoreError> {
        match url {
            // Before a sign of life is given up, so that a connection that says nothing is given up too.
            StoreUrl::Redis(url) => Redis::new(url, lease, limit.min(lease / 3) / 2).map(Self::Redis),
            StoreUrl::Etcd { endpoints, user } => {
                Ok(Self::Etcd(Etcd::new(endpoints, user.as_ref(), lease, limit)))
            }
        }
    }

    /// Where it is, to find out from which address it is reached.
    pub async fn address(&self) -> io::Result<SocketAddr> {
        let (host, port) = match self {
            Self::Redis(store) => store.host(),
            Self::Etcd(store) => store.host(),
        }?;
        let mut found = tokio::net::lookup_host((host.trim_matches(['[', ']']), port)).await?;
        found.next().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// For how long it keeps a page that is not written again; `None` as long as there are entries on it.
    pub fn page_life(&self) -> Option<Duration> {
        match self {
            Self::Redis(_) => Some(PAGE_LIFE),
            Self::Etcd(_) => None,
        }
    }

    /// A sign of life of `instance`, with what others are told of it. `lists`: what the others have written is wanted.
    pub async fn beat(&self, instance: &str, words: &Words, lists: bool) -> Result<Beat, StoreError> {
        match self {
            Self::Redis(store) => store.beat(instance, words, lists).await,
            Self::Etcd(store) => store.beat(instance, words, lists).await,
        }
    }

    /// What all instances have written of themselves that show life.
    pub async fn list(&self) -> Result<Vec<String>, StoreError> {
        match self {
            Self::Redis(store) => store.list().await,
            Self::Etcd(store) => store.list().await,
        }
    }

    /// `instance` is no more.
    pub async fn leave(&self, instance: &str) -> Result<(), StoreError> {
        match self {
            Self::Redis(store) => store.leave(instance).await,
            Self::Etcd(store) => store.leave().await,
        }
    }

    /// What `instance` has written of itself, if it shows life.
    pub async fn instance(&self, instance: &str) -> Result<Option<String>, StoreError> {
        match self {
            Self::Redis(store) => store.instance(instance).await,
            Self::Etcd(store) => store.instance(instance).await,
        }
    }

    pub async fn read(&self, name: &Label) -> Result<Page, StoreError> {
        match self {
            Self::Redis(store) => store.read(name).await,
            Self::Etcd(store) => store.read(name).await,
        }
    }

    /// Makes `entry` what `instance` says of `name`, if nothing on the page has changed since it was read. Returns whether
    /// that was so.
    pub async fn write(
        &self,
        name: &Label,
        page: &Page,
        instance: &str,
        entry: Option<&str>,
    ) -> Result<bool, StoreError> {
        match self {
            Self::Redis(store) => store.write(name, page, instance, entry).await,
            Self::Etcd(store) => store.write(name, page, instance, entry).await,
        }
    }
}

impl Page {
    pub fn entry(&self, instance: &str) -> Option<&str> {
        self.entries.iter().find(|(by, _)| by == instance).map(|(_, text)| text.as_str())
    }
}
