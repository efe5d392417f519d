//! Signatures by this server or cluster. One master key, one derived key per purpose, so that a token for
//! one purpose is worthless for another.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use p256::{SecretKey, elliptic_curve::sec1::ToSec1Point, pkcs8::EncodePrivateKey};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use rustls::pki_types::PrivatePkcs8KeyDer;
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};

/// What a signature is for.
#[derive(Clone, Copy, Debug)]
pub enum Purpose {
    /// Keys that clients authenticate with.
    ClientKey,
    /// Tokens by which a client gets its name back.
    ReconnectToken,
    /// Names for clients that ask for none: the same key gets the same name.
    DerivedName,
    /// What one instance asks another.
    PeerQuestion,
    PeerAnswer,
    /// What one instance says of a visitor that it brings to another.
    Hop,
    /// What an instance writes of itself in a store.
    Registration,
    /// Tickets by which visitors resume TLS, on any instance.
    TlsTicket,
    /// The account at an ACME server.
    AcmeAccount,
    /// The authority of TLS=self-signed.
    SelfSigned,
    /// Certificates with their keys that one instance gives another.
    Certificate,
}

/// 32 bytes, and the key before it while clients still hold what that one signed.
#[derive(Clone)]
pub struct MasterKeys {
    current: [u8; 32],
    old: Option<[u8; 32]>,
}

/// Half of a pair of keys on P-256.
pub struct SigningKey(SecretKey);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadSignature {
    #[error("not signed by this server")]
    Foreign,
    #[error("signed text is malformed")]
    Malformed,
}

impl MasterKeys {
    pub fn new(current: [u8; 32], old: Option<[u8; 32]>) -> Self {
        Self { current, old }
    }

    /// `payload.signature`, both URL-safe base64.
    pub fn seal(&self, purpose: Purpose, payload: &impl Serialize) -> String {
        let json = serde_json::to_vec(payload).unwrap_or_default();
        let signature = mac(&self.current, purpose, &json).finalize().into_bytes();
        format!("{}.{}", URL_SAFE_NO_PAD.encode(&json), URL_SAFE_NO_PAD.encode(signature))
    }

    /// The payload, if the signature is ours. The comparison takes constant time.
    pub fn open<T: DeserializeOwned>(&self, purpose: Purpose, sealed: &str) -> Result<T, BadSignature> {
        let (payload, signature) = sealed.split_once('.').ok_or(BadSignature::Malformed)?;
        let json = URL_SAFE_NO_PAD.decode(payload).map_err(|_| BadSignature::Malformed)?;
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| BadSignature::Malformed)?;
        if !self.all().any(|key| mac(key, purpose, &json).verify_slice(&signature).is_ok()) {
            return Err(BadSignature::Foreign);
        }
        serde_json::from_slice(&json).map_err(|_| BadSignature::Malformed)
    }

    /// A signature that travels apart from what it signs, as URL-safe base64.
    pub fn sign(&self, purpose: Purpose, message: &[u8]) -> String {
        URL_SAFE_NO_PAD.encode(mac(&self.current, purpose, message).finalize().into_bytes())
    }

    /// Whether the signature is ours. The comparison takes constant time.
    pub fn verify(&self, purpose: Purpose, message: &[u8], signature: &str) -> bool {
        let Ok(signature) = URL_SAFE_NO_PAD.decode(signature) else { return false };
        self.all().any(|key| mac(key, purpose, message).verify_slice(&signature).is_ok())
    }

    fn all(&self) -> impl Iterator<Item = &[u8; 32]> {
        std::iter::once(&self.current).chain(&self.old)
    }

    /// Eight bytes that only this server could have derived from `text`.
    pub fn derive(&self, purpose: Purpose, text: &str) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.derive_key(purpose, text);
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }

    /// A secret of its own for `text`, the same on every instance that has this master key.
    pub fn derive_key(&self, purpose: Purpose, text: &str) -> [u8; 32] {
        mac(&self.current, purpose, text.as_bytes()).finalize().into_bytes().into()
    }

    /// What only whoever has this master key can read, and only as being about `context`.
    pub fn encrypt(&self, purpose: Purpose, context: &str, plain: &[u8]) -> Vec<u8> {
        let nonce: [u8; NONCE_LEN] = rand::random();
        let mut sealed = plain.to_vec();
        let key = cipher(&self.current, purpose, context);
        let sealing =
            key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut sealed);
        sealing.expect("nothing here is as long as AES-GCM can take");
        [&nonce[..], &sealed].concat()
    }

    /// `None` for what was not encrypted for this purpose and context by one of our keys.
    pub fn decrypt(&self, purpose: Purpose, context: &str, sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE_LEN>()?;
        self.all().find_map(|key| {
            let mut bytes = sealed.to_vec();
            let key = cipher(key, purpose, context);
            let opened = key.open_in_place(Nonce::assume_unique_for_key(*nonce), Aad::empty(), &mut bytes);
            opened.ok().map(|plain| plain.to_vec())
        })
    }

    /// A key to sign with (ECDSA on P-256), as PKCS #8, the same on every instance that has this master key.
    pub fn derive_signing_key(&self, purpose: Purpose) -> SigningKey {
        // One in 2³² numbers is not a key.
        let numbers = (0..).map(|number: u32| self.derive_key(purpose, &number.to_string()));
        let mut keys = numbers.filter_map(|number| SecretKey::from_slice(&number).ok());
        SigningKey(keys.next().expect("there are enough numbers"))
    }
}

impl SigningKey {
    /// PKCS #8 (RFC 5208).
    pub fn to_pkcs8(&self) -> PrivatePkcs8KeyDer<'static> {
        let document = self.0.to_pkcs8_der().expect("a key on a named curve can be written");
        document.as_bytes().to_vec().into()
    }

    /// By which a JSON Web Key is named (RFC 7638 section 3.2: these members, in this order).
    pub fn thumbprint(&self) -> String {
        let point = self.0.public_key().to_sec1_point(false);
        let text = |number: Option<&[u8]>| URL_SAFE_NO_PAD.encode(number.unwrap_or_default());
        let (x, y) = (text(point.x().map(|x| &x[..])), text(point.y().map(|y| &y[..])));
        let key = format!(r#"{{"crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}"#);
        URL_SAFE_NO_PAD.encode(Sha256::digest(key))
    }
}

impl std::fmt::Debug for MasterKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[secret]")
    }
}

fn mac(key: &[u8; 32], purpose: Purpose, message: &[u8]) -> Hmac<Sha256> {
    let label = match purpose {
        Purpose::ClientKey => "client-key",
        Purpose::ReconnectToken => "reconnect-token",
        Purpose::DerivedName => "derived-name",
        Purpose::PeerQuestion => "peer-question",
        Purpose::PeerAnswer => "peer-answer",
        Purpose::Hop => "hop",
        Purpose::Registration => "registration",
        Purpose::TlsTicket => "tls-ticket",
        Purpose::AcmeAccount => "acme-account",
        Purpose::SelfSigned => "self-signed",
        Purpose::Certificate => "certificate",
    };
    let derived = keyed(key).chain_update(label).finalize().into_bytes();
    keyed(&derived).chain_update(message)
}

/// A key of its own for each context, so that few random nonces meet under one.
fn cipher(key: &[u8; 32], purpose: Purpose, context: &str) -> LessSafeKey {
    let key = mac(key, purpose, context.as_bytes()).finalize().into_bytes();
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).expect("it is of the right length"))
}

fn keyed(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of any length")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_opens_for_its_purpose_and_key_only() {
        let keys = MasterKeys::new([1; 32], None);
        let sealed = keys.seal(Purpose::ClientKey, &"ann");
        assert_eq!(keys.open::<String>(Purpose::ClientKey, &sealed).unwrap(), "ann");
        assert_eq!(keys.open::<String>(Purpose::ReconnectToken, &sealed), Err(BadSignature::Foreign));
        let others = MasterKeys::new([2; 32], None);
        assert_eq!(others.open::<String>(Purpose::ClientKey, &sealed), Err(BadSignature::Foreign));
    }

    #[test]
    fn rotation_keeps_what_the_old_key_signed() {
        let sealed = MasterKeys::new([1; 32], None).seal(Purpose::ClientKey, &"ann");
        let rotated = MasterKeys::new([2; 32], Some([1; 32]));
        assert_eq!(rotated.open::<String>(Purpose::ClientKey, &sealed).unwrap(), "ann");
    }

    #[test]
    fn a_changed_byte_is_noticed() {
        let keys = MasterKeys::new([1; 32], None);
        let sealed = keys.seal(Purpose::ClientKey, &"ann");
        for i in 0..sealed.len() {
            let mut bytes = sealed.clone().into_bytes();
            bytes[i] = if bytes[i] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(bytes).unwrap();
            if changed != sealed {
                // The last character of unpadded base64 holds unused bits, which the decoder refuses.
                assert!(keys.open::<String>(Purpose::ClientKey, &changed).is_err(), "byte {i}");
            }
        }
    }

    #[test]
    fn what_is_encrypted_is_read_in_its_context_only() {
        let keys = MasterKeys::new([1; 32], None);
        let sealed = keys.encrypt(Purpose::Certificate, "a", b"secret");
        let rotated = MasterKeys::new([2; 32], Some([1; 32]));
        for keys in [&keys, &rotated] {
            assert_eq!(keys.decrypt(Purpose::Certificate, "a", &sealed).unwrap(), b"secret");
            assert_eq!(keys.decrypt(Purpose::Certificate, "b", &sealed), None);
            assert_eq!(keys.decrypt(Purpose::TlsTicket, "a", &sealed), None);
        }
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(keys.decrypt(Purpose::Certificate, "a", &changed), None, "{at}");
            assert_eq!(keys.decrypt(Purpose::Certificate, "a", &sealed[..at]), None, "{at}");
        }
    }
}
