//! Names: the label a tunnel asks for, and the host a visitor asks for.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One DNS label by RFC 1123 section 2.1, lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Label(Box<str>);

/// A host name as a visitor writes it: lower case, without port and without the trailing dot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hostname(Box<str>);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a valid name: 1 to 63 letters, digits and hyphens, no hyphen at either end")]
pub struct BadLabel(pub String);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed host")]
pub struct BadHost;

impl Label {
    /// Folds to lower case; anything but a valid label is an error.
    pub fn parse(text: &str) -> Result<Self, BadLabel> {
        let folded = text.to_ascii_lowercase();
        if is_label(&folded) {
            Ok(Self(folded.into()))
        } else {
            Err(BadLabel(text.chars().take(80).collect()))
        }
    }

    /// A name that nobody chose: ten letters and digits (50 bits) out of `entropy`.
    pub fn from_entropy(entropy: u64) -> Self {
        const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
        let text: String =
            (0..10).map(|i| char::from(ALPHABET[(entropy >> (5 * i)) as usize & 31])).collect();
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Hostname {
    /// Reads the value of a Host field or the authority of a target: `host[:port]` (RFC 9110 section 7.2).
    /// An empty port is allowed (RFC 3986 section 3.2.3); user information, lists and paths are not.
    pub fn from_authority(text: &str) -> Result<Self, BadHost> {
        let (host, port) = match text.rfind(':') {
            Some(colon) if !text.ends_with(']') => (&text[..colon], &text[colon + 1..]),
            _ => (text, ""),
        };
        if port.len() > 5 || !port.bytes().all(|b| b.is_ascii_digit()) {
            return Err(BadHost);
        }
        Self::parse(host)
    }

    /// A host without a port: a name, an IPv4 address or an IPv6 address in brackets.
    pub fn parse(host: &str) -> Result<Self, BadHost> {
        let host = host.strip_suffix('.').unwrap_or(host);
        let in_brackets = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let valid = match in_brackets {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                host.len() <= 253
                    && host
                        .split('.')
                        .all(|label| (1..=63).contains(&label.len()) && label.bytes().all(is_host_byte))
            }
        };
        if valid { Ok(Self(host.to_ascii_lowercase().into())) } else { Err(BadHost) }
    }

    /// What stands before `.parent`, if this host lies under it.
    pub fn under(&self, parent: &Hostname) -> Option<&str> {
        self.0.strip_suffix(&*parent.0)?.strip_suffix('.')
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_label(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Underscores are no host names, but visitors' resolvers and browsers let them through.
fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}

impl TryFrom<String> for Label {
    type Error = BadLabel;
    fn try_from(text: String) -> Result<Self, BadLabel> {
        Self::parse(&text)
    }
}

impl From<Label> for String {
    fn from(label: Label) -> Self {
        label.0.into()
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Hostname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Hostname, Label};

    #[test]
    fn labels_follow_rfc_1123() {
        for good in ["a", "web", "Web", "a-b", "3com", &"x".repeat(63)] {
            assert!(Label::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "a.b", "a_b", "ä", "a b", &"x".repeat(64)] {
            assert!(Label::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn host_forms_that_name_the_same_host() {
        for form in [
            "demo.localhost",
            "DEMO.localhost",
            "demo.localhost.",
            "demo.localhost:8080",
            "demo.localhost:",
            "demo.localhost.:80",
        ] {
            assert_eq!(Hostname::from_authority(form).unwrap().as_str(), "demo.localhost", "{form}");
        }
        assert_eq!(Hostname::from_authority("[::1]:80").unwrap().as_str(), "[::1]");
    }

    #[test]
    fn host_forms_that_are_refused() {
        for form in [
            "", ":80", "a b", "u@a", "a/b", "a,b", "a:http", "a:123456", "a..b", ".a", "[::1", "[zz]",
            "a\u{1}",
        ] {
            assert!(Hostname::from_authority(form).is_err(), "{form:?}");
        }
    }

    #[test]
    fn under_takes_whole_labels() {
        let parent = Hostname::parse("example.com").unwrap();
        assert_eq!(Hostname::parse("bob.example.com").unwrap().under(&parent), Some("bob"));
        assert_eq!(Hostname::parse("bobexample.com").unwrap().under(&parent), None);
        assert_eq!(Hostname::parse("example.com").unwrap().under(&parent), None);
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "\\PC*") {
            let _ = Label::parse(&text);
            let _ = Hostname::from_authority(&text);
        }

        #[test]
        fn made_up_names_are_labels(entropy: u64) {
            let label = Label::from_entropy(entropy);
            prop_assert!(Label::parse(label.as_str()).is_ok());
        }
    }
}
