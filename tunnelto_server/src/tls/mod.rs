//! TLS for visitors and clients: the certificates, which of them a name gets, and where they come from.

pub mod certificate;
pub mod files;
pub mod hello;

use std::sync::Arc;

use rustls::{
    ServerConfig, SupportedProtocolVersion,
    crypto::{CryptoProvider, ring},
    server::ProducesTickets,
    sign::{CertifiedKey, SingleCertAndKey},
    version::{TLS12, TLS13},
};

use crate::config::TlsMin;

/// What visitors may speak within TLS (RFC 7301), the better first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

const FROM_1_2: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];
const FROM_1_3: &[&SupportedProtocolVersion] = &[&TLS13];

/// What all certificates are used with.
#[derive(Clone)]
pub struct Terms {
    provider: Arc<CryptoProvider>,
    versions: &'static [&'static SupportedProtocolVersion],
    /// One for all certificates, so that renewing one of them ends no visitor's session.
    tickets: Arc<dyn ProducesTickets>,
}

impl Terms {
    pub fn new(min: TlsMin) -> Result<Self, rustls::Error> {
        let versions = match min {
            TlsMin::Tls12 => FROM_1_2,
            TlsMin::Tls13 => FROM_1_3,
        };
        Ok(Self { provider: Arc::new(ring::default_provider()), versions, tickets: ring::Ticketer::new()? })
    }

    fn serve(&self, key: CertifiedKey) -> Result<Arc<ServerConfig>, rustls::Error> {
        let builder = ServerConfig::builder_with_provider(self.provider.clone());
        let builder = builder.with_protocol_versions(self.versions)?.with_no_client_auth();
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        config.ticketer = self.tickets.clone();
        Ok(Arc::new(config))
    }
}
