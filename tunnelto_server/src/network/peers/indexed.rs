//! What the index has of a name, seen by this instance.

use std::sync::Arc;

use tunnelto_lib::name::Label;

use super::Peers;
use crate::{
    connected_clients::Held,
    network::{
        index::{Entry, Index, Page, StoreError},
        peer::Peer,
    },
};

/// Another instance that has written down a name.
pub struct Holder {
    pub peer: Arc<Peer>,
    pub instance: String,
    pub held: Held,
}

pub struct Indexed {
    pub page: Page,
    pub holders: Vec<Holder>,
}

impl Peers {
    /// `None` where there is no index, or it is away.
    pub(super) async fn indexed(&self, name: &Label) -> Option<Indexed> {
        let page = self.setting.index.as_ref()?.read(name).await.ok()?;
        let holders = self.holders(&page).await;
        Some(Indexed { page, holders })
    }

    /// Whose entries those on the page are, this instance's left out, and those of instances that are no more.
    pub(in crate::network) async fn holders(&self, page: &Page) -> Vec<Holder> {
        let mut holders = Vec::new();
        let Some(index) = &self.setting.index else { return holders };
        for (instance, text) in &page.entries {
            let Ok(Entry { life, held }) = serde_json::from_str(text) else {
                tracing::warn!(instance, "what it has written of a name is not understood");
                continue;
            };
            if *instance == self.setting.introduction.instance {
                continue;
            }
            if let Some(peer) = self.who(index, instance, life).await {
                holders.push(Holder { peer, instance: instance.clone(), held });
            }
        }
        holders
    }

    async fn who(&self, index: &Index, instance: &str, life: u64) -> Option<Arc<Peer>> {
        if let Some(known) = self.listed(instance, life) {
            return Some(known);
        }
        let registration = index.instance(instance).await.ok()??;
        let is_it = registration.introduction.instance == instance && registration.introduction.life == life;
        is_it.then(|| self.meet(registration.at(), &registration.introduction))?
    }

    pub(super) async fn write(
        &self,
        name: &Label,
        page: &Page,
        held: Option<&Held>,
    ) -> Result<bool, StoreError> {
        match &self.setting.index {
            Some(index) => index.write(name, page, &self.setting.introduction, held).await,
            None => Ok(true),
        }
    }
}
