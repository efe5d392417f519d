//! Everything a visitor can be told when its request fails: code, status, words and whether to try again, in
//! one table. `edge::pages` gives it the form that the visitor asked for.

use http::StatusCode;

/// Why a visitor's request is not answered by the tunnel's local service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    InvalidHost,
    TunnelNotFound,
    TunnelOffline,
    TunnelRefused,
    LocatingFailed,
    ProxyingFailed,
    PeerBusy,
    TooMany,
    UpstreamTimeout,
    Forbidden,
    BadRequest(&'static str),
    RequestTimeout,
    /// The certificate of the connection is not for the host that is asked for.
    Misdirected,
    HeadTooLarge,
    VersionNotSupported,
}

impl Refusal {
    /// Every refusal, for tables and tests.
    pub const ALL: [Self; 15] = [
        Self::InvalidHost,
        Self::TunnelNotFound,
        Self::TunnelOffline,
        Self::TunnelRefused,
        Self::LocatingFailed,
        Self::ProxyingFailed,
        Self::PeerBusy,
        Self::TooMany,
        Self::UpstreamTimeout,
        Self::Forbidden,
        Self::BadRequest("malformed request"),
        Self::RequestTimeout,
        Self::Misdirected,
        Self::HeadTooLarge,
        Self::VersionNotSupported,
    ];

    /// The value of `Tunnelto-Error`, and the label in logs and metrics.
    pub fn code(self) -> &'static str {
        match self {
            Self::InvalidHost => "invalid_host",
            Self::TunnelNotFound => "tunnel_not_found",
            Self::TunnelOffline => "tunnel_offline",
            Self::TunnelRefused => "tunnel_refused",
            Self::LocatingFailed => "locating_failed",
            Self::ProxyingFailed => "proxying_failed",
            Self::PeerBusy => "peer_busy",
            Self::TooMany => "too_many",
            Self::UpstreamTimeout => "upstream_timeout",
            Self::Forbidden => "forbidden",
            Self::BadRequest(_) => "bad_request",
            Self::RequestTimeout => "request_timeout",
            Self::Misdirected => "misdirected",
            Self::HeadTooLarge => "head_too_large",
            Self::VersionNotSupported => "version_not_supported",
        }
    }

    pub fn status(self) -> StatusCode {
        match self {
            Self::InvalidHost | Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::TunnelNotFound => StatusCode::NOT_FOUND,
            Self::TunnelOffline | Self::LocatingFailed | Self::PeerBusy | Self::TooMany => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::TunnelRefused | Self::ProxyingFailed => StatusCode::BAD_GATEWAY,
            Self::UpstreamTimeout => StatusCode::GATEWAY_TIMEOUT,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::Misdirected => StatusCode::MISDIRECTED_REQUEST,
            Self::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::VersionNotSupported => StatusCode::HTTP_VERSION_NOT_SUPPORTED,
        }
    }

    /// The body of a plain answer. The original's words where it has any.
    pub fn words(self) -> &'static str {
        match self {
            Self::InvalidHost => "Error: Invalid Hostname",
            Self::TunnelNotFound => "Error: Tunnel Not Found",
            Self::TunnelOffline => "Error: Tunnel Offline",
            Self::TunnelRefused => "Tunnel says: connection refused.",
            Self::LocatingFailed => "Error: Error finding tunnel",
            Self::PeerBusy => "Error: Too Many Requests For One Instance",
            Self::ProxyingFailed => "Error: Error proxying tunnel",
            Self::TooMany => "Error: Too Many Requests At Once",
            Self::UpstreamTimeout => "Error: The Local Service Took Too Long",
            Self::Forbidden => "Error: Forbidden",
            Self::BadRequest(_) => "Error: Bad Request",
            Self::RequestTimeout => "Error: Request Timeout",
            Self::Misdirected => "Error: Misdirected Request",
            Self::HeadTooLarge => "Error: Request Header Fields Too Large",
            Self::VersionNotSupported => "Error: HTTP Version Not Supported",
        }
    }

    /// A sentence for a person: what it means and what helps.
    pub fn explanation(self) -> &'static str {
        match self {
            Self::InvalidHost => "The address has no host name that this server serves.",
            Self::TunnelNotFound => {
                "No tunnel has this name. If it is yours, start its client: tunnelto 3000 -s NAME."
            }
            Self::TunnelOffline => "The tunnel's client has just gone away. It may be back in a moment.",
            Self::TunnelRefused => {
                "The tunnel is open, but nothing answers on its local port. Is the service running?"
            }
            Self::LocatingFailed => {
                "Not every instance of this server could be asked for the tunnel. It may be found in a moment."
            }
            Self::PeerBusy => {
                "The instance that serves the tunnel has as much to do as it can. Try again in a moment."
            }
            Self::ProxyingFailed => "The local service broke off before it had answered.",
            Self::TooMany => "The tunnel has as much to do as its client allows. Try again in a moment.",
            Self::UpstreamTimeout => "The local service accepted the request but sent no answer in time.",
            Self::Forbidden => "Your address may not visit this tunnel.",
            Self::BadRequest(reason) => reason,
            Self::RequestTimeout => "The request did not arrive in time.",
            Self::Misdirected => {
                "The certificate of this connection is not for that host. Connect anew and ask again."
            }
            Self::HeadTooLarge => "The request's header fields are larger than this server accepts.",
            Self::VersionNotSupported => "This door speaks HTTP/1.0, HTTP/1.1 and HTTP/2.",
        }
    }

    /// Seconds after which it is worth trying again.
    pub fn retry_after(self) -> Option<u32> {
        match self {
            Self::TunnelOffline => Some(5),
            Self::LocatingFailed | Self::PeerBusy | Self::TooMany => Some(1),
            _ => None,
        }
    }

    /// Whether what follows on a visitor's connection can still be read as requests.
    pub fn keeps_connection(self) -> bool {
        !matches!(
            self,
            Self::BadRequest(_)
                | Self::RequestTimeout
                | Self::HeadTooLarge
                | Self::VersionNotSupported
                | Self::InvalidHost
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::Refusal;

    #[test]
    fn codes_are_unique_and_statuses_are_failures() {
        let codes: HashSet<_> = Refusal::ALL.iter().map(|refusal| refusal.code()).collect();
        assert_eq!(codes.len(), Refusal::ALL.len());
        assert!(Refusal::ALL.iter().all(|refusal| refusal.status().as_u16() >= 400));
    }

    #[test]
    fn unavailable_says_when_to_come_back() {
        for refusal in Refusal::ALL {
            assert_eq!(refusal.retry_after().is_some(), refusal.status() == 503, "{refusal:?}");
        }
    }
}
