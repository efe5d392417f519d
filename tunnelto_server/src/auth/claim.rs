//! From a hello to an owner and the name it may claim.

use std::{sync::Arc, time::SystemTime};

use tunnelto_lib::{
    hello::{ClientHello, ClientType},
    name::Label,
    token::Secret,
};
use uuid::Uuid;

use super::{keys::verify_key, reconnect_token::ReconnectToken};
use crate::{
    config::Auth,
    connected_clients::Owner,
    routing::WORMHOLE,
    sign::{MasterKeys, Purpose},
};

/// Checks hellos.
pub struct Prover {
    pub auth: Auth,
    pub keys: MasterKeys,
    pub blocked_names: Vec<Label>,
}

/// Who a client has proved to be.
#[derive(Debug)]
pub struct Proved {
    pub owner: Owner,
    /// What the protocol calls this client: never empty.
    pub client_id: Arc<str>,
    pub session: Option<Uuid>,
    pub wish: Wish,
    /// A client with a key finds its name by it and needs no token.
    pub has_key: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Wish {
    /// This name and no other.
    Exactly(Label),
    /// The name it had, or any.
    Rather(Label),
    Any,
}

/// Why a hello is refused for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    BadKey,
    BadName,
    /// Blocked or reserved.
    NameNotAllowed,
}

impl Prover {
    pub fn prove(&self, hello: &ClientHello, now: SystemTime) -> Result<Proved, Refused> {
        let token = hello.reconnect_token.as_ref();
        let token = token.and_then(|token| ReconnectToken::open(&self.keys, token, now));
        let (owner, client_id, has_key) = match &hello.client_type {
            ClientType::Auth { key } => {
                let (owner, client_id) = self.owner_of(key)?;
                (owner, client_id, true)
            }
            ClientType::Anonymous if self.auth == Auth::Keys => return Err(Refused::BadKey),
            ClientType::Anonymous => {
                let owner = token.as_ref().map_or_else(random_owner, ReconnectToken::owner);
                let client_id = Secret::new(&*owner.0).fingerprint().into();
                (owner, client_id, false)
            }
        };
        // A token counts only for the owner that it was made for.
        let token = token.filter(|token| token.owner() == owner);
        // A session counts only together with the key or token.
        let session = hello
            .session
            .filter(|session| has_key || token.as_ref().is_none_or(|token| token.session == Some(*session)));
        let wish = match (&hello.sub_domain, token) {
            (Some(name), _) => Wish::Exactly(self.allowed(name)?),
            (None, Some(token)) => Wish::Rather(token.name),
            (None, None) => Wish::Any,
        };
        Ok(Proved { owner, client_id, session, wish, has_key })
    }

    /// Names to try for a client that asks for none. A key's are always the same, so that its client finds its
    /// name again wherever it connects and after any restart.
    pub fn made_up_name(&self, proved: &Proved, attempt: u64) -> Label {
        match proved.has_key {
            true => {
                let seed = format!("{}/{attempt}", proved.owner.0);
                Label::from_entropy(self.keys.derive(Purpose::DerivedName, &seed))
            }
            false => Label::from_entropy(rand::random()),
        }
    }

    pub fn token(&self, name: &Label, owner: &Owner, session: Option<Uuid>) -> Secret {
        ReconnectToken::new(name.clone(), owner, session, SystemTime::now()).seal(&self.keys)
    }

    fn owner_of(&self, key: &Secret) -> Result<(Owner, Arc<str>), Refused> {
        let fingerprint = key.fingerprint();
        let owner = match self.auth {
            Auth::Open if key.expose().is_empty() => return Err(Refused::BadKey),
            Auth::Open => format!("key:{fingerprint}"),
            Auth::Keys => {
                format!("owner:{}", verify_key(&self.keys, key).map_err(|_| Refused::BadKey)?.owner)
            }
        };
        Ok((Owner(owner.into()), fingerprint.into()))
    }

    fn allowed(&self, name: &str) -> Result<Label, Refused> {
        let label = Label::parse(name).map_err(|_| Refused::BadName)?;
        if label.as_str() == WORMHOLE || self.blocked_names.contains(&label) {
            return Err(Refused::NameNotAllowed);
        }
        Ok(label)
    }
}

fn random_owner() -> Owner {
    Owner(format!("guest:{}", Uuid::new_v4()).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::create_key;

    fn prover(auth: Auth) -> Prover {
        Prover {
            auth,
            keys: MasterKeys::new([1; 32], None),
            blocked_names: vec![Label::parse("www").unwrap()],
        }
    }

    fn hello(json: &str) -> ClientHello {
        serde_json::from_str(json).unwrap()
    }

    fn keyed(key: &str, name: &str) -> ClientHello {
        hello(&format!(
            r#"{{"id":"x","sub_domain":{name},"client_type":{{"Auth":{{"key":"{key}"}}}},"reconnect_token":null}}"#
        ))
    }

    fn guest(name: &str, token: &str) -> ClientHello {
        hello(&format!(
            r#"{{"id":"x","sub_domain":{name},"client_type":"Anonymous","reconnect_token":{token}}}"#
        ))
    }

    fn prove(prover: &Prover, hello: &ClientHello) -> Result<Proved, Refused> {
        prover.prove(hello, SystemTime::now())
    }

    #[test]
    fn open_doors_take_any_key_as_its_own_owner() {
        let open = prover(Auth::Open);
        let ann = prove(&open, &keyed("k", "null")).unwrap();
        let again = prove(&open, &keyed("k", "null")).unwrap();
        let bob = prove(&open, &keyed("l", "null")).unwrap();
        assert_eq!(ann.owner, again.owner);
        assert_ne!(ann.owner, bob.owner);
        assert_eq!(&*ann.client_id, Secret::new("k").fingerprint());
        assert_eq!(open.made_up_name(&ann, 0), open.made_up_name(&again, 0));
        assert_ne!(open.made_up_name(&ann, 0), open.made_up_name(&ann, 1));
        assert_eq!(prove(&open, &keyed("", "null")).unwrap_err(), Refused::BadKey);
    }

    #[test]
    fn closed_doors_take_signed_keys_only() {
        let closed = prover(Auth::Keys);
        let one = create_key(&closed.keys, "ann", "laptop");
        let two = create_key(&closed.keys, "ann", "phone");
        let by_one = prove(&closed, &keyed(&one, "null")).unwrap();
        let by_two = prove(&closed, &keyed(&two, "null")).unwrap();
        assert_eq!(by_one.owner, by_two.owner);
        assert_ne!(by_one.client_id, by_two.client_id);
        assert_eq!(prove(&closed, &keyed("k", "null")).unwrap_err(), Refused::BadKey);
        assert_eq!(prove(&closed, &guest("null", "null")).unwrap_err(), Refused::BadKey);
    }

    #[test]
    fn a_token_brings_owner_and_name_back() {
        let open = prover(Auth::Open);
        let first = prove(&open, &guest("null", "null")).unwrap();
        assert_eq!(first.wish, Wish::Any);
        let name = open.made_up_name(&first, 0);
        let token = open.token(&name, &first.owner, None);
        let back = prove(&open, &guest("null", &format!("\"{}\"", token.expose()))).unwrap();
        assert_eq!((back.owner, back.wish), (first.owner, Wish::Rather(name)));
        let forged = prove(&open, &guest("null", "\"forged.token\"")).unwrap();
        assert_eq!(forged.wish, Wish::Any);
    }

    #[test]
    fn names_are_labels_and_some_are_not_for_tunnels() {
        let open = prover(Auth::Open);
        let wish = |name: &str| prove(&open, &keyed("k", name)).map(|proved| proved.wish);
        assert_eq!(wish("\"Web\""), Ok(Wish::Exactly(Label::parse("web").unwrap())));
        assert_eq!(wish("\"a.b\""), Err(Refused::BadName));
        assert_eq!(wish("\"\""), Err(Refused::BadName));
        assert_eq!(wish("\"www\""), Err(Refused::NameNotAllowed));
        assert_eq!(wish("\"WORMHOLE\""), Err(Refused::NameNotAllowed));
    }
}
