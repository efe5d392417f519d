//! Waiting for a condition, with a deadline.

use std::{future::Future, time::Duration};

use tokio::time::{Instant, sleep, timeout};

/// Far beyond what anything here takes on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Asks again and again until the answer is yes.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let deadline = Instant::now() + DEADLINE;
    while !condition().await {
        assert!(Instant::now() < deadline, "still not so after {DEADLINE:?}: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Bounds a wait for something that must happen.
pub async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match timeout(DEADLINE, future).await {
        Ok(output) => output,
        Err(_) => panic!("did not happen within {DEADLINE:?}: {what}"),
    }
}
