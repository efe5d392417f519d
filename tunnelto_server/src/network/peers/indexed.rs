//! What the index has of a name, seen by this instance.

use std::sync::Arc;

use tunnelto_lib::name::Label;

use super::Peers;
use crate::{
    connected_clients::Held,
    network::{
        index::{Entry, Index, Page, Registration, StoreError},
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
        let holders = self.holders(&page).await.ok()?;
        Some(Indexed { page, holders })
    }

    /// Whose entries those on the page are, this instance's left out, and those of instances that are no more.
    pub(in crate::network) async fn holders(&self, page: &Page) -> Result<Vec<Holder>, StoreError> {
        let mut holders = Vec::new();
        let Some(index) = &self.setting.index else { return Ok(holders) };
        for (instance, text) in &page.entries {
            let Ok(Entry { life, held }) = serde_json::from_str(text) else {
                tracing::warn!(instance, "what it has written of a name is not understood");
                continue;
            };
            if *instance == self.setting.introduction.instance {
                continue;
            }
            if let Some(peer) = self.who(index, instance, life).await? {
                holders.push(Holder { peer, instance: instance.clone(), held });
            }
        }
        Ok(holders)
    }

    /// `None` if it is no more.
    async fn who(&self, index: &Index, instance: &str, life: u64) -> Result<Option<Arc<Peer>>, StoreError> {
        if let Some(known) = self.listed(instance, life) {
            return Ok(Some(known));
        }
        let is_it = |registration: &Registration| {
            registration.introduction.instance == instance && registration.introduction.life == life
        };
        let registration = index.instance(instance).await?.filter(is_it);
        Ok(registration.and_then(|registration| self.meet(registration.at(), &registration.into())))
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
