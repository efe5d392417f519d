//! The account at the ACME server (RFC 8555 section 7.3). Its key follows from the master key, so that it is never lost, and the same
//! on every instance.

use std::path::PathBuf;

use instant_acme::{Account, Error, Key};

use crate::sign::SigningKey;

/// What it takes to open the account.
pub struct Opening {
    pub key: SigningKey,
    /// A URL.
    pub directory: String,
    pub email: Option<String>,
    /// What the server's own certificate is verified with; `None`: the system's roots.
    pub authority: Option<PathBuf>,
}

impl Opening {
    /// The account, made if this is the first time.
    pub async fn open(&self) -> Result<Account, Error> {
        let builder = match &self.authority {
            Some(path) => Account::builder_with_root(path)?,
            None => Account::builder()?,
        };
        let pair = self.key.to_pkcs8();
        let key = Key::from_pkcs8_der(pair.clone_key())?;
        let (account, _) = builder.create_from_key((key, pair.into()), self.directory.clone()).await?;
        if let Some(email) = &self.email {
            account.update_contacts(&[&format!("mailto:{email}")]).await?;
        }
        Ok(account)
    }
}
