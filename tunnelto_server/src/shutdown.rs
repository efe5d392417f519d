//! Stopping in two steps: draining (finish what is open, take nothing that can go elsewhere), then the end.

use tokio_util::sync::CancellationToken;

/// Cloned into everything that has to know.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    draining: CancellationToken,
    ended: CancellationToken,
}

impl Shutdown {
    pub fn drain(&self) {
        self.draining.cancel();
    }

    pub fn end(&self) {
        self.draining.cancel();
        self.ended.cancel();
    }

    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    pub fn is_ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    pub async fn until_draining(&self) {
        self.draining.cancelled().await;
    }

    pub async fn until_ended(&self) {
        self.ended.cancelled().await;
    }
}
