//! Tokens by which a client without a key, or a session, gets its name back after a break.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tunnelto_lib::{name::Label, token::Secret};
use uuid::Uuid;

use crate::{
    connected_clients::Owner,
    limits::TOKEN_LIFE,
    sign::{MasterKeys, Purpose},
};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReconnectToken {
    pub name: Label,
    owner: String,
    pub session: Option<Uuid>,
    /// Seconds since 1970.
    expires: u64,
}

impl ReconnectToken {
    pub fn new(name: Label, owner: &Owner, session: Option<Uuid>, now: SystemTime) -> Self {
        Self { name, owner: owner.0.to_string(), session, expires: seconds(now) + TOKEN_LIFE.as_secs() }
    }

    pub fn owner(&self) -> Owner {
        Owner(self.owner.as_str().into())
    }

    pub fn seal(&self, keys: &MasterKeys) -> Secret {
        Secret::new(keys.seal(Purpose::ReconnectToken, self))
    }

    /// `None` for what is not ours, damaged or expired.
    pub fn open(keys: &MasterKeys, sealed: &Secret, now: SystemTime) -> Option<Self> {
        let token: Self = keys.open(Purpose::ReconnectToken, sealed.expose()).ok()?;
        (token.expires > seconds(now)).then_some(token)
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_lives_for_a_day() {
        let keys = MasterKeys::new([1; 32], None);
        let now = SystemTime::now();
        let token = ReconnectToken::new(Label::parse("web").unwrap(), &Owner("ann".into()), None, now);
        let sealed = token.seal(&keys);
        assert_eq!(ReconnectToken::open(&keys, &sealed, now).unwrap().name.as_str(), "web");
        assert!(ReconnectToken::open(&keys, &sealed, now + TOKEN_LIFE).is_none());
        assert!(ReconnectToken::open(&keys, &Secret::new("x.y"), now).is_none());
    }
}
