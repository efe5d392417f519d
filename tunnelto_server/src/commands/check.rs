//! `check`: walks a visitor's way between instances step by step, and says at each what is wrong and what helps.

use std::{
    fmt::Write,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tunnelto_lib::name::Label;

use crate::{
    config::{Bind, Cluster, Config},
    edge::handler::HEALTH_CHECK,
    limits::QUESTION_TIME,
    network::{
        AskError, Asker, NameAnswer, Question,
        discovery::Discovery,
        index::{Index, Registration},
        peer::Peer,
    },
};

/// A name that nobody has: it is only asked whether there is an answer.
const NOBODY: &str = "tunnelto-check";

/// What was found, a line a step.
#[derive(Default)]
pub struct Report {
    pub text: String,
    pub is_well: bool,
}

impl Report {
    fn good(&mut self, step: &str, found: impl std::fmt::Display) {
        // Writing to a string never fails.
        let _ = writeln!(self.text, "ok    {step:<10} {found}");
    }

    fn bad(&mut self, step: &str, found: impl std::fmt::Display, remedy: &str) {
        self.is_well = false;
        let _ = writeln!(self.text, "FAIL  {step:<10} {found}\n      {:<10} {remedy}", "");
    }
}

pub async fn run(config: &Config, host: Option<&Label>) -> Report {
    let mut report = Report { is_well: true, ..Report::default() };
    own_doors(config, &mut report).await;
    let Some(cluster) = config.cluster.clone() else {
        report.good(
            "cluster",
            "alone: no CLUSTER is set and no FLY_APP_NAME, so tunnels are found on this instance only",
        );
        return report;
    };
    let found = match discover(config, cluster, &mut report).await {
        Ok(found) => found,
        Err(problem) => {
            report.bad(
                "discovery",
                problem,
                "see CLUSTER and DNS_SERVER; on Fly.io FLY_APP_NAME must be the app's name",
            );
            return report;
        }
    };
    let asker = Asker::new(config.keys.clone(), config.peer_connect);
    let mut has_name = false;
    for at in found {
        has_name |= instance(&asker, &Peer::new(at), host, &mut report).await;
    }
    if let Some(host) = host.filter(|_| !has_name) {
        report.bad(
            "name",
            format!("no instance that answers has `{host}`"),
            "is its client running, and connected to this server?",
        );
    }
    report
}

/// PORT, CTRL_PORT and NET_PORT of the server on this machine.
async fn own_doors(config: &Config, report: &mut Report) {
    let own = match config.bind {
        Bind::One(ip) if !ip.is_unspecified() => ip,
        _ => IpAddr::V4(Ipv4Addr::LOCALHOST),
    };
    let net = if config.cluster.is_some() { own } else { IpAddr::V4(Ipv4Addr::LOCALHOST) };
    let doors = [
        ("PORT", SocketAddr::from((own, config.port)), HEALTH_CHECK),
        ("CTRL_PORT", (own, config.ctrl_port).into(), "/health_check"),
        ("NET_PORT", (net, config.net_port).into(), "/health_check"),
    ];
    for (setting, at, path) in doors {
        match health(at, path, config.peer_connect).await {
            Ok(answer) => report.good(setting, format!("{at} says {answer}")),
            Err(error) => report.bad(
                setting,
                format!("{at}: {error}"),
                "is the server running here, with the same settings?",
            ),
        }
    }
}

async fn discover(config: &Config, cluster: Cluster, report: &mut Report) -> Result<Vec<SocketAddr>, String> {
    let found = match cluster.clone() {
        Cluster::Listed(listing) => {
            let discovery = Discovery::new(listing, config.net_port, config.dns_server);
            discovery.map_err(|error| error.to_string())?.look().await.0?
        }
        Cluster::Store(url) => {
            let index = Index::new(&url, config, Arc::default(), config.net_port);
            let listed = index.map_err(|error| error.to_string())?.instances().await;
            let listed = listed.map_err(|error| format!("{cluster}: {error}"))?;
            listed.iter().map(Registration::at).collect()
        }
    };
    let list: Vec<_> = found.iter().map(ToString::to_string).collect();
    match found.len() {
        0 => report.bad(
            "discovery",
            format!("{cluster} names no instance"),
            "this one should be among them too",
        ),
        _ => report.good("discovery", list.join(", ")),
    }
    Ok(found)
}

/// One of the instances, this one included. Returns whether it has the name.
async fn instance(asker: &Asker, peer: &Peer, host: Option<&Label>, report: &mut Report) -> bool {
    let name = host.map_or(NOBODY, Label::as_str);
    let question = Question::new(format!("/?host={name}"), "check", None);
    let answer: Result<NameAnswer, _> = asker.ask(peer, question, QUESTION_TIME).await;
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            let remedy = match &error {
                AskError::Refused(_) => {
                    "is the server running there, with the same NET_PORT, and BIND an address that peers reach?"
                }
                AskError::Io(_) => "is there a firewall between the instances, or is that machine gone?",
                AskError::Request(_) => {
                    "MASTER_SIG_KEY must be the same on every instance, and clocks within a minute of each other"
                }
            };
            report.bad("peer", error, remedy);
            return false;
        }
    };
    let Some(signed) = answer.signed else { return false };
    let introduction = signed.introduction;
    let state = if introduction.draining { ", draining" } else { "" };
    report.good("peer", format!("{} is instance {}{state}", peer.at, introduction.instance));
    let door = SocketAddr::new(peer.at.ip(), introduction.port);
    match health(door, HEALTH_CHECK, Duration::from_secs(2)).await {
        Ok(answer) => report.good("its PORT", format!("{door} says {answer}")),
        Err(error) => report.bad(
            "its PORT",
            format!("{door}: {error}"),
            "visitors cannot be brought there: open PORT between the instances",
        ),
    }
    if let (Some(host), Some(client_id)) = (host, &answer.client_id) {
        report.good("name", format!("`{host}` is there, of client {client_id}"));
    }
    answer.client_id.is_some()
}

/// `ok` or `draining`.
async fn health(at: SocketAddr, path: &str, limit: Duration) -> std::io::Result<String> {
    let asking = async {
        let mut socket = TcpStream::connect(at).await?;
        let question = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        socket.write_all(question.as_bytes()).await?;
        let mut answer = String::new();
        socket.take(4096).read_to_string(&mut answer).await?;
        let body = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
        match answer.starts_with("HTTP/1.1 200 ") || body == "draining" {
            true => Ok(body.to_owned()),
            false => Err(std::io::Error::other("something else than a tunnelto server answers")),
        }
    };
    timeout(limit, asking).await.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
}
