//! The index in etcd. Each instance has a lease; what it has written of itself and of names hangs on it and goes with it.
//! Each name has a guard beside its entries whose revision is compared and set.

mod gateway;

use std::{
    io,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::uri::Authority;
use serde_json::{Value, json};
use tunnelto_lib::name::Label;

use super::store::{Beat, Page, StoreError, Words};
use crate::config::Credentials;
use gateway::{Gateway, Key, keys_in, number, range, text};

const BORN: &str = "/tunnelto/born";
const YOUNG: &str = "/tunnelto/young";
const INSTANCES: &str = "/tunnelto/instances/";
const NAMES: &str = "/tunnelto/names/";
const GUARDS: &str = "/tunnelto/guards/";

pub struct Etcd {
    gateway: Gateway,
    lease: Duration,
    state: Mutex<State>,
}

#[derive(Clone, Default)]
struct State {
    lease: Option<String>,
    /// What this instance has written of itself.
    written: String,
    born: String,
    /// When the instances were told last, and how many they were.
    listed: (u64, u64),
}

impl Etcd {
    pub fn new(
        endpoints: &[Authority],
        user: Option<&Credentials>,
        lease: Duration,
        limit: Duration,
    ) -> Self {
        Self { gateway: Gateway::new(endpoints, user, limit), lease, state: Mutex::default() }
    }

    /// Nothing that can panic happens under this lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn host(&self) -> io::Result<(String, u16)> {
        let at = self.gateway.endpoint();
        let port = at.port_u16().ok_or(io::ErrorKind::InvalidInput)?;
        Ok((at.host().to_owned(), port))
    }

    /// The lease, alive; and whether it was before.
    async fn keep_alive(&self) -> Result<(String, bool), StoreError> {
        let known = self.state().lease.clone();
        if let Some(lease) = known {
            let answer = self.gateway.ask("lease/keepalive", &json!({ "ID": lease })).await?;
            if number(&answer["result"]["TTL"]) > 0 {
                return Ok((lease, true));
            }
        }
        Ok((self.grant().await?, false))
    }

    async fn grant(&self) -> Result<String, StoreError> {
        let answer = self.gateway.ask("lease/grant", &json!({ "TTL": self.lease.as_secs() })).await?;
        answer["ID"].as_str().map(str::to_owned).ok_or_else(|| StoreError("a lease without a number".into()))
    }

    pub async fn beat(&self, instance: &str, words: &Words, lists: bool) -> Result<Beat, StoreError> {
        let (lease, was_kept) = self.keep_alive().await?;
        let written = if was_kept { &words.if_kept } else { &words.if_lost };
        let before = self.state().clone();
        if !was_kept || before.written != *written {
            let key = Key::of(&[INSTANCES, instance]);
            let put = json!({ "key": key, "value": Key::of(&[written]), "lease": lease });
            self.gateway.ask("kv/put", &put).await?;
            let mut state = self.state();
            (state.lease, state.written) = (Some(lease), written.to_owned());
        }
        let mut news = keys_in(INSTANCES);
        news["min_mod_revision"] = json!((before.listed.0 + 1).to_string());
        let look = [
            range(json!({ "key": Key::of(&[BORN]) })),
            range(json!({ "key": Key::of(&[YOUNG]) })),
            range(news),
        ];
        let answer = self.gateway.ask("kv/txn", &json!({ "success": look })).await?;
        let found = |at: usize| &answer["responses"][at]["response_range"];
        let (born, lacking) = match text(&found(0)["kvs"][0]["value"]) {
            Some(born) => (born, self.left_of(&found(1)["kvs"][0]["lease"]).await?),
            None => (self.be_born().await?, self.lease),
        };
        // Of an emptied store revisions mean nothing.
        let is_news = before.born != born
            || found(2)["kvs"].is_array()
            || number(&found(2)["count"]) != before.listed.1;
        let instances = if lists && is_news { Some(self.list().await?) } else { None };
        if instances.is_some() {
            self.state().born.clone_from(&born);
        }
        Ok(Beat { born, lacking, was_kept, instances })
    }

    /// How long a lease still lasts.
    async fn left_of(&self, lease: &Value) -> Result<Duration, StoreError> {
        if lease.is_null() {
            return Ok(Duration::ZERO);
        }
        let answer = self.gateway.ask("lease/timetolive", &json!({ "ID": lease })).await?;
        Ok(Duration::from_secs(number(&answer["TTL"])))
    }

    /// Marks the store as empty until now, unless another instance has just done so.
    async fn be_born(&self) -> Result<String, StoreError> {
        let young = self.grant().await?;
        let mark = rand::random::<u64>().to_string();
        let born = Key::of(&[BORN]);
        let answer = json!({
            "compare": [{ "key": born, "target": "CREATE", "result": "EQUAL", "create_revision": "0" }],
            "success": [
                { "request_put": { "key": born, "value": Key::of(&[&mark]) } },
                { "request_put": { "key": Key::of(&[YOUNG]), "value": Key::of(&["1"]), "lease": young } },
            ],
            "failure": [range(json!({ "key": born }))],
        });
        let answer = self.gateway.ask("kv/txn", &answer).await?;
        let other = text(&answer["responses"][0]["response_range"]["kvs"][0]["value"]);
        Ok(other.unwrap_or(mark))
    }

    pub async fn list(&self) -> Result<Vec<String>, StoreError> {
        let mut all = keys_in(INSTANCES);
        (all["sort_target"], all["sort_order"]) = (json!("MOD"), json!("ASCEND"));
        let answer = self.gateway.ask("kv/range", &all).await?;
        self.state().listed = (number(&answer["header"]["revision"]), number(&answer["count"]));
        let list = answer["kvs"].as_array().map_or(&[][..], Vec::as_slice);
        Ok(list.iter().filter_map(|pair| text(&pair["value"])).collect())
    }

    /// What hangs on the lease goes with it.
    pub async fn leave(&self) -> Result<(), StoreError> {
        let lease = self.state().lease.take();
        if let Some(lease) = lease {
            self.gateway.ask("lease/revoke", &json!({ "ID": lease })).await?;
        }
        Ok(())
    }

    pub async fn instance(&self, instance: &str) -> Result<Option<String>, StoreError> {
        let answer = self.gateway.ask("kv/range", &json!({ "key": Key::of(&[INSTANCES, instance]) })).await?;
        Ok(text(&answer["kvs"][0]["value"]))
    }

    pub async fn read(&self, name: &Label) -> Result<Page, StoreError> {
        let entries_of = format!("{NAMES}{name}/");
        let look = [
            range(json!({ "key": Key::of(&[BORN]) })),
            range(json!({ "key": Key::of(&[GUARDS, name.as_str()]), "keys_only": true })),
            range(keys_in(&entries_of)),
        ];
        let answer = self.gateway.ask("kv/txn", &json!({ "success": look })).await?;
        let found = |at: usize| &answer["responses"][at]["response_range"]["kvs"];
        let list = found(2).as_array().map_or(&[][..], Vec::as_slice);
        let entry = |pair: &Value| {
            let key = text(&pair["key"])?;
            Some((key.strip_prefix(&entries_of)?.to_owned(), text(&pair["value"])?))
        };
        Ok(Page {
            born: text(&found(0)[0]["value"]),
            version: found(1)[0]["mod_revision"].as_str().unwrap_or_default().into(),
            entries: list.iter().filter_map(entry).collect(),
        })
    }

    pub async fn write(
        &self,
        name: &Label,
        page: &Page,
        instance: &str,
        entry: Option<&str>,
    ) -> Result<bool, StoreError> {
        let lease = self.state().lease.clone().ok_or_else(|| StoreError("no lease yet".into()))?;
        let guard = Key::of(&[GUARDS, name.as_str()]);
        let key = Key::of(&[NAMES, name.as_str(), "/", instance]);
        let guarded = json!({ "request_put": { "key": guard, "value": "", "lease": lease } });
        let change = match entry {
            Some(text) => {
                let put = json!({ "key": key, "value": Key::of(&[text]), "lease": lease });
                [json!({ "request_put": put }), guarded]
            }
            None if page.entries.iter().any(|(by, _)| by != instance) => [delete(&key), guarded],
            None => [delete(&key), delete(&guard)],
        };
        let version = if page.version.is_empty() { "0" } else { &page.version };
        let unchanged =
            json!([{ "key": guard, "target": "MOD", "result": "EQUAL", "mod_revision": version }]);
        let answer = self.gateway.ask("kv/txn", &json!({ "compare": unchanged, "success": change })).await?;
        Ok(answer["succeeded"].as_bool().unwrap_or(false))
    }
}

fn delete(key: &Key) -> Value {
    json!({ "request_delete_range": { "key": key } })
}
