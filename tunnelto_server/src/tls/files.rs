//! Certificates from folders, read again when a file in them changes.

use std::{
    collections::HashMap,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    task::spawn_blocking,
    time::timeout,
};

use super::{
    Terms,
    certificate::{Certificate, CertificateError, Certificates},
};

/// How often the folder is looked at. Notices of the system would miss network file systems and what is mounted anew.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Folders of certificates and what was read of them.
pub struct Folders {
    paths: Vec<PathBuf>,
    terms: Terms,
    /// The host whose certificate is for visitors that name nobody.
    preferred: String,
    /// `None` before the first look.
    seen: Option<Vec<Stamp>>,
    /// What each folder held when it was read last.
    pairs: Vec<Vec<Pair>>,
    /// What was right when it was read last: a file that is wrong for a while, or half written, changes nothing.
    good: HashMap<PathBuf, Arc<Certificate>>,
}

/// A certificate's file and its key's, which may be one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pair {
    chain: PathBuf,
    key: PathBuf,
}

/// By which a file is noticed that was written anew, put in the place of another, or made readable.
type Stamp = (PathBuf, Option<[i64; 6]>);

#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct FolderError {
    path: PathBuf,
    source: io::Error,
}

#[derive(Debug, thiserror::Error)]
enum PairError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Certificate(#[from] CertificateError),
}

impl Folders {
    /// Reads them for the first time. Where two certificates are for one name, the first folder's is used.
    pub fn open(
        paths: Vec<PathBuf>,
        terms: Terms,
        preferred: String,
    ) -> Result<(Self, Certificates), FolderError> {
        let pairs = vec![Vec::new(); paths.len()];
        let mut folders = Self { paths, terms, preferred, seen: None, pairs, good: HashMap::new() };
        let certificates = folders.look()?.unwrap_or_default();
        Ok((folders, certificates))
    }

    /// Keeps `certificates` as the folders are, and looks at once when told so. Never ends.
    pub async fn watch(mut self, certificates: watch::Sender<Arc<Certificates>>, now: Arc<Notify>) {
        loop {
            // In time or told, it is the same look.
            let _ = timeout(LOOK_EVERY, now.notified()).await;
            // Files may lie on a slow disk.
            let looked = spawn_blocking(move || {
                let found = self.look();
                (self, found)
            });
            let Ok((folders, found)) = looked.await else {
                return tracing::error!("certificates are watched no more; renewed ones need a restart");
            };
            self = folders;
            match found {
                Ok(Some(found)) if found.is_empty() => {
                    tracing::warn!("no certificate is left; the last ones stay in use");
                }
                Ok(Some(found)) => {
                    tracing::info!("certificates read anew");
                    certificates.send_replace(Arc::new(found));
                }
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "certificates cannot be read just now"),
            }
        }
    }

    /// What is there, if that has changed.
    fn look(&mut self) -> Result<Option<Certificates>, FolderError> {
        for (path, known) in self.paths.iter().zip(&mut self.pairs) {
            match pairs(path) {
                Ok(found) => *known = found,
                Err(source) if self.seen.is_none() => {
                    return Err(FolderError { path: path.clone(), source });
                }
                // The others are looked at all the same.
                Err(error) => {
                    tracing::debug!(folder = %path.display(), %error, "certificates cannot be read just now");
                }
            }
        }
        let pairs = self.pairs.concat();
        let files = pairs.iter().flat_map(|pair| [&pair.chain, &pair.key]);
        let stamps = Some(files.map(|path| stamp(path)).collect());
        if stamps == self.seen {
            return Ok(None);
        }
        self.seen = stamps;
        self.good.retain(|path, _| {
            let stays = pairs.iter().any(|pair| pair.chain == *path);
            if !stays {
                tracing::warn!(file = %path.display(), "certificate is gone");
            }
            stays
        });
        for pair in &pairs {
            match pair.read(&self.terms) {
                Ok(certificate) => {
                    self.good.insert(pair.chain.clone(), Arc::new(certificate));
                }
                Err(error) => {
                    let kept = self.good.contains_key(&pair.chain);
                    tracing::warn!(
                        file = %pair.chain.display(),
                        key = %pair.key.display(),
                        %error,
                        kept,
                        "certificate cannot be used"
                    );
                }
            }
        }
        let all = pairs.iter().filter_map(|pair| self.good.get(&pair.chain).cloned());
        Ok(Some(Certificates::new(all, &self.preferred)))
    }
}

impl Pair {
    fn read(&self, terms: &Terms) -> Result<Certificate, PairError> {
        let chain = fs::read(&self.chain)?;
        let key = fs::read(&self.key)?;
        Ok(Certificate::from_pem(&chain, &key, terms)?)
    }
}

/// Writes a file that appears whole, readable for its owner alone, in place of what was there.
pub fn put(path: &Path, content: &str) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let draft = path.with_extension(format!("draft-{}", std::process::id()));
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()?;
    fs::rename(draft, path)
}

/// What a folder holds, in the order of names.
fn pairs(folder: &Path) -> io::Result<Vec<Pair>> {
    let mut paths: Vec<_> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    // Kubernetes keeps what it mounts in folders whose names begin with dots, and links to them.
    paths.retain(|path| !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.')));
    paths.sort();
    Ok(paths.iter().filter_map(|path| pair(path)).collect())
}

fn pair(path: &Path) -> Option<Pair> {
    if path.is_dir() {
        let within = [("tls.crt", "tls.key"), ("fullchain.pem", "privkey.pem")];
        let mut pairs =
            within.map(|(chain, key)| Pair { chain: path.join(chain), key: path.join(key) }).into_iter();
        return pairs.find(|pair| pair.chain.is_file());
    }
    let key = path.with_extension("key");
    let chain = path.to_owned();
    match path.extension()?.to_str()? {
        "crt" => Some(Pair { chain, key }),
        // Beside one that is apart, or in the same file.
        "pem" if key.is_file() => Some(Pair { chain, key }),
        "pem" => Some(Pair { key: chain.clone(), chain }),
        _ => None,
    }
}

fn stamp(path: &Path) -> Stamp {
    use std::os::unix::fs::MetadataExt;
    let of = |file: fs::Metadata| {
        let (which, size) = (file.ino() as i64, file.size() as i64);
        [which, size, file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()]
    };
    (path.to_owned(), fs::metadata(path).ok().map(of))
}
