//! Where the other instances are.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use super::values;

/// The setting CLUSTER.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cluster {
    /// A fixed list.
    Static(Vec<Endpoint>),
    /// A file with one of the same on each line, read again when it changes.
    File(PathBuf),
    /// A name whose A, AAAA or SRV records are the instances.
    Dns(String),
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

const EXPECTED: &str =
    "expected dns:NAME, static:ADDRESS,ADDRESS or static:/path/of/a/file with one address per line";

/// `dns:NAME`, `static:10.0.0.1,10.0.0.2:6001` or `static:/etc/tunnelto/peers`.
pub fn cluster(text: &str) -> Result<Cluster, String> {
    let (kind, rest) = text.trim().split_once(':').ok_or(EXPECTED)?;
    match kind {
        "dns" => Ok(Cluster::Dns(values::host(rest)?.to_string())),
        "static" if rest.starts_with('/') => Ok(Cluster::File(rest.into())),
        "static" => {
            let endpoint = |text: &str| {
                Endpoint::parse(text).ok_or_else(|| format!("`{text}` is no address; {EXPECTED}"))
            };
            rest.split(',').map(endpoint).collect::<Result<_, _>>().map(Cluster::Static)
        }
        _ => Err(EXPECTED.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_listed_or_named() {
        let Ok(Cluster::Static(list)) = cluster("static:10.0.0.1, 10.0.0.2:6001,[fdaa::3]:6002,fdaa::4")
        else {
            panic!("a list");
        };
        let at: Vec<_> = list.iter().map(|endpoint| endpoint.net_address(6000).to_string()).collect();
        assert_eq!(at, ["10.0.0.1:6000", "10.0.0.2:6001", "[fdaa::3]:6002", "[fdaa::4]:6000"]);
        assert_eq!(cluster("static:/etc/peers"), Ok(Cluster::File("/etc/peers".into())));
        assert_eq!(cluster("dns:tasks.tunnelto"), Ok(Cluster::Dns("tasks.tunnelto".into())));
    }

    #[test]
    fn everything_else_is_refused_by_name() {
        for bad in
            ["", "dns:", "dns:a b", "static:", "static:10.0.0.1,,", "static:nonsense", "10.0.0.1", "gossip:x"]
        {
            assert!(cluster(bad).is_err(), "{bad}");
        }
        assert!(cluster("static:10.0.0.300").unwrap_err().contains("10.0.0.300"));
    }
}
