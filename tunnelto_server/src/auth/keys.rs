//! Keys that this server or cluster has signed. Any instance can check one without asking anybody.

use serde::{Deserialize, Serialize};
use tunnelto_lib::token::Secret;
use uuid::Uuid;

use crate::sign::{BadSignature, MasterKeys, Purpose};

/// Tells a key from other secrets at a glance, for people and for scanners.
const PREFIX: &str = "tto_";

/// What a key says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    pub id: Uuid,
    pub owner: String,
    pub name: String,
}

pub fn create_key(keys: &MasterKeys, owner: &str, name: &str) -> String {
    let grant = Grant { id: Uuid::new_v4(), owner: owner.to_owned(), name: name.to_owned() };
    format!("{PREFIX}{}", keys.seal(Purpose::ClientKey, &grant))
}

pub fn verify_key(keys: &MasterKeys, key: &Secret) -> Result<Grant, BadSignature> {
    let sealed = key.expose().trim().strip_prefix(PREFIX).ok_or(BadSignature::Foreign)?;
    keys.open(Purpose::ClientKey, sealed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_proves_its_owner_to_its_signer_only() {
        let ours = MasterKeys::new([1; 32], None);
        let key = Secret::new(create_key(&ours, "ann", "laptop"));
        assert_eq!(verify_key(&ours, &key).unwrap().owner, "ann");
        let others = MasterKeys::new([2; 32], None);
        assert_eq!(verify_key(&others, &key), Err(BadSignature::Foreign));
        assert!(verify_key(&ours, &Secret::new("hunter2")).is_err());
    }
}
