//! What the binary does: one function per subcommand. Results go to standard output, everything else to
//! standard error.

mod check;

use std::{
    io::{IsTerminal, Read, Write},
    net::{IpAddr, Ipv4Addr, TcpStream},
    process::ExitCode,
    time::Duration,
};

use tokio::{runtime::LocalRuntime, signal::unix};
use tracing_subscriber::EnvFilter;
use tunnelto_lib::name::Label;

use crate::{
    auth::create_key,
    config::{
        Auth, Config, ConfigError, SecretError,
        cli::{KeysCommand, Settings},
        is_first_start, reference,
    },
    doors::Addresses,
    edge::listener::BindError,
    server::{Server, StartError},
    shutdown::Shutdown,
};

/// Exit code for settings that cannot work, as clap's own.
pub const BAD_SETTINGS: u8 = 2;

/// A health check that takes longer is a no.
const HEALTH_LIMIT: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(
        "{0}; is another server running? Each door has its setting: PORT, CTRL_PORT, NET_PORT, ADMIN_PORT"
    )]
    Bind(BindError),
    #[error(transparent)]
    Start(StartError),
    #[error("the system refused: {0}")]
    Io(#[from] std::io::Error),
}

impl From<StartError> for CommandError {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Bind(error) => Self::Bind(error),
            other => Self::Start(other),
        }
    }
}

pub fn log(directives: &str) {
    let filter = EnvFilter::try_new(directives).unwrap_or_else(|error| {
        let _ = writeln!(
            std::io::stderr(),
            "RUST_LOG `{directives}` is not understood ({error}); logging at info"
        );
        EnvFilter::new("info")
    });
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .with_target(true)
        .init();
}

pub fn serve(settings: Settings) -> Result<ExitCode, CommandError> {
    let config = Config::from_settings(settings)?;
    raise_descriptor_limit();
    first_key(&config)?;
    let runtime = LocalRuntime::new()?;
    runtime.block_on(async {
        let shutdown = Shutdown::default();
        let hosts: Vec<_> = config.allowed_hosts.iter().map(ToString::to_string).collect();
        let auth = config.auth;
        let cluster = config.cluster.clone();
        let instance = config.instance.clone();
        let bound = Server::bind(config)?;
        let hosts = hosts.join(",");
        match cluster {
            None => {
                tracing::info!(
                    hosts,
                    ?auth,
                    "alone: no CLUSTER is set, tunnels are found on this instance only"
                );
            }
            Some(cluster) => tracing::info!(hosts, ?auth, instance, %cluster, "one of a cluster"),
        }
        publish(&bound.addresses)?;
        tokio::task::spawn_local(stop_on_signals(shutdown.clone()));
        bound.run(shutdown).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Asks the server on this machine. No shell or curl is needed where this binary is.
pub fn healthcheck(settings: &Settings) -> Result<ExitCode, CommandError> {
    let address = match settings.bind {
        Some(address) if !address.is_unspecified() => address,
        _ => IpAddr::V4(Ipv4Addr::LOCALHOST),
    };
    let answer = ask_health((address, settings.ctrl_port).into());
    match answer {
        Ok(answer) if answer.starts_with("HTTP/1.1 200 ") => Ok(ExitCode::SUCCESS),
        Ok(answer) => {
            tracing::error!(answer = answer.lines().next(), "the server is not well");
            Ok(ExitCode::FAILURE)
        }
        Err(error) => {
            tracing::error!(%error, port = settings.ctrl_port, "the server does not answer on CTRL_PORT");
            Ok(ExitCode::FAILURE)
        }
    }
}

pub fn check(settings: Settings, host: Option<&Label>) -> Result<ExitCode, CommandError> {
    let config = Config::from_settings(settings)?;
    let report = LocalRuntime::new()?.block_on(check::run(&config, host));
    print(report.text.trim_end())?;
    Ok(if report.is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub fn keys(settings: Settings, command: KeysCommand) -> Result<ExitCode, CommandError> {
    let KeysCommand::Create { owner, name } = command;
    let config = Config::from_settings(settings)?;
    print(&create_key(&config.keys, &owner, &name))?;
    tracing::info!(
        owner,
        name,
        "key made; it is shown once. A client stores it with: tunnelto set-auth -k KEY"
    );
    Ok(ExitCode::SUCCESS)
}

pub fn settings_reference() -> Result<ExitCode, CommandError> {
    print(reference::markdown().trim_end())?;
    Ok(ExitCode::SUCCESS)
}

/// AUTH=keys would lock everybody out of a new server, so its first start makes one key.
fn first_key(config: &Config) -> Result<(), CommandError> {
    if config.auth == Auth::Keys && is_first_start(&config.data_dir)? {
        let key = create_key(&config.keys, "admin", "first");
        let mut out = std::io::stderr().lock();
        writeln!(
            out,
            "This server takes clients with its own keys only. Here is the first, shown once:\n\n    {key}\n"
        )?;
        writeln!(out, "More: tunnelto_server keys create --owner OWNER --name NAME")?;
    }
    Ok(())
}

/// One line for whoever started us, with the addresses that the doors really have.
fn publish(addresses: &Addresses) -> std::io::Result<()> {
    let Addresses { visitors, tls, clients, peers, admin } = addresses;
    let tls = tls.map(|at| format!(" tls={at}")).unwrap_or_default();
    print(&format!("listening visitors={visitors}{tls} clients={clients} peers={peers} admin={admin}"))
}

fn print(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

fn ask_health(address: std::net::SocketAddr) -> std::io::Result<String> {
    let mut socket = TcpStream::connect_timeout(&address, HEALTH_LIMIT)?;
    socket.set_read_timeout(Some(HEALTH_LIMIT))?;
    socket.write_all(b"GET /health_check HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    socket.take(1024).read_to_string(&mut answer)?;
    Ok(answer)
}

/// The first signal drains, the second ends.
async fn stop_on_signals(shutdown: Shutdown) {
    let kinds = [unix::SignalKind::terminate(), unix::SignalKind::interrupt()];
    let [Ok(mut terminate), Ok(mut interrupt)] = kinds.map(unix::signal) else {
        return tracing::error!("cannot hear signals; stop this server with SIGKILL");
    };
    let mut next = async || tokio::select! { _ = terminate.recv() => (), _ = interrupt.recv() => () };
    next().await;
    shutdown.drain();
    next().await;
    shutdown.end();
}

/// Visitors and clients are descriptors; the soft limit is often 1024 where the hard one is far higher.
fn raise_descriptor_limit() {
    match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(limit) if limit < 4096 => {
            tracing::warn!(limit, "few descriptors: raise the limit (ulimit -n) for more visitors")
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "could not raise the descriptor limit"),
    }
}
