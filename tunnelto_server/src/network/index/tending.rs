//! Keeps this instance's lease, and knows the others by what they have written of themselves.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{Index, Registration, StoreError};
use crate::{
    limits::{STORE_AGAIN, STORE_TIME},
    network::{
        discovery::{Discovered, Spotted, publish},
        peers::Peers,
    },
    observability::metrics::Asked,
};

/// Signs of life in one lease.
const BEATS: u32 = 3;

/// Never ends.
pub async fn tend(peers: Arc<Peers>, found: watch::Sender<Discovered>) {
    let Some(index) = &peers.setting.index else { return };
    let shutdown = &peers.setting.shutdown;
    let again = STORE_AGAIN.min(index.lease / BEATS / 2);
    loop {
        let was_draining = shutdown.is_draining();
        let silence = |_| Err(StoreError("no answer to a sign of life".into()));
        // Two may fail within one lease.
        let limit = (STORE_TIME * 2).min(index.lease / BEATS);
        let beaten = timeout(limit, beat(&peers, index)).await.unwrap_or_else(silence);
        index.metrics.asked_store(if beaten.is_ok() { Asked::Beat } else { Asked::Failed });
        let pause = match beaten {
            Ok(listed) => {
                publish(&found, Ok(listed));
                index.lease / BEATS
            }
            Err(error) => {
                index.failed(&error);
                publish(&found, Err(format!("{}: {error}", index.url)));
                again
            }
        };
        tokio::select! {
            () = sleep(pause) => {}
            () = async { index.kick.notified().await; sleep(SHORTEST).await } => {}
            () = async { index.doubt.notified().await; sleep(again).await } => {}
            () = shutdown.until_draining(), if !was_draining => {}
        }
    }
}

/// Not more often than this, whatever happens.
const SHORTEST: Duration = Duration::from_millis(100);

/// Returns the instances if anything about them is new.
async fn beat(peers: &Peers, index: &Index) -> Result<Option<Vec<Spotted>>, StoreError> {
    let me = Registration {
        introduction: peers.introduction(),
        ip: index.own_address().await?,
        net_port: index.net_port,
        is_complete: index.is_complete(),
    };
    let lists = index.state().list_at.is_none_or(|at| at <= Instant::now());
    let beat = index.store.beat(&me.introduction.instance, &index.words(&me), lists).await?;
    index.answered(&beat);
    let spotted =
        |registration: Registration| Spotted { at: registration.at(), listed: Some(registration.into()) };
    let open = |text: String| index.open(&text).map(spotted);
    Ok(beat.instances.map(|texts| texts.into_iter().filter_map(open).collect()))
}
