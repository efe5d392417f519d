//! TARGET: what a tunnel leads to.

use std::{fmt, path::PathBuf};

use url::Url;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Tcp(Address),
    Tls {
        address: Address,
        verify: Verify,
    },
    Unix(PathBuf),
    /// A folder, served by the client itself.
    Files(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// A name or an address; IPv6 without brackets.
    pub host: String,
    pub port: u16,
}

/// Whether the local service's certificate is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    Yes,
    No,
}

impl Target {
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err("target unix: needs a path".into()),
                path => Ok(Self::Unix(path.into())),
            };
        }
        if let Some(path) = text.strip_prefix("file://") {
            return folder(path);
        }
        if text.contains("://") {
            return Self::from_url(text);
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, port),
            None => ("localhost", text),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        match port.parse() {
            Ok(port) if port > 0 && !host.is_empty() => Ok(Self::Tcp(Address { host: host.into(), port })),
            _ => Err(format!(
                "target `{text}` is none of: a port, host:port, http(s):// URL, file://FOLDER, unix:PATH"
            )),
        }
    }

    fn from_url(text: &str) -> Result<Self, String> {
        let url = Url::parse(text).map_err(|error| format!("target `{text}`: {error}"))?;
        if !matches!(url.path(), "" | "/") || url.query().is_some() || !url.username().is_empty() {
            return Err(format!("target `{text}` must end with the host or port"));
        }
        let host = url.host_str().ok_or_else(|| format!("target `{text}` has no host"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        match url.scheme() {
            "http" => Ok(Self::Tcp(Address { host, port: url.port().unwrap_or(80) })),
            "https" => {
                let address = Address { host, port: url.port().unwrap_or(443) };
                Ok(Self::Tls { address, verify: Verify::Yes })
            }
            other => {
                Err(format!("target `{text}`: scheme {other} is not known; use http, https, file or unix"))
            }
        }
    }

    /// Applies `--use-tls` and `--insecure`.
    pub fn with_tls(self, use_tls: bool, insecure: bool) -> Result<Self, String> {
        let verify = if insecure { Verify::No } else { Verify::Yes };
        match self {
            Self::Tcp(address) if use_tls => Ok(Self::Tls { address, verify }),
            Self::Tls { address, .. } => Ok(Self::Tls { address, verify }),
            other if use_tls => Err(format!("--use-tls does not fit target {other}")),
            other if insecure => {
                Err(format!("--insecure is for targets that speak TLS, which {other} does not"))
            }
            other => Ok(other),
        }
    }
}

fn folder(path: &str) -> Result<Target, String> {
    let path =
        percent_encoding::percent_decode_str(path).decode_utf8().map_err(|_| "target path is not UTF-8")?;
    let folder = PathBuf::from(&*path);
    match folder.canonicalize() {
        Ok(whole) if whole.is_dir() => Ok(Target::Files(whole)),
        Ok(_) => Err(format!("target file://{path} is not a folder")),
        Err(error) => Err(format!("target file://{path}: {error}")),
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "http://{address}"),
            Self::Tls { address, .. } => write!(f, "https://{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Files(path) => write!(f, "file://{}", path.display()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        Target::parse(text).unwrap().to_string()
    }

    #[test]
    fn targets_of_every_kind() {
        assert_eq!(shown("3000"), "http://localhost:3000");
        assert_eq!(shown("127.0.0.1:3000"), "http://127.0.0.1:3000");
        assert_eq!(shown("[::1]:3000"), "http://[::1]:3000");
        assert_eq!(shown("http://web"), "http://web:80");
        assert_eq!(shown("https://web"), "https://web:443");
        assert_eq!(shown("https://[::1]:8443/"), "https://[::1]:8443");
        assert_eq!(shown("unix:/run/app.sock"), "unix:/run/app.sock");
        assert!(shown("file://.").starts_with("file:///"));
    }

    #[test]
    fn what_is_no_target() {
        for bad in [
            "",
            "0",
            "65536",
            "web",
            ":80",
            "ftp://web",
            "http://web/path",
            "unix:",
            "file:///no/such/folder",
        ] {
            assert!(Target::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn tls_fits_addresses_only() {
        assert!(Target::parse("3000").unwrap().with_tls(false, true).is_err());
        let tls = Target::parse("3000").unwrap().with_tls(true, true).unwrap();
        assert!(matches!(tls, Target::Tls { verify: Verify::No, .. }));
        assert!(Target::parse("unix:/x").unwrap().with_tls(true, false).is_err());
    }
}
