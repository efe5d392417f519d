//! The two hellos and the JSON that some packets carry. Unknown fields are ignored by both sides, which is
//! how protocol 2 extends protocol 1 without breaking it.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::token::Secret;

/// The newest protocol this library speaks. Both sides use the smaller of both numbers.
pub const PROTOCOL: u8 = 2;

/// A capability of servers: a client may say GoAway as well, before it closes a connection, and the server takes it out of
/// use and says GoAway with this reason when no further stream will come. So none crosses the Close.
pub const GOODBYE: &str = "goodbye";

/// What each side receives per stream before it grants more, in bytes: enough for one 64 KiB packet to be on
/// its way while three are being written.
pub const WINDOW: u32 = 256 * 1024;

/// First message of a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClientHello {
    pub id: String,
    pub sub_domain: Option<String>,
    pub client_type: ClientType,
    pub reconnect_token: Option<Secret>,
    /// Sent by the published client since 0.2.0; only such a client of protocol 1 understands Terminate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<u8>,
    /// Names one run of a client over all its connections and reconnects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Uuid>,
    /// Which of the session's connections this is, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_streams: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<TunnelRequest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Agent>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientType {
    Anonymous,
    Auth { key: Secret },
}

/// What the client wants to be reached as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelRequest {
    pub kind: Kind,
    #[serde(default)]
    pub remote_port: Option<u16>,
    /// Share the name with the owner's other sessions instead of conflicting with them.
    #[serde(default)]
    pub pool: bool,
    /// Take the name from the owner's other session.
    #[serde(default)]
    pub takeover: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Http,
    Tcp,
    Tls,
    Udp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    pub version: String,
    pub os: String,
}

/// Answer of the server.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerHello {
    Success(Box<Success>),
    SubDomainInUse,
    InvalidSubDomain,
    AuthFailed,
    Error(String),
    /// Protocol 2's refusal; the four above are what protocol 1 knows.
    Refused(Refusal),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Success {
    pub sub_domain: String,
    pub hostname: String,
    pub client_id: String,
    #[serde(flatten)]
    pub extended: Option<Extended>,
}

/// What protocol 2 adds to a success.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Extended {
    pub protocol: u8,
    pub window: u32,
    pub max_streams: u32,
    pub capabilities: Vec<String>,
    pub urls: Vec<String>,
    pub instance: String,
    /// How many connections the client should hold.
    pub connections: u16,
    pub reconnect_token: Secret,
}

/// Payload of Init in protocol 2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Init {
    /// The visitor, `ip:port`.
    pub peer: String,
    pub kind: Kind,
    pub host: String,
    pub tls: bool,
}

/// Payload of Refused, Terminate and of a refused hello.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub code: String,
    pub message: String,
    /// Seconds; absent or null means: don't try again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u32>,
}

/// Payload of GoAway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GoAway {
    pub reason: String,
    pub reconnect_within_ms: u32,
}

impl GoAway {
    /// The first word of a goodbye, and its answer.
    pub fn goodbye() -> Self {
        Self { reason: GOODBYE.into(), reconnect_within_ms: 0 }
    }

    pub fn is_goodbye(about: &[u8]) -> bool {
        serde_json::from_slice::<Self>(about).is_ok_and(|notice| notice.reason == GOODBYE)
    }
}

impl ClientHello {
    /// The protocol both sides speak: the smaller of what each knows.
    pub fn negotiated(&self) -> u8 {
        self.protocol.unwrap_or(1).clamp(1, PROTOCOL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_hello_of_the_published_client() {
        let text = r#"{"id":"u_ZvFhVqYGqKbMgu","sub_domain":"bench","client_type":{"Auth":{"key":"k"}},"reconnect_token":null}"#;
        let hello: ClientHello = serde_json::from_str(text).unwrap();
        assert_eq!(hello.sub_domain.as_deref(), Some("bench"));
        assert_eq!(hello.client_type, ClientType::Auth { key: Secret::new("k") });
        assert_eq!(hello.negotiated(), 1);
        assert_eq!(serde_json::to_string(&hello).unwrap(), text);
    }

    #[test]
    fn golden_hello_without_a_key() {
        let text = r#"{"id":"x","sub_domain":null,"client_type":"Anonymous","reconnect_token":"t"}"#;
        let hello: ClientHello = serde_json::from_str(text).unwrap();
        assert_eq!(hello.reconnect_token, Some(Secret::new("t")));
        assert_eq!(serde_json::to_string(&hello).unwrap(), text);
    }

    #[test]
    fn golden_answers_of_protocol_1() {
        let success = Success {
            sub_domain: "bench".into(),
            hostname: "bench.tunnel.test".into(),
            client_id: "abc".into(),
            extended: None,
        };
        let golden = [
            (
                ServerHello::Success(Box::new(success)),
                r#"{"success":{"sub_domain":"bench","hostname":"bench.tunnel.test","client_id":"abc"}}"#,
            ),
            (ServerHello::SubDomainInUse, r#""sub_domain_in_use""#),
            (ServerHello::InvalidSubDomain, r#""invalid_sub_domain""#),
            (ServerHello::AuthFailed, r#""auth_failed""#),
            (ServerHello::Error("text".into()), r#"{"error":"text"}"#),
        ];
        for (hello, text) in golden {
            assert_eq!(serde_json::to_string(&hello).unwrap(), text);
            let again: ServerHello = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&again).unwrap(), text);
        }
    }

    #[test]
    fn fields_of_later_protocols_are_ignored() {
        let text = r#"{"id":"x","sub_domain":null,"client_type":"Anonymous","reconnect_token":null,"protocol":9,"new":{}}"#;
        assert_eq!(serde_json::from_str::<ClientHello>(text).unwrap().negotiated(), PROTOCOL);
    }

    #[test]
    fn protocol_2_success_is_told_from_protocol_1() {
        let text = r#"{"success":{"sub_domain":"a","hostname":"a.b","client_id":"c","protocol":2,"window":1,"max_streams":2,
            "capabilities":[],"urls":["http://a.b"],"instance":"i","connections":1,"reconnect_token":"t"}}"#;
        let ServerHello::Success(success) = serde_json::from_str(text).unwrap() else { panic!("no success") };
        assert_eq!(success.extended.unwrap().urls, ["http://a.b"]);
    }
}
