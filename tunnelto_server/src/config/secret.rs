//! What the server keeps in DATA_DIR: the master key of a server that was given none, and whether this folder
//! has been started from before.

use std::{
    fs, io,
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use super::values::hex_key;
use crate::sign::MasterKeys;

#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error("could not use DATA_DIR file {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "{0} does not hold 64 hexadecimal digits; restore it, or delete it to make all keys and tokens void"
    )]
    Malformed(PathBuf),
}

/// Reads DATA_DIR/master.key, or makes it.
pub fn load_or_make(data_dir: &Path) -> Result<MasterKeys, SecretError> {
    let path = data_dir.join("master.key");
    let text = match create_once(data_dir, &path, || format!("{}\n", fresh_hex()))? {
        Created::Now(text) => text,
        Created::Before => {
            fs::read_to_string(&path).map_err(|source| SecretError::Io { path: path.clone(), source })?
        }
    };
    let key = hex_key(text.trim()).ok_or(SecretError::Malformed(path))?;
    Ok(MasterKeys::new(key, None))
}

/// Whether this is the first call for this folder.
pub fn is_first_start(data_dir: &Path) -> Result<bool, SecretError> {
    let path = data_dir.join("first-key-made");
    Ok(matches!(create_once(data_dir, &path, String::new)?, Created::Now(_)))
}

enum Created {
    Now(String),
    Before,
}

/// Only the owner may read what is made here. A file appears whole or not at all, and only once.
fn create_once(
    data_dir: &Path,
    path: &Path,
    content: impl FnOnce() -> String,
) -> Result<Created, SecretError> {
    let failed = |source| SecretError::Io { path: path.to_owned(), source };
    if path.exists() {
        return Ok(Created::Before);
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(data_dir).map_err(failed)?;
    let text = content();
    let draft = path.with_extension(format!("draft-{}", std::process::id()));
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft)
        .map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    let linked = fs::hard_link(&draft, path);
    fs::remove_file(&draft).map_err(failed)?;
    match linked {
        Ok(()) => Ok(Created::Now(text)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(Created::Before),
        Err(error) => Err(failed(error)),
    }
}

fn fresh_hex() -> String {
    rand::random::<[u8; 32]>().iter().map(|byte| format!("{byte:02x}")).collect()
}
