//! Other instances: who holds a name (`Directory`), what instances say to each other (`server`, `asking`, `news`), and
//! the way of a visitor from the one that accepted it to the one that serves it (`hop`, `proxy`).

mod asking;
mod breaker;
pub mod discovery;
mod doubts;
pub mod health;
pub mod hop;
pub mod index;
mod lookup;
mod mirror;
pub mod news;
pub mod pace;
pub mod peer;
pub mod peers;
pub mod proxy;
mod question;
pub mod server;

use std::sync::Arc;

use tunnelto_lib::name::Label;

pub use asking::{AskError, Asker};
pub use lookup::{Located, LookupError};
use peer::Peer;
pub use peers::{Contested, Peers};
pub use question::{NameAnswer, Question};

use crate::{
    connected_clients::Held, observability::metrics::Store, sign::MasterKeys, tls::acme::sharing::AskOthers,
};

/// Who else may hold a name.
#[derive(Clone)]
pub enum Directory {
    /// Nobody: there are no other instances.
    Alone,
    Peers(Arc<Peers>),
}

impl Directory {
    pub fn is_alone(&self) -> bool {
        matches!(self, Self::Alone)
    }

    /// Where `name` is, besides here.
    pub async fn locate(&self, name: &Label) -> Result<Located, LookupError> {
        match self {
            Self::Alone => Ok(Located::Nowhere),
            Self::Peers(peers) => peers.locate(name).await,
        }
    }

    /// `name` was claimed here as `mine` says: may it stand?
    pub async fn contest(&self, name: &Label, mine: Held, takeover: bool) -> Contested {
        match self {
            Self::Alone => Contested::Won { since: mine.since, took_over: false },
            Self::Peers(peers) => peers.contest(name, mine, takeover).await,
        }
    }

    /// How the others are asked for certificates.
    pub fn ask_certificates(&self, keys: &MasterKeys) -> Option<AskOthers> {
        let Self::Peers(peers) = self else { return None };
        let (peers, keys) = (peers.clone(), keys.clone());
        Some(Box::new(move |host| Box::pin(peers.clone().certificate(host.to_owned(), keys.clone()))))
    }

    /// The instance `by` holds `name` as well, as `theirs` says.
    fn heal(&self, name: &Label, theirs: &Held, by: &str) {
        if let Self::Peers(peers) = self {
            peers.heal(name, theirs, by);
        }
    }

    /// `peer` turned out not to serve `name`.
    pub fn doubt(&self, peer: &Arc<Peer>, name: &Label) {
        if let Self::Peers(peers) = self {
            peers.doubt(peer, name);
        }
    }

    /// Whether another instance is known to be stopping.
    pub fn is_draining(&self, instance: &str) -> bool {
        match self {
            Self::Alone => false,
            Self::Peers(peers) => peers.is_draining(instance),
        }
    }

    /// `instance` has said that what it holds is not all in the store.
    fn is_without_store(&self, instance: &str) {
        if let Self::Peers(peers) = self {
            peers.is_without_store(instance);
        }
    }

    /// Others have read of `name` in the store: is what is said there of this instance true?
    fn write_again(&self, name: &Label) {
        if let Self::Peers(peers) = self {
            peers.write_again(name);
        }
    }

    /// This instance is no more.
    pub async fn leave(&self) {
        if let Self::Peers(peers) = self {
            peers.leave().await;
        }
    }

    /// The store, if names are written down in one.
    pub fn store(&self) -> Store {
        match self {
            Self::Alone => Store::Away,
            Self::Peers(peers) => peers.store(),
        }
    }

    /// Other instances that answer.
    pub fn count(&self) -> usize {
        match self {
            Self::Alone => 0,
            Self::Peers(peers) => {
                let others = peers.others();
                others.iter().filter(|peer| peer.introduction().is_some() && peer.down().is_none()).count()
            }
        }
    }
}
