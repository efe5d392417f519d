//! Keeps this instance's lease, and knows the others by what they have written of themselves.

use std::{sync::Arc, time::Duration};

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

/// Signs of life in one lease: one may be lost.
const BEATS: u32 = 3;

/// Never ends.
pub async fn tend(peers: Arc<Peers>, found: watch::Sender<Discovered>) {
    let Some(index) = &peers.setting.index else { return };
    let shutdown = &peers.setting.shutdown;
    loop {
        let was_draining = shutdown.is_draining();
        let silence = |_| Err(StoreError("no answer to a sign of life".into()));
        let beaten = timeout(STORE_TIME * 2, beat(&peers, index)).await.unwrap_or_else(silence);
        index.metrics.asked_store(if beaten.is_ok() { Asked::Beat } else { Asked::Failed });
        let pause = match beaten {
            Ok(listed) => {
                if let Some(spotted) = listed {
                    publish(&found, Ok(spotted));
                }
                index.lease / BEATS
            }
            Err(error) => {
                index.failed(&error);
                publish(&found, Err(format!("{}: {error}", index.url)));
                STORE_AGAIN
            }
        };
        tokio::select! {
            () = sleep(pause) => {}
            // Not more often than this, whatever happens.
            () = async { index.kick.notified().await; sleep(SHORTEST).await } => {}
            () = shutdown.until_draining(), if !was_draining => {}
        }
    }
}

const SHORTEST: Duration = Duration::from_millis(100);

/// Returns the instances if anything about them is new.
async fn beat(peers: &Peers, index: &Index) -> Result<Option<Vec<Spotted>>, StoreError> {
    let me = Registration {
        introduction: peers.introduction(),
        ip: index.own_address().await?,
        net_port: index.net_port,
    };
    let beat = index.store.beat(&me.introduction.instance, &index.seal(&me)).await?;
    index.answered(&beat);
    let spotted = |registration: Registration| Spotted {
        at: registration.at(),
        introduction: Some(registration.introduction),
    };
    let open = |text: String| index.open(&text).map(spotted);
    Ok(beat.instances.map(|texts| texts.into_iter().filter_map(open).collect()))
}
