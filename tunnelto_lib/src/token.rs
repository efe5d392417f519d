//! Secrets that cross the wire: keys and reconnect tokens. They compare in constant time and never print.

use std::fmt;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// A key or token as it stands on the wire. `Debug` prints a placeholder.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself. Call it only where the value goes onto the wire or into a signature.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The public name of a key's holder: padded standard base64 of SHA-256(key).
    pub fn fingerprint(&self) -> String {
        STANDARD.encode(Sha256::digest(self.0.as_bytes()))
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

#[cfg(test)]
mod tests {
    use super::Secret;

    #[test]
    fn a_secret_does_not_print() {
        assert_eq!(format!("{:?}", Secret::new("hush")), "[secret]");
    }

    #[test]
    fn the_fingerprint_is_padded_base64_of_sha256() {
        assert_eq!(Secret::new("abc").fingerprint(), "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");
    }
}
