//! TLS for visitors and clients: the certificates, which of them a name gets, and where they come from.

pub mod acme;
pub mod certificate;
pub mod files;
pub mod hello;
pub mod self_signed;
pub mod source;
mod tickets;

use std::sync::Arc;

use rustls::{
    ServerConfig, SupportedProtocolVersion,
    crypto::{CryptoProvider, ring},
    server::ProducesTickets,
    sign::{CertifiedKey, SingleCertAndKey},
    version::{TLS12, TLS13},
};

use crate::{config::TlsMin, sign::MasterKeys};
use tickets::Tickets;

/// What visitors may speak within TLS (RFC 7301), the better first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

const FROM_1_2: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];
const FROM_1_3: &[&SupportedProtocolVersion] = &[&TLS13];

/// What all certificates are used with.
#[derive(Clone)]
pub struct Terms {
    provider: Arc<CryptoProvider>,
    versions: &'static [&'static SupportedProtocolVersion],
    /// The same for all certificates and instances, so that neither renewing nor moving ends a visitor's session.
    tickets: Arc<dyn ProducesTickets>,
}

impl Terms {
    pub fn new(min: TlsMin, keys: MasterKeys) -> Self {
        let versions = match min {
            TlsMin::Tls12 => FROM_1_2,
            TlsMin::Tls13 => FROM_1_3,
        };
        Self { provider: Arc::new(ring::default_provider()), versions, tickets: Arc::new(Tickets::new(keys)) }
    }

    fn serve(&self, key: CertifiedKey) -> Result<Arc<ServerConfig>, rustls::Error> {
        self.speak(key, &PROTOCOLS)
    }

    fn speak(&self, key: CertifiedKey, protocols: &[&[u8]]) -> Result<Arc<ServerConfig>, rustls::Error> {
        let builder = ServerConfig::builder_with_provider(self.provider.clone());
        let builder = builder.with_protocol_versions(self.versions)?.with_no_client_auth();
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        config.ticketer = self.tickets.clone();
        Ok(Arc::new(config))
    }
}
