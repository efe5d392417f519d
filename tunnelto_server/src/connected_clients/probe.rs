//! Whether a client lives, by its own sign.

use tokio::{task::JoinSet, time::timeout};

use super::Member;
use crate::limits::PROBE_TIME;

/// Asks all at once: a pool's dead members cost one wait.
pub async fn any_alive(members: &[Member]) -> bool {
    let mut answers = JoinSet::new();
    for member in members {
        let orders = member.orders.clone();
        answers.spawn(async move { orders.shows_life().await });
    }
    let any = async {
        while let Some(answer) = answers.join_next().await {
            if matches!(answer, Ok(true)) {
                return true;
            }
        }
        false
    };
    timeout(PROBE_TIME, any).await.unwrap_or(false)
}
