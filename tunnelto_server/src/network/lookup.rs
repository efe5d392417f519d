//! What asking other instances for a name comes to. Pure, but for the asking.

use std::{sync::Arc, time::Instant};

use super::{asking::AskError, peer::Peer};
use crate::observability::metrics::Lookup;

/// Where a name is, as far as other instances say.
#[derive(Clone, Debug)]
pub enum Located {
    /// The instances whose clients serve it.
    At(Vec<Arc<Peer>>),
    /// Its client is expected back.
    Away(Instant),
    Nowhere,
}

/// Why it is not known where a name is.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LookupError {
    #[error("an instance does not answer: {0}")]
    Io(Arc<str>),
    #[error("an instance answers wrongly: {0}")]
    Request(Arc<str>),
    #[error("the other instances cannot be found: {0}")]
    Resolver(Arc<str>),
    #[error("too many names are being asked for")]
    Busy,
}

impl LookupError {
    pub fn kind(&self) -> Lookup {
        match self {
            Self::Io(_) | Self::Busy => Lookup::Io,
            Self::Request(_) => Lookup::Request,
            Self::Resolver(_) => Lookup::Resolver,
        }
    }
}

impl Located {
    pub fn kind(&self) -> Lookup {
        match self {
            Self::At(_) => Lookup::Peer,
            Self::Away(_) | Self::Nowhere => Lookup::NotFound,
        }
    }
}

/// An instance that did not say yes: a plain no, or not known.
pub fn unknown(error: AskError) -> Option<LookupError> {
    match error {
        // What it held it holds no more.
        AskError::Refused(_) => None,
        AskError::Io(text) => Some(LookupError::Io(text)),
        AskError::Request(text) => Some(LookupError::Request(text)),
    }
}
