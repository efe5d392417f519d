//! Settings of one run: flag, then environment, then file, then default.

use std::{
    env::VarError,
    fs, io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::ClientConfig;
use serde::Deserialize;
use tunnelto_lib::token::Secret;
use url::Url;

use crate::{
    cli::HttpOptions,
    error::ClientError,
    local::{
        target::Target,
        tls::{self, Trust},
    },
};

const DEFAULT_SERVER: &str = "ws://localhost:5000";

/// What one tunnel runs with.
#[derive(Debug)]
pub struct Config {
    /// Never empty; several are instances of one server.
    pub servers: Vec<ServerAddress>,
    /// For those that speak TLS.
    pub tls: Arc<ClientConfig>,
    pub key: Option<Secret>,
    pub name: Option<String>,
    pub target: Target,
    pub pool: bool,
    pub takeover: bool,
    pub require_target: bool,
    /// Failed tries in a row that end the client.
    pub retries: Option<u32>,
}

/// Where to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    pub host: String,
    pub port: u16,
    pub tls: bool,
}

/// `tunnelto.toml` in the user's configuration folder.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    server: Option<String>,
    key: Option<Secret>,
    ca: Option<PathBuf>,
}

impl Config {
    pub fn new(target: Option<&str>, options: &HttpOptions) -> Result<Self, ClientError> {
        let file = File::read()?;
        let target = match target {
            Some(text) => Target::parse(text),
            None => Target::parse(&format!("{}:{}", options.host, options.port)),
        };
        let target = target.and_then(|target| target.with_tls(options.use_tls, options.insecure));
        let key = match (&options.key, file.key) {
            (Some(key), _) if key.trim().is_empty() => return Err(configuration("the key is empty".into())),
            (Some(key), _) => Some(Secret::new(key.trim())),
            (None, Some(key)) => Some(key),
            (None, None) => stored_key()?,
        };
        let servers = servers(options.server.clone(), file.server)?;
        let trust = match options.ca.as_deref().or(file.ca.as_deref()) {
            Some(path) => Trust::File(path),
            None if servers.iter().any(|server| server.tls) => Trust::System,
            // Never used; systems without any roots can do without TLS.
            None => Trust::Nobody,
        };
        Ok(Self {
            servers,
            tls: tls::client_config(trust).map_err(configuration)?,
            key,
            name: options.subdomain.clone(),
            target: target.map_err(configuration)?,
            pool: options.pool,
            takeover: options.takeover,
            require_target: options.require_target,
            retries: if options.no_retry { Some(0) } else { options.retries },
        })
    }
}

impl File {
    fn read() -> Result<Self, ClientError> {
        let Some(path) = dirs::config_dir().map(|folder| folder.join("tunnelto.toml")) else {
            return Ok(Self::default());
        };
        match fs::read_to_string(&path) {
            Ok(text) => {
                Self::parse(&text).map_err(|reason| configuration(format!("{}: {reason}", path.display())))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(configuration(format!("{}: {error}", path.display()))),
        }
    }
}

impl File {
    /// Names the line but does not quote it: a key may stand there.
    fn parse(text: &str) -> Result<Self, String> {
        let file: Self = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            format!("line {line}: {}", error.message())
        })?;
        match &file.key {
            Some(key) if key.expose().trim().is_empty() => Err("`key` is empty".into()),
            _ => Ok(file),
        }
    }
}

impl ServerAddress {
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("server `{text}` is not a URL such as ws://localhost:5000 or wss://tunnel.example.com")
        };
        let url = Url::parse(text.trim()).map_err(|_| wrong())?;
        let tls = match url.scheme() {
            "ws" | "http" => false,
            "wss" | "https" => true,
            _ => return Err(wrong()),
        };
        let is_bare = matches!(url.path(), "" | "/") && url.query().is_none() && url.username().is_empty();
        let host = url.host_str().filter(|_| is_bare).ok_or_else(wrong)?.to_owned();
        let port = url.port().unwrap_or(if tls { 443 } else { 80 });
        Ok(Self { host, port, tls })
    }

    pub fn url(&self) -> String {
        let scheme = if self.tls { "wss" } else { "ws" };
        format!("{scheme}://{}:{}", self.host, self.port)
    }
}

/// One, or several separated by commas. The original's variables stand between ours and the file.
fn servers(option: Option<String>, file: Option<String>) -> Result<Vec<ServerAddress>, ClientError> {
    let list = |text: &str| {
        text.split(',').map(ServerAddress::parse).collect::<Result<_, _>>().map_err(configuration)
    };
    if let Some(text) = option {
        return list(&text);
    }
    if let Some(host) = env("CTRL_HOST")? {
        let port = match env("CTRL_PORT")? {
            None => 443,
            Some(port) => {
                port.parse().map_err(|_| configuration(format!("CTRL_PORT `{port}` is not a port")))?
            }
        };
        return Ok(vec![ServerAddress { host, port, tls: env("CTRL_TLS_OFF")?.is_none() }]);
    }
    list(file.as_deref().unwrap_or(DEFAULT_SERVER))
}

#[expect(clippy::disallowed_methods, reason = "this is where the environment is read")]
fn env(name: &str) -> Result<Option<String>, ClientError> {
    match std::env::var(name) {
        Ok(value) if value.is_empty() && name != "CTRL_TLS_OFF" => {
            Err(configuration(format!("{name} is set but empty; unset it to get the default")))
        }
        Ok(value) => Ok(Some(value)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(configuration(format!("{name} is not text"))),
    }
}

/// Where `set-auth` keeps the key; the published client reads the same file.
fn key_path() -> Option<PathBuf> {
    dirs::home_dir().map(|home| home.join(".tunnelto").join("key.token"))
}

fn stored_key() -> Result<Option<Secret>, ClientError> {
    let Some(path) = key_path() else { return Ok(None) };
    match fs::read_to_string(&path) {
        Ok(key) => Ok(Some(key.trim()).filter(|key| !key.is_empty()).map(Secret::new)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(configuration(format!("{}: {error}", path.display()))),
    }
}

/// Keeps a key, readable by its owner only.
pub fn store_key(key: &str) -> Result<PathBuf, ClientError> {
    if key.trim().is_empty() {
        return Err(configuration("the key is empty".into()));
    }
    let path = key_path().ok_or_else(|| configuration("no home folder found; set HOME".into()))?;
    write_private(&path, key.trim())
        .map_err(|error| configuration(format!("{}: {error}", path.display())))?;
    Ok(path)
}

fn write_private(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    // A file of another mode may stand there; a new one takes its place whole.
    let draft = path.with_extension("draft");
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    io::Write::write_all(&mut file, text.as_bytes())?;
    fs::rename(draft, path)
}

fn configuration(reason: String) -> ClientError {
    ClientError::Configuration(reason)
}

#[cfg(test)]
mod tests {
    use super::{File, ServerAddress, servers};

    #[test]
    fn a_faulty_file_names_the_line_and_quotes_no_secret() {
        let error = File::parse("server = \"ws://a\"\nkey = tto_SECRET\n").unwrap_err();
        assert!(error.starts_with("line 2: ") && !error.contains("SECRET"), "{error}");
        let error = File::parse("kye = \"tto_SECRET\"").unwrap_err();
        assert!(error.contains("kye") && !error.contains("SECRET"), "{error}");
        assert_eq!(File::parse("key = \"\"").unwrap_err(), "`key` is empty");
    }

    #[test]
    fn several_servers() {
        let list = servers(Some("ws://10.0.0.1:5000, ws://10.0.0.2:5000".into()), None).unwrap();
        assert_eq!(list.iter().map(|server| &*server.host).collect::<Vec<_>>(), ["10.0.0.1", "10.0.0.2"]);
        assert!(servers(Some("ws://10.0.0.1:5000,".into()), None).is_err());
    }

    #[test]
    fn server_urls() {
        let parse = |text| ServerAddress::parse(text).unwrap();
        assert_eq!(parse("ws://localhost:5000").url(), "ws://localhost:5000");
        assert_eq!(parse("wss://t.example.com").url(), "wss://t.example.com:443");
        assert_eq!(parse("ws://[::1]:5000").host, "[::1]");
        for bad in ["", "localhost:5000", "ftp://a", "ws://", "ws://a/path", "ws://key@a"] {
            assert!(ServerAddress::parse(bad).is_err(), "{bad}");
        }
    }
}
