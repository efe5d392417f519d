//! What instances ask each other on NET_PORT, and how both sides know that it is they who speak: questions are signed
//! with their path, time and a nonce, answers with that nonce and their body.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use tunnelto_lib::name::{Hostname, Label};

use super::peer::Introduction;
use crate::{
    connected_clients::Held,
    limits::SIGNED_LIFE,
    sign::{MasterKeys, Purpose},
    tls::acme::sharing::{Doing, Theirs, Word},
};

/// Carries the question's signed part.
pub const QUESTION_FIELD: &str = "tunnelto-question";
/// Carries the answer's signature.
pub const SIGNATURE_FIELD: &str = "tunnelto-signature";

/// The signed part of a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// Path and query.
    pub path: String,
    /// Milliseconds since 1970.
    pub at: u64,
    pub nonce: u64,
    /// The instance that asks.
    pub from: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<About>,
    /// What the asker holds is not all in the store just now.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_store: bool,
    /// The asker relies on the store, so it asks whom it has read of there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_store: bool,
}

/// What goes with a question about a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum About {
    /// The asker claims it.
    Claim(Held),
    /// Does its client live? Answered once it has shown life or had its time.
    Life,
}

/// The answer about one name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NameAnswer {
    pub client_id: Option<String>,
    #[serde(flatten)]
    pub signed: Option<SignedName>,
}

/// What only a signed asker is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SignedName {
    #[serde(flatten)]
    pub introduction: Introduction,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
    /// The answer to [`About::Life`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alive: Option<bool>,
}

/// A part of what is new: for each name what is held of it now, or nothing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewsAnswer {
    #[serde(flatten)]
    pub introduction: Introduction,
    /// Names that are not told from here on do not exist.
    pub from_start: bool,
    pub claims: Vec<(Label, Option<Held>)>,
    pub next: u64,
    pub has_more: bool,
}

/// The answer about the certificate for a host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CertificateAnswer {
    #[serde(flatten)]
    pub introduction: Introduction,
    /// With its key, encrypted and in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed: Option<String>,
    #[serde(default)]
    pub doing: Doing,
}

impl CertificateAnswer {
    pub fn new(introduction: Introduction, host: &Hostname, word: &Word, keys: &MasterKeys) -> Self {
        let seal =
            |pem: &String| STANDARD.encode(keys.encrypt(Purpose::Certificate, host.as_str(), pem.as_bytes()));
        Self { introduction, sealed: word.pem.as_ref().map(seal), doing: word.doing }
    }

    pub fn open(self, host: &str, keys: &MasterKeys) -> Theirs {
        let sealed = self.sealed.and_then(|sealed| STANDARD.decode(sealed).ok());
        let pem = sealed.and_then(|sealed| keys.decrypt(Purpose::Certificate, host, &sealed));
        let pem = pem.and_then(|pem| String::from_utf8(pem).ok());
        Theirs { instance: self.introduction.instance, word: Word { pem, doing: self.doing } }
    }
}

/// Why a question is not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unsigned {
    #[error("questions between instances must be signed; this one is not")]
    Missing,
    #[error("the signature is not ours: MASTER_SIG_KEY must be the same on every instance")]
    Foreign,
    #[error("the question is for another path")]
    OtherPath,
    #[error("the question is from another time: your clock is {0} ms {1} mine")]
    Stale(u64, &'static str),
}

impl Question {
    pub fn new(path: String, from: &str, about: Option<About>) -> Self {
        Self {
            path,
            at: milliseconds(SystemTime::now()),
            nonce: rand::random(),
            from: from.into(),
            about,
            without_store: false,
            by_store: false,
        }
    }

    pub fn seal(&self, keys: &MasterKeys) -> String {
        keys.seal(Purpose::PeerQuestion, self)
    }

    pub fn open(keys: &MasterKeys, sealed: &str, path: &str, now: SystemTime) -> Result<Self, Unsigned> {
        let question: Self = keys.open(Purpose::PeerQuestion, sealed).map_err(|_| Unsigned::Foreign)?;
        check_time(question.at, now)?;
        if question.path == path { Ok(question) } else { Err(Unsigned::OtherPath) }
    }

    pub fn sign_answer(&self, keys: &MasterKeys, body: &[u8]) -> String {
        keys.sign(Purpose::PeerAnswer, &self.answer(body))
    }

    pub fn is_answered_by(&self, keys: &MasterKeys, body: &[u8], signature: &str) -> bool {
        keys.verify(Purpose::PeerAnswer, &self.answer(body), signature)
    }

    /// An answer belongs to one question.
    fn answer(&self, body: &[u8]) -> Vec<u8> {
        [&self.nonce.to_be_bytes(), self.path.as_bytes(), body].concat()
    }
}

/// Whether what was signed at `at` is of our time.
pub fn check_time(at: u64, now: SystemTime) -> Result<(), Unsigned> {
    let now = milliseconds(now);
    if Duration::from_millis(now.abs_diff(at)) <= SIGNED_LIFE {
        return Ok(());
    }
    Err(Unsigned::Stale(now.abs_diff(at), if at < now { "behind" } else { "ahead of" }))
}

pub fn milliseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(byte: u8) -> MasterKeys {
        MasterKeys::new([byte; 32], None)
    }

    #[test]
    fn a_question_is_good_for_its_path_its_time_and_its_cluster() {
        let now = SystemTime::now();
        let question = Question::new("/?host=bob".into(), "a", Some(About::Life));
        let sealed = question.seal(&keys(1));
        let open = |keys: &MasterKeys, path: &str, now| Question::open(keys, &sealed, path, now);
        assert_eq!(open(&keys(1), "/?host=bob", now), Ok(question));
        assert_eq!(open(&keys(1), "/?host=ann", now), Err(Unsigned::OtherPath));
        assert_eq!(open(&keys(2), "/?host=bob", now), Err(Unsigned::Foreign));
        let late = open(&keys(1), "/?host=bob", now + SIGNED_LIFE + Duration::from_secs(1)).unwrap_err();
        assert!(late.to_string().contains("behind mine"), "{late}");
        let early = open(&keys(1), "/?host=bob", now - SIGNED_LIFE - Duration::from_secs(1)).unwrap_err();
        assert!(early.to_string().contains("ahead of mine"), "{early}");
    }

    #[test]
    fn an_answer_belongs_to_one_question() {
        let question = Question::new("/?host=bob".into(), "a", None);
        let signature = question.sign_answer(&keys(1), b"{}");
        assert!(question.is_answered_by(&keys(1), b"{}", &signature));
        assert!(!question.is_answered_by(&keys(1), b"[]", &signature));
        assert!(!question.is_answered_by(&keys(2), b"{}", &signature));
        let other = Question { nonce: question.nonce ^ 1, ..question };
        assert!(!other.is_answered_by(&keys(1), b"{}", &signature));
    }

    #[test]
    fn an_answer_to_the_unsigned_has_nothing_but_the_client() {
        let answer = NameAnswer { client_id: None, signed: None };
        assert_eq!(serde_json::to_string(&answer).unwrap(), r#"{"client_id":null}"#);
        let plain: NameAnswer = serde_json::from_str(r#"{"client_id":"c"}"#).unwrap();
        assert!(plain.signed.is_none() && plain.client_id.as_deref() == Some("c"));
    }
}
