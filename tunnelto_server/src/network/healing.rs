//! Two instances hold one name, as one of them has just heard: what becomes of it here.

use std::time::Instant;

use tunnelto_lib::name::Label;

use crate::{
    connected_clients::{ConnectedClients, Healing, Held, Reason},
    observability::metrics::Metrics,
};

/// The instance `by` holds `name` as `theirs` says.
pub fn heal(clients: &ConnectedClients, metrics: &Metrics, me: &str, name: &Label, theirs: &Held, by: &str) {
    let joined = theirs.connections.iter().map(|(_, joined)| *joined);
    clients.saw(joined.fold(theirs.since, u64::max));
    let healing = clients.heal(name, Instant::now(), |mine| mine.heal(me, theirs, by));
    if healing == Healing::Yield(Reason::LostClaim) {
        metrics.claim_lost();
        tracing::warn!(%name, to = by, "name lost: another owner had it first");
    }
}
