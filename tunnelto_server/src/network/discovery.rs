//! Where the other instances are: a list, a file or DNS. What was known stays known while it cannot be asked.

use std::{
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use hickory_resolver::{
    Resolver, TokioResolver,
    config::{LookupIpStrategy, NameServerConfig, ResolverConfig},
    net::NetError,
    net::runtime::TokioRuntimeProvider,
    proto::rr::{RData, RecordType},
};
use tokio::{sync::watch, time::sleep};

use super::peer::Introduction;
use crate::config::{Endpoint, Listing};

/// DNS is asked again when its answer has expired, but neither without pause nor hardly ever.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);

/// One question to DNS, its repetitions included.
const DNS_TIME: Duration = Duration::from_secs(2);

/// What is known of where instances are; this one is among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discovered {
    pub spotted: Vec<Spotted>,
    /// Why that may be out of date.
    pub problem: Option<Arc<str>>,
}

/// One instance, as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spotted {
    /// Its NET_PORT.
    pub at: SocketAddr,
    pub listed: Option<Listed>,
}

/// What it has written down of itself, where instances do so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub introduction: Introduction,
    /// So is everything that it holds.
    pub is_complete: bool,
}

impl Default for Discovered {
    /// Nobody is known, which is no reason to believe that there is nobody.
    fn default() -> Self {
        Self { spotted: Vec::new(), problem: Some("they have not been looked for yet".into()) }
    }
}

pub struct Discovery {
    listing: Listing,
    net_port: u16,
    resolver: Option<TokioResolver>,
}

impl Discovery {
    /// `net_port` is where instances answer that are known by address alone.
    pub fn new(listing: Listing, net_port: u16, dns_server: Option<SocketAddr>) -> Result<Self, NetError> {
        let resolver = match &listing {
            Listing::Dns(_) => Some(resolver(dns_server)?),
            _ => None,
        };
        Ok(Self { listing, net_port, resolver })
    }

    /// Keeps `found` up to date.
    pub async fn run(self, found: watch::Sender<Discovered>) {
        loop {
            let (now, expires) = self.look().await;
            let spotted = |at| Spotted { at, listed: None };
            publish(&found, now.map(|list| Some(list.into_iter().map(spotted).collect())));
            sleep(expires).await;
        }
    }

    /// The instances' addresses, and when to look again.
    pub async fn look(&self) -> (Result<Vec<SocketAddr>, String>, Duration) {
        let mut expires = SHORTEST;
        let found = match (&self.listing, &self.resolver) {
            (Listing::Static(list), _) => Ok(self.addresses(list)),
            (Listing::File(path), _) => read(path).await.map(|list| self.addresses(&list)),
            (Listing::Dns(name), Some(resolver)) => match self.resolve(resolver, name).await {
                Ok((at, until)) => {
                    expires = until.saturating_duration_since(Instant::now()).clamp(SHORTEST, LONGEST);
                    Ok(at)
                }
                Err(error) => Err(format!("DNS for {name}: {error}")),
            },
            (Listing::Dns(_), None) => unreachable!("a resolver is made for every name"),
        };
        let sorted = found.map(|mut at| {
            at.sort_unstable();
            at.dedup();
            at
        });
        (sorted, expires)
    }

    fn addresses(&self, list: &[Endpoint]) -> Vec<SocketAddr> {
        list.iter().map(|endpoint| endpoint.net_address(self.net_port)).collect()
    }

    /// A name that begins with an underscore is a service (RFC 2782): its SRV records say the ports too.
    async fn resolve(
        &self,
        resolver: &TokioResolver,
        name: &str,
    ) -> Result<(Vec<SocketAddr>, Instant), NetError> {
        if !name.starts_with('_') {
            let found = resolver.lookup_ip(name).await?;
            return Ok((found.iter().map(|ip| (ip, self.net_port).into()).collect(), found.valid_until()));
        }
        let services = resolver.lookup(name, RecordType::SRV).await?;
        let (mut at, mut until) = (Vec::new(), services.valid_until());
        for record in services.answers() {
            let RData::SRV(service) = &record.data else { continue };
            let found = resolver.lookup_ip(service.target.clone()).await?;
            at.extend(found.iter().map(|ip| SocketAddr::from((ip, service.port))));
            until = until.min(found.valid_until());
        }
        Ok((at, until))
    }
}

/// Tells of what was found, which is as before where it is `None`, or why nothing was.
pub fn publish(found: &watch::Sender<Discovered>, now: Result<Option<Vec<Spotted>>, String>) {
    found.send_if_modified(|known| {
        let next = match now {
            Ok(now) => Discovered { spotted: now.unwrap_or_else(|| known.spotted.clone()), problem: None },
            Err(problem) => Discovered { spotted: known.spotted.clone(), problem: Some(problem.into()) },
        };
        let is_news = *known != next;
        if let Some(problem) = next.problem.as_ref().filter(|_| is_news) {
            tracing::warn!(%problem, "cannot find the other instances; going on with those that are known");
        }
        *known = next;
        is_news
    });
}

fn resolver(server: Option<SocketAddr>) -> Result<TokioResolver, NetError> {
    let mut builder = match server {
        None => TokioResolver::builder_tokio()?,
        Some(server) => {
            let mut servers = NameServerConfig::udp_and_tcp(server.ip());
            for connection in &mut servers.connections {
                connection.port = server.port();
            }
            let config = ResolverConfig::from_name_servers(vec![servers]);
            Resolver::builder_with_config(config, TokioRuntimeProvider::default())
        }
    };
    let options = builder.options_mut();
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.timeout = DNS_TIME / 2;
    options.attempts = 1;
    // Answers are asked for again when they expire.
    options.cache_size = 0;
    builder.build()
}

async fn read(path: &Path) -> Result<Vec<Endpoint>, String> {
    let text =
        tokio::fs::read_to_string(path).await.map_err(|error| format!("{}: {error}", path.display()))?;
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let endpoint = |line: &str| {
        Endpoint::parse(line).ok_or_else(|| format!("{}: `{line}` is no address", path.display()))
    };
    lines.filter(|line| !line.is_empty()).map(endpoint).collect()
}
