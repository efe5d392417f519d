//! Where the other instances are.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use http::uri::Authority;

use super::values;

/// The setting CLUSTER.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cluster {
    /// They are listed somewhere, and ask each other for everything else.
    Listed(Listing),
    /// A store in which they and their names are written down.
    Store(StoreUrl),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listing {
    /// A fixed list.
    Static(Vec<Endpoint>),
    /// A file with one of the same on each line, read again when it changes.
    File(PathBuf),
    /// A name whose A, AAAA or SRV records are the instances.
    Dns(String),
}

/// Where a store is, and how to get in.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// Redis or Valkey, as its library understands it.
    Redis(String),
    Etcd {
        endpoints: Vec<Authority>,
        user: Option<Credentials>,
    },
}

#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub name: String,
    pub password: String,
}

/// An instance's address, and its NET_PORT where that is another than ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    ip: IpAddr,
    net_port: Option<u16>,
}

impl Endpoint {
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let ip = text.trim_start_matches('[').trim_end_matches(']').parse().ok();
        let alone = ip.map(|ip| Self { ip, net_port: None });
        let with_port =
            || text.parse().ok().map(|at: SocketAddr| Self { ip: at.ip(), net_port: Some(at.port()) });
        alone.or_else(with_port)
    }

    /// Where it answers questions; `ours` is our own NET_PORT.
    pub fn net_address(self, ours: u16) -> SocketAddr {
        (self.ip, self.net_port.unwrap_or(ours)).into()
    }
}

/// Without the password.
impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listed(listing) => listing.fmt(f),
            Self::Store(url) => url.fmt(f),
        }
    }
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Static(list) => {
                let list: Vec<_> = list.iter().map(Endpoint::to_string).collect();
                write!(f, "static:{}", list.join(","))
            }
            Self::File(path) => write!(f, "static:{}", path.display()),
            Self::Dns(name) => write!(f, "dns:{name}"),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.net_port {
            Some(port) => SocketAddr::new(self.ip, port).fmt(f),
            None => self.ip.fmt(f),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Redis(url) => {
                let (scheme, rest) = url.split_once("://").unwrap_or(("redis", url));
                // A socket's password may stand there.
                let rest = rest.split('?').next().unwrap_or_default();
                write!(f, "{scheme}://{}", rest.rsplit('@').next().unwrap_or_default())
            }
            Self::Etcd { endpoints, .. } => {
                let list: Vec<_> = endpoints.iter().map(Authority::as_str).collect();
                write!(f, "etcd://{}", list.join(","))
            }
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

const EXPECTED: &str = "expected dns:NAME, static:ADDRESS,ADDRESS, static:/path/of/a/file with one address per line, \
                        redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE] or etcd://[USER:PASSWORD@]HOST:PORT[,HOST:PORT]";

/// `dns:NAME`, `static:10.0.0.1,10.0.0.2:6001`, `static:/etc/tunnelto/peers`, `redis://cache:6379` or
/// `etcd://10.0.0.5:2379,10.0.0.6:2379`.
pub fn cluster(text: &str) -> Result<Cluster, String> {
    let (kind, rest) = text.trim().split_once(':').ok_or(EXPECTED)?;
    match kind {
        "dns" => Ok(Cluster::Listed(Listing::Dns(values::host(rest)?.to_string()))),
        "static" if rest.starts_with('/') => Ok(Cluster::Listed(Listing::File(rest.into()))),
        "static" => {
            let endpoint = |text: &str| {
                Endpoint::parse(text).ok_or_else(|| format!("`{text}` is no address; {EXPECTED}"))
            };
            let list = rest.split(',').map(endpoint).collect::<Result<_, _>>()?;
            Ok(Cluster::Listed(Listing::Static(list)))
        }
        "redis" | "rediss" | "redis+unix" | "valkey" | "valkeys" | "valkey+unix" => {
            let url = text.trim();
            // Its words do not repeat the password.
            redis::Client::open(url).map_err(|error| format!("{error}; {EXPECTED}"))?;
            Ok(Cluster::Store(StoreUrl::Redis(url.into())))
        }
        "etcd" => etcd(rest).ok_or_else(|| EXPECTED.into()).map(Cluster::Store),
        _ => Err(EXPECTED.into()),
    }
}

fn etcd(rest: &str) -> Option<StoreUrl> {
    let rest = rest.strip_prefix("//")?.trim_end_matches('/');
    let (user, list) = match rest.rsplit_once('@') {
        Some((user, list)) => {
            let (name, password) = user.split_once(':')?;
            (Some(Credentials { name: name.into(), password: password.into() }), list)
        }
        None => (None, rest),
    };
    let endpoints: Option<Vec<Authority>> = list.split(',').map(|at| at.trim().parse().ok()).collect();
    let endpoints = endpoints.filter(|list| list.iter().all(|at| at.port_u16().is_some()))?;
    Some(StoreUrl::Etcd { endpoints, user })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_listed_or_named() {
        let Ok(Cluster::Listed(Listing::Static(list))) =
            cluster("static:10.0.0.1, 10.0.0.2:6001,[fdaa::3]:6002,fdaa::4")
        else {
            panic!("a list");
        };
        let at: Vec<_> = list.iter().map(|endpoint| endpoint.net_address(6000).to_string()).collect();
        assert_eq!(at, ["10.0.0.1:6000", "10.0.0.2:6001", "[fdaa::3]:6002", "[fdaa::4]:6000"]);
        assert_eq!(cluster("static:/etc/peers"), Ok(Cluster::Listed(Listing::File("/etc/peers".into()))));
        assert_eq!(cluster("dns:tasks.tunnelto"), Ok(Cluster::Listed(Listing::Dns("tasks.tunnelto".into()))));
    }

    #[test]
    fn stores_are_named_without_their_passwords() {
        for (text, shown) in [
            ("redis://cache", "redis://cache"),
            ("valkeys://user:p@ss@cache:6380/2", "valkeys://cache:6380/2"),
            ("redis+unix:///run/redis.sock?pass=secret", "redis+unix:///run/redis.sock"),
            ("etcd://10.0.0.5:2379,etcd:2379", "etcd://10.0.0.5:2379,etcd:2379"),
            ("etcd://root:secret:@word@[::1]:2379/", "etcd://[::1]:2379"),
        ] {
            let cluster = cluster(text).expect(text);
            assert_eq!(cluster.to_string(), shown);
            assert!(!format!("{cluster:?}").contains("secret"), "{cluster:?}");
        }
    }

    #[test]
    fn everything_else_is_refused_by_name() {
        for bad in [
            "",
            "dns:",
            "dns:a b",
            "static:",
            "static:10.0.0.1,,",
            "static:nonsense",
            "10.0.0.1",
            "gossip:x",
            "redis:",
            "redis://host/nonsense",
            "etcd:host:1",
            "etcd://host",
            "etcd://user@host:1",
            "etcd://",
        ] {
            assert!(cluster(bad).is_err(), "{bad}");
        }
        assert!(cluster("static:10.0.0.300").unwrap_err().contains("10.0.0.300"));
    }
}
