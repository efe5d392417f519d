//! The command line and the environment: each setting's names, default and meaning in one place.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use clap::{Args, Parser, Subcommand};
use ipnet::IpNet;
use tunnelto_lib::name::{Hostname, Label};

use super::{
    Auth, PublicUrl, TlsMin, TlsSource,
    values::{self, Hidden},
};
use crate::limits::PEER_HOPS;

/// Gives every connected tunnelto client a public name and carries what arrives there to it.
#[derive(Parser, Debug)]
#[command(name = "tunnelto_server", version, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    pub settings: Settings,

    #[command(subcommand)]
    pub command: Option<Command>,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run the server (the default)
    Serve,
    /// Ask the server on this machine whether it is well; exit code 0 means yes
    Healthcheck,
    /// Look at this instance and the others as a visitor's way needs them; exit code 0 means that all is well
    Check {
        /// Ask every instance for this name, too
        #[arg(long, value_parser = values::label)]
        host: Option<Label>,
    },
    /// Make the keys that clients authenticate with
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Print the reference of all settings as Markdown
    #[command(hide = true)]
    SettingsReference,
}

#[derive(Subcommand, Debug)]
pub enum KeysCommand {
    /// Print a new key, alone on one line of standard output
    Create {
        /// Whoever the key belongs to: names belong to owners, and one owner may have several keys
        #[arg(long, value_parser = values::word)]
        owner: String,
        /// What to call the key
        #[arg(long, value_parser = values::word)]
        name: String,
    },
}

/// Every setting. A flag wins over its environment variable.
#[derive(Args, Clone, Debug)]
pub struct Settings {
    /// Where visitors arrive; 0 takes any free port
    #[arg(long, env = "PORT", default_value_t = 8080)]
    pub port: u16,

    /// Where visitors arrive who speak TLS; clients may connect there, too, as wormhole.HOST. It needs TLS_CERTS, or another TLS
    /// [default: none]
    #[arg(long, env = "TLS_PORT")]
    pub tls_port: Option<u16>,

    /// Where certificates come from: files in TLS_CERTS; self-signed, to try out, by an authority of this server's own, which
    /// DATA_DIR/self-signed-ca.pem tells browsers to trust; acme, from Let's Encrypt or ACME_DIRECTORY, whose terms of service you
    /// agree to by that [default: files]
    #[arg(long, env = "TLS", value_enum, hide_possible_values = true)]
    pub tls: Option<TlsSource>,

    /// The folder of certificates: NAME.pem with its key, NAME.crt with NAME.key, or folders with tls.crt and tls.key, or with
    /// fullchain.pem and privkey.pem; renewed files are taken up by themselves [default: none]
    #[arg(long, env = "TLS_CERTS", value_parser = values::path)]
    pub tls_certs: Option<PathBuf>,

    /// Where the ACME server begins
    #[arg(long, env = "ACME_DIRECTORY", default_value = "https://acme-v02.api.letsencrypt.org/directory", value_parser = values::https_url)]
    pub acme_directory: String,

    /// Whom the ACME server writes to when something is wrong [default: nobody]
    #[arg(long, env = "ACME_EMAIL", value_parser = values::email)]
    pub acme_email: Option<String>,

    /// A PEM file with the root that the ACME server's own certificate is verified with [default: the system's roots]
    #[arg(long, env = "ACME_CA", value_parser = values::path)]
    pub acme_ca: Option<PathBuf>,

    /// A command that sets and removes DNS records, so that one certificate is for all names (*.HOST): `COMMAND set NAME VALUE`
    /// returns when the TXT record can be seen, `COMMAND unset NAME VALUE` removes it [default: none, and each name gets a certificate of its own]
    #[arg(long, env = "ACME_DNS_HOOK", value_parser = values::path)]
    pub acme_dns_hook: Option<PathBuf>,

    /// Names without a certificate that this instance asks the ACME server for within seven days; Let's Encrypt takes 50 of one domain
    #[arg(long, env = "ACME_WEEKLY", default_value_t = 40)]
    pub acme_weekly: usize,

    /// The oldest TLS that is spoken: 1.2 or 1.3
    #[arg(long, env = "TLS_MIN", value_enum, default_value = "1.2", hide_possible_values = true)]
    pub tls_min: TlsMin,

    /// Whether visitors who come without TLS are sent to the same address with it: true or false
    #[arg(long, env = "HTTPS_REDIRECT", default_value_t = false, action = clap::ArgAction::Set)]
    pub https_redirect: bool,

    /// Where clients connect
    #[arg(long, env = "CTRL_PORT", default_value_t = 5000)]
    pub ctrl_port: u16,

    /// Where other instances ask; on loopback only while there are none
    #[arg(long, env = "NET_PORT", default_value_t = 6000)]
    pub net_port: u16,

    /// Where this instance is looked after: metrics; always on 127.0.0.1, 0 takes any free port
    #[arg(long, env = "ADMIN_PORT", default_value_t = 7000)]
    pub admin_port: u16,

    /// Where the other instances are: dns:NAME (A, AAAA or SRV records), static:ADDRESS,ADDRESS, static:/FILE with one address
    /// per line, which may change at any time, or the store that tells: redis://HOST or etcd://HOST:2379 [default: dns:global.FLY_APP_NAME.internal on Fly.io, else alone]
    #[arg(long, env = "CLUSTER", hide_env_values = true, value_parser = values::hidden)]
    pub cluster: Option<Hidden>,

    /// Where other instances reach this one; a store tells them [default: BIND, on Fly.io FLY_PRIVATE_IP, else the address from
    /// which the store is reached]
    #[arg(long, env = "ADVERTISE")]
    pub advertise: Option<IpAddr>,

    /// How long an instance counts that shows no life in the store, 3 s at least: so long what it held is nobody else's
    #[arg(long, env = "LEASE", default_value = "15s", value_parser = values::lease)]
    pub lease: Duration,

    /// The DNS server to ask, as ip:port [default: the system's]
    #[arg(long, env = "DNS_SERVER", value_parser = values::dns_server)]
    pub dns_server: Option<SocketAddr>,

    /// Visitors at once that may be brought to one other instance; more are told to come again
    #[arg(long, env = "PEER_HOPS", default_value_t = PEER_HOPS)]
    pub peer_hops: usize,

    /// Bytes per second, both ways together, that visitors may move between this instance and one other: 500K, 20M or 1G
    /// [default: no limit]
    #[arg(long, env = "PEER_RATE", value_parser = values::bytes)]
    pub peer_rate: Option<u64>,

    /// How long connecting to another instance may take
    #[arg(long, env = "PEER_CONNECT", default_value = "500ms", value_parser = values::duration)]
    pub peer_connect: Duration,

    /// The address to listen on [default: all addresses, IPv4 and IPv6]
    #[arg(long, env = "BIND")]
    pub bind: Option<IpAddr>,

    /// Threads that carry visitors and tunnels; one tunnel's traffic stays on one of them [default: the cores that the
    /// server may use]
    #[arg(long, env = "WORKERS", value_parser = values::workers)]
    pub workers: Option<usize>,

    /// Hosts under which tunnels get their names, separated by commas
    #[arg(long, env = "ALLOWED_HOSTS", value_delimiter = ',', default_value = "localhost", value_parser = values::host)]
    pub allowed_hosts: Vec<Hostname>,

    /// The host that clients are told [default: the first of ALLOWED_HOSTS]
    #[arg(long, env = "TUNNEL_HOST", value_parser = values::host)]
    pub tunnel_host: Option<Hostname>,

    /// Names that no client may have, separated by commas
    #[arg(long, env = "BLOCKED_SUB_DOMAINS", value_delimiter = ',', value_parser = values::label)]
    pub blocked_sub_domains: Vec<Label>,

    /// Addresses or CIDR ranges that neither visitors nor clients may come from, separated by commas
    #[arg(long, env = "BLOCKED_IPS", value_delimiter = ',', value_parser = values::network)]
    pub blocked_ips: Vec<IpNet>,

    /// CIDR ranges of proxies whose X-Forwarded-For, X-Forwarded-Proto, X-Forwarded-Host and PROXY headers count, on Fly.io also
    /// Fly-Client-IP; separated by commas [default: Fly.io's private ranges there, else none]
    #[arg(long, env = "TRUSTED_PROXIES", value_delimiter = ',', value_parser = values::network)]
    pub trusted_proxies: Vec<IpNet>,

    /// Connections at once that visitors of one address may have, or of one /64 of IPv6; more are told to come again. 0 is any
    /// number; this machine's own and TRUSTED_PROXIES are not counted
    #[arg(long, env = "VISITORS_PER_ADDRESS", default_value_t = 1000)]
    pub visitors_per_address: usize,

    /// Who may open tunnels: `open` means anybody, `keys` means holders of a key that this server has signed [default: open
    /// while every allowed host is localhost, else keys]
    #[arg(long, env = "AUTH", value_enum, hide_possible_values = true)]
    pub auth: Option<Auth>,

    /// The secret behind all signatures: 32 bytes as 64 hexadecimal digits, or NEW,OLD while rotating [default: made once,
    /// kept in DATA_DIR/master.key]
    #[arg(long, env = "MASTER_SIG_KEY", global = true, hide_env_values = true, value_parser = values::hidden)]
    pub master_sig_key: Option<Hidden>,

    /// Where the server keeps its data [default: the user's data folder]
    #[arg(long, env = "DATA_DIR", global = true, value_parser = values::path)]
    pub data_dir: Option<PathBuf>,

    /// Scheme and port of the URLs that clients print, such as https://example.com [default: https on Fly.io,
    /// https with TLS_PORT where that is set, else http with PORT]
    #[arg(long, env = "PUBLIC_URL", value_parser = values::public_url)]
    pub public_url: Option<PublicUrl>,

    /// Where a visitor of the bare host is sent [default: a small page]
    #[arg(long, env = "HOME_URL", value_parser = values::home_url)]
    pub home_url: Option<String>,

    /// How long a name is kept for a client that vanished, while its visitors wait
    #[arg(long, env = "GRACE", default_value = "10s", value_parser = values::duration)]
    pub grace: Duration,

    /// How long open exchanges may take to finish when the server stops
    #[arg(long, env = "DRAIN", default_value = "20s", value_parser = values::duration)]
    pub drain: Duration,

    /// The app's name on Fly.io, by which its instances find each other
    #[arg(long, env = "FLY_APP_NAME", value_parser = values::word)]
    pub fly_app_name: Option<String>,

    /// The instance's id on Fly.io [default: a random one]
    #[arg(long, env = "FLY_ALLOC_ID", value_parser = values::word)]
    pub fly_alloc_id: Option<String>,

    /// The same on newer Fly.io machines
    #[arg(long, env = "FLY_MACHINE_ID", value_parser = values::word)]
    pub fly_machine_id: Option<String>,

    /// The instance's address on Fly.io's private network
    #[arg(long, env = "FLY_PRIVATE_IP")]
    pub fly_private_ip: Option<IpAddr>,

    /// What is logged: a level (error, warn, info, debug) or directives by module
    #[arg(long, env = "RUST_LOG", default_value = "info", value_parser = values::word)]
    pub rust_log: String,
}
