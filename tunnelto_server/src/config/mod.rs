//! Settings: one table of environment names, flags, defaults and words ([`cli::Settings`]), validated whole
//! into a [`Config`] before anything starts.

pub mod cli;
mod cluster;
pub mod reference;
mod secret;
mod values;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use ipnet::IpNet;
use tunnelto_lib::name::{Hostname, Label};
use uuid::Uuid;

use crate::sign::MasterKeys;
use cli::Settings;
pub use cluster::{Cluster, Credentials, Endpoint, Listing, StoreUrl};
pub use secret::{SecretError, is_first_start};
use values::Hidden;

/// What the server runs with. Everything in it is valid.
#[derive(Clone, Debug)]
pub struct Config {
    pub bind: Bind,
    pub port: u16,
    pub tls: Option<Tls>,
    /// Visitors who come without TLS are sent to where there is.
    pub https_redirect: bool,
    pub ctrl_port: u16,
    pub net_port: u16,
    pub admin_port: u16,
    /// `None`: there are no other instances.
    pub cluster: Option<Cluster>,
    /// Where other instances reach this one, if that is known.
    pub advertise: Option<IpAddr>,
    /// How long an instance counts in a store that shows no life.
    pub lease: Duration,
    /// `None`: the system's.
    pub dns_server: Option<SocketAddr>,
    pub peer_hops: usize,
    /// Bytes per second; `None` is as many as it can.
    pub peer_rate: Option<u64>,
    pub peer_connect: Duration,
    /// Shards, at least one.
    pub workers: usize,
    /// Never empty.
    pub allowed_hosts: Vec<Hostname>,
    pub tunnel_host: Hostname,
    pub blocked_names: Vec<Label>,
    pub blocked_addresses: Vec<IpNet>,
    pub trusted_proxies: Vec<IpNet>,
    /// This is an app on Fly.io.
    pub on_fly: bool,
    /// 0: any number.
    pub visitors_per_address: usize,
    pub auth: Auth,
    pub keys: MasterKeys,
    pub instance: String,
    pub data_dir: PathBuf,
    pub public_url: Option<PublicUrl>,
    pub home_url: Option<String>,
    pub grace: Duration,
    pub drain: Duration,
}

/// Where the doors open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bind {
    /// All addresses of both families, or of IPv4 where the system has no IPv6.
    All,
    One(IpAddr),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Auth {
    /// Any key, or none, is welcome.
    Open,
    /// Only keys that this server or cluster has signed.
    Keys,
}

/// The door for visitors who speak TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    pub port: u16,
    pub certificates: CertificatesFrom,
    pub min: TlsMin,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificatesFrom {
    /// A folder.
    Files(PathBuf),
    SelfSigned,
    Acme(Acme),
}

/// How certificates are got from an ACME server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acme {
    /// The URL of its directory.
    pub directory: String,
    pub email: Option<String>,
    /// What its own certificate is verified with; `None`: the system's roots.
    pub authority: Option<PathBuf>,
    /// A command that sets and removes DNS records.
    pub dns_hook: Option<PathBuf>,
    /// New names within seven days.
    pub weekly: usize,
    /// A folder whose certificates are used first.
    pub own_files: Option<PathBuf>,
}

/// What TLS says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TlsSource {
    Files,
    SelfSigned,
    Acme,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TlsMin {
    #[value(name = "1.2")]
    Tls12,
    #[value(name = "1.3")]
    Tls13,
}

/// Scheme and port of the URLs that clients print.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicUrl {
    pub scheme: &'static str,
    pub port: Option<u16>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("TUNNEL_HOST `{0}` is not one of ALLOWED_HOSTS; add it there")]
    TunnelHost(Hostname),
    #[error("TLS_PORT needs certificates; name their folder in TLS_CERTS, or set TLS to acme or self-signed")]
    NoCertificates,
    #[error("TLS=self-signed makes its certificates and does not use TLS_CERTS; unset one of them")]
    SelfSignedFiles,
    #[error("{0} is of no use without TLS_PORT; set it, such as to 443")]
    NoTlsPort(&'static str),
    #[error(
        "TLS=acme: no authority gives certificates for `{0}`; set ALLOWED_HOSTS to a domain of yours, or TLS to self-signed"
    )]
    NoDomain(Hostname),
    #[error(
        "HTTPS_REDIRECT needs to know where TLS is spoken: set TLS_PORT, or PUBLIC_URL to an https:// URL"
    )]
    NoHttps,
    #[error("DATA_DIR: no home folder found to keep data in; set DATA_DIR")]
    NoDataDir,
    #[error(
        "a cluster needs MASTER_SIG_KEY, the same on every instance: they sign what they tell each other. Make it once with \
         `openssl rand -hex 32`"
    )]
    NoMasterKey,
    /// The setting and what is wrong with it, without its value.
    #[error("{0} (--{1}): {2}")]
    Hidden(&'static str, &'static str, String),
    #[error(transparent)]
    Secret(#[from] SecretError),
}

/// From where Fly.io's edge connects, and where an app's instances are.
const FLY_PRIVATE: [&str; 2] = ["172.16.0.0/12", "fdaa::/16"];

impl Config {
    /// Checks what one setting alone cannot know, fills in defaults, and makes DATA_DIR and the master key where
    /// they are missing.
    pub fn from_settings(settings: Settings) -> Result<Self, ConfigError> {
        let allowed_hosts = settings.allowed_hosts;
        let tunnel_host = settings.tunnel_host.unwrap_or_else(|| allowed_hosts[0].clone());
        if !allowed_hosts.contains(&tunnel_host) {
            return Err(ConfigError::TunnelHost(tunnel_host));
        }
        let only_localhost = allowed_hosts.iter().all(|host| host.as_str() == "localhost");
        let auth = settings.auth.unwrap_or(if only_localhost { Auth::Open } else { Auth::Keys });
        let data_dir = match settings.data_dir {
            Some(dir) => dir,
            None => dirs::data_dir().ok_or(ConfigError::NoDataDir)?.join("tunnelto"),
        };
        let fly_app = settings.fly_app_name;
        let on_fly =
            || fly_app.as_ref().map(|app| Cluster::Listed(Listing::Dns(format!("global.{app}.internal"))));
        let cluster = parse("CLUSTER", "cluster", settings.cluster, cluster::cluster)?.or_else(on_fly);
        let keys = parse("MASTER_SIG_KEY", "master-sig-key", settings.master_sig_key, values::master_keys)?;
        let keys = match keys {
            Some(keys) => keys,
            None if cluster.is_some() => return Err(ConfigError::NoMasterKey),
            None => secret::load_or_make(&data_dir)?,
        };
        let mut trusted_proxies = settings.trusted_proxies;
        let mut public_url = settings.public_url;
        if fly_app.is_some() {
            public_url = public_url.or(Some(PublicUrl { scheme: "https", port: None }));
            if trusted_proxies.is_empty() {
                trusted_proxies.extend(FLY_PRIVATE.iter().filter_map(|range| range.parse::<IpNet>().ok()));
            }
        }
        let acme = Acme {
            directory: settings.acme_directory,
            email: settings.acme_email,
            authority: settings.acme_ca,
            dns_hook: settings.acme_dns_hook,
            weekly: settings.acme_weekly,
            own_files: settings.tls_certs.clone(),
        };
        let certificates = match (settings.tls, settings.tls_certs) {
            (Some(TlsSource::Acme), _) => {
                match allowed_hosts.iter().find(|host| !host.as_str().contains('.')) {
                    Some(host) => return Err(ConfigError::NoDomain(host.clone())),
                    None => Some(CertificatesFrom::Acme(acme)),
                }
            }
            (Some(TlsSource::SelfSigned), None) => Some(CertificatesFrom::SelfSigned),
            (Some(TlsSource::SelfSigned), Some(_)) => return Err(ConfigError::SelfSignedFiles),
            (Some(TlsSource::Files) | None, files) => files.map(CertificatesFrom::Files),
        };
        let tls = match (settings.tls_port, certificates) {
            (Some(port), Some(certificates)) => Some(Tls { port, certificates, min: settings.tls_min }),
            (None, None) => None,
            (Some(_), None) => return Err(ConfigError::NoCertificates),
            (None, Some(CertificatesFrom::Files(_))) => return Err(ConfigError::NoTlsPort("TLS_CERTS")),
            (None, Some(_)) => return Err(ConfigError::NoTlsPort("TLS")),
        };
        let is_https = public_url.as_ref().map_or(tls.is_some(), |public| public.scheme == "https");
        if settings.https_redirect && !is_https {
            return Err(ConfigError::NoHttps);
        }
        let instance = settings.fly_alloc_id.or(settings.fly_machine_id);
        let bound_to = settings.bind.filter(|ip| !ip.is_unspecified());
        let advertise = settings.advertise.or(settings.fly_private_ip).or(bound_to);
        Ok(Self {
            bind: settings.bind.map_or(Bind::All, Bind::One),
            port: settings.port,
            tls,
            https_redirect: settings.https_redirect,
            ctrl_port: settings.ctrl_port,
            net_port: settings.net_port,
            admin_port: settings.admin_port,
            cluster,
            advertise,
            lease: settings.lease,
            dns_server: settings.dns_server,
            peer_hops: settings.peer_hops,
            peer_rate: settings.peer_rate,
            peer_connect: settings.peer_connect,
            workers: settings.workers.unwrap_or_else(cores),
            allowed_hosts,
            tunnel_host,
            blocked_names: settings.blocked_sub_domains,
            blocked_addresses: settings.blocked_ips,
            trusted_proxies,
            on_fly: fly_app.is_some(),
            visitors_per_address: settings.visitors_per_address,
            auth,
            keys,
            instance: instance.unwrap_or_else(|| Uuid::new_v4().to_string()),
            data_dir,
            public_url,
            home_url: settings.home_url,
            grace: settings.grace,
            drain: settings.drain,
        })
    }

    /// How visitors reach this server, whose doors really opened at these ports.
    pub fn public(&self, port: u16, tls_port: Option<u16>) -> PublicUrl {
        let by_doors = || match tls_port {
            Some(port) => PublicUrl { scheme: "https", port: Some(port).filter(|port| *port != 443) },
            None => PublicUrl { scheme: "http", port: Some(port).filter(|port| *port != 80) },
        };
        self.public_url.clone().unwrap_or_else(by_doors)
    }
}

impl PublicUrl {
    /// A URL without a path.
    pub fn of(&self, host: &impl std::fmt::Display) -> String {
        match self.port {
            Some(port) => format!("{}://{host}:{port}", self.scheme),
            None => format!("{}://{host}", self.scheme),
        }
    }
}

fn parse<T>(
    variable: &'static str,
    flag: &'static str,
    text: Option<Hidden>,
    parser: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, ConfigError> {
    let parsed = text.map(|Hidden(text)| parser(&text)).transpose();
    parsed.map_err(|error| ConfigError::Hidden(variable, flag, error))
}

/// What the system lets this process use, containers' quotas included.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Bind {
    /// Addresses to try for a door, best first.
    pub fn candidates(self, port: u16) -> Vec<SocketAddr> {
        match self {
            Self::One(address) => vec![(address, port).into()],
            Self::All => vec![(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()],
        }
    }
}
