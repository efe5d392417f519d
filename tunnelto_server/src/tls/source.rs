//! Where the certificate for a visitor comes from: files, this server's own authority, or an ACME server.

use std::{path::PathBuf, sync::Arc};

use rustls::ServerConfig;
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};

use tunnelto_lib::name::Hostname;

use super::{
    Terms,
    acme::{
        Acme, AcmeError,
        sharing::{AskOthers, Word},
    },
    certificate::{Certificate, Certificates},
    files::{FolderError, Folders},
    self_signed::{Authority, AuthorityError},
};
use crate::{
    config::{CertificatesFrom, Config},
    sign::Purpose,
};

/// Where an ACME server looks for its token.
const VALIDATION: &str = "/.well-known/acme-challenge/";

/// What a host is to this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// None of its business.
    Foreign,
    /// A name that nobody has.
    Free,
    /// One of the server's own, or of a tunnel that is here.
    Held,
}

/// All shards use the same one.
#[derive(Clone)]
pub struct Source {
    found: watch::Receiver<Arc<Certificates>>,
    making: Making,
    /// For visitors that name nobody.
    preferred: Arc<str>,
}

#[derive(Clone)]
enum Making {
    Nothing,
    SelfSigned(Arc<Authority>),
    Acme(Arc<Acme>),
}

/// Tells whether a host is one of the server's own, or of a tunnel that is here.
pub type IsHeld = Box<dyn Fn(&str) -> bool>;

/// What keeps the certificates as they should be.
pub struct Tending {
    folders: Option<(Folders, watch::Sender<Arc<Certificates>>, Arc<Notify>)>,
    acme: Option<super::acme::Tending>,
}

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("TLS_CERTS: {0}")]
    Folder(#[from] FolderError),
    #[error(
        "TLS_CERTS: {0} holds no certificate that can be used; expected NAME.pem with key, NAME.crt with NAME.key, or folders with \
         tls.crt and tls.key or fullchain.pem and privkey.pem"
    )]
    Empty(String),
    #[error("TLS=self-signed: {0}")]
    SelfSigned(#[from] AuthorityError),
    #[error("TLS=acme: {0}")]
    Acme(#[from] AcmeError),
}

impl Source {
    /// Where a certificate is needed at once and cannot be had, this fails.
    pub fn open(
        from: &CertificatesFrom,
        terms: Terms,
        config: &Config,
    ) -> Result<(Self, Tending), SourceError> {
        let host = config.tunnel_host.as_str().to_owned();
        let nudge: Arc<Notify> = Arc::default();
        let mut kept = PathBuf::new();
        let paths = match from {
            CertificatesFrom::Files(path) => vec![path.clone()],
            CertificatesFrom::SelfSigned => Vec::new(),
            CertificatesFrom::Acme(acme) => {
                kept = Acme::folder(config)?;
                acme.own_files.iter().chain([&kept]).cloned().collect()
            }
        };
        let (folders, certificates) = Folders::open(paths, terms.clone(), host.clone())?;
        if let CertificatesFrom::Files(path) = from
            && certificates.is_empty()
        {
            return Err(SourceError::Empty(path.display().to_string()));
        }
        let (founds, found) = watch::channel(Arc::new(certificates));
        let mut tending = Tending { folders: Some((folders, founds, nudge.clone())), acme: None };
        let making = match from {
            CertificatesFrom::Files(_) => Making::Nothing,
            CertificatesFrom::SelfSigned => {
                tending.folders = None;
                let path = config.data_dir.join("self-signed-ca.pem");
                let key = config.keys.derive_signing_key(Purpose::SelfSigned);
                let authority = Authority::open(&key, terms, &path)?;
                tracing::info!(file = %path.display(), "self-signed: who trusts this file trusts this server");
                Making::SelfSigned(Arc::new(authority))
            }
            CertificatesFrom::Acme(acme) => {
                let (acme, orders) = Acme::new(acme, config, terms, kept, found.clone(), nudge)?;
                tending.acme = Some(orders);
                Making::Acme(acme)
            }
        };
        Ok((Self { found, making, preferred: host.into() }, tending))
    }

    /// The certificate for a visitor that asks for `name`. Waits while it is being got for the first time.
    pub async fn find(
        &self,
        name: Option<&str>,
        standing: impl Fn(&str) -> Standing,
    ) -> Option<Arc<Certificate>> {
        let found = self.found.borrow().find(name).cloned();
        let name = name.unwrap_or(&self.preferred);
        match &self.making {
            Making::Nothing => found,
            Making::SelfSigned(authority) => {
                (standing(name) != Standing::Foreign).then(|| authority.certificate(name)).flatten()
            }
            Making::Acme(acme) => match found {
                Some(certificate) if !certificate.validity.is_over() => Some(certificate),
                // One that is over is better than none: the visitor is told what is wrong.
                found if standing(name) == Standing::Held => acme.obtain(name).await.or(found),
                found => found,
            },
        }
    }

    /// What a validation is shown that asks for `name` (RFC 8737), if one is expected.
    pub fn proof(&self, name: &str) -> Option<Arc<ServerConfig>> {
        match &self.making {
            Making::Acme(acme) => acme.proofs.of(name),
            _ => None,
        }
    }

    /// What a validation is told that asks for this path (RFC 8555 section 8.3).
    pub fn answer(&self, target: &str) -> Option<String> {
        match &self.making {
            Making::Acme(acme) => acme.proofs.answer(target.strip_prefix(VALIDATION)?),
            _ => None,
        }
    }

    /// What other instances are told of a host's certificate.
    pub fn word(&self, host: &Hostname) -> Word {
        match &self.making {
            Making::Acme(acme) => acme.word(host),
            _ => Word::default(),
        }
    }
}

impl Tending {
    /// `ask_others`: how other instances are asked, if there may be any.
    pub fn start(self, is_held: IsHeld, ask_others: Option<AskOthers>, loops: &mut JoinSet<()>) {
        if let Some((folders, found, nudge)) = self.folders {
            loops.spawn_local(folders.watch(found, nudge));
        }
        if let Some(acme) = self.acme {
            loops.spawn_local(acme.run(is_held, ask_others));
        }
    }
}
