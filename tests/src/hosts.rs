//! Hosts with addresses of their own: network namespaces on one bridge, in which packets can be dropped. Made by root
//! only, and gone with the test.

use std::{
    fs::File,
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    path::PathBuf,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{
    part,
    process::binary,
    visitor::{Answer, Visitor},
};

/// One host; clones are the same one.
#[derive(Clone)]
pub struct Host {
    pub ip: Ipv4Addr,
    namespace: String,
    _network: Arc<Network>,
}

struct Network {
    namespaces: Vec<String>,
}

/// Networks of this process so far.
static NETWORKS: AtomicUsize = AtomicUsize::new(0);

/// So many hosts that reach each other. `None` where this user may not make them.
pub fn hosts(count: u8) -> Option<Vec<Host>> {
    part::command("ip", "hosts of their own")?;
    part::command("nft", "hosts of their own")?;
    let name = format!("tt{}-{}", std::process::id(), NETWORKS.fetch_add(1, Ordering::Relaxed));
    let hub = format!("{name}-hub");
    if !succeeds("ip", &["netns", "add", &hub]) {
        return part::skip("hosts of their own: only root may make them");
    }
    let namespaces: Vec<_> = (1..=count).map(|number| format!("{name}-{number}")).collect();
    let network = Arc::new(Network { namespaces: [&[hub.clone()][..], &namespaces].concat() });
    let ip = |arguments: &str| {
        let arguments: Vec<_> = arguments.split(' ').collect();
        assert!(succeeds("ip", &arguments), "ip {arguments:?}");
    };
    ip(&format!("-n {hub} link add bridge type bridge"));
    ip(&format!("-n {hub} link set bridge up"));
    let host = |(number, namespace): (u8, String)| {
        let address = Ipv4Addr::new(10, 77, 0, number);
        ip(&format!("netns add {namespace}"));
        ip(&format!("-n {namespace} link add eth type veth peer name to{number} netns {hub}"));
        ip(&format!("-n {namespace} addr add {address}/24 dev eth"));
        ip(&format!("-n {namespace} link set eth up"));
        ip(&format!("-n {namespace} link set lo up"));
        ip(&format!("-n {hub} link set to{number} master bridge"));
        ip(&format!("-n {hub} link set to{number} up"));
        let host = Host { ip: address, namespace, _network: network.clone() };
        host.nft("add table inet fault");
        host.nft("add chain inet fault input { type filter hook input priority 0 ; }");
        host
    };
    Some((1..=count).zip(namespaces).map(host).collect())
}

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

impl Host {
    pub fn at(&self, port: u16) -> SocketAddr {
        (self.ip, port).into()
    }

    /// Packets of these are dropped on arrival, so that nobody is told of it.
    pub fn drops(&self, others: &[&Host]) {
        for other in others {
            self.nft(&format!("add rule inet fault input ip saddr {} drop", other.ip));
        }
    }

    /// So many of a hundred packets that arrive from elsewhere are lost.
    pub fn loses(&self, percent: u8) {
        self.nft(&format!("add rule inet fault input iifname eth numgen random mod 100 < {percent} drop"));
    }

    pub fn heals(&self) {
        self.nft("flush chain inet fault input");
    }

    fn nft(&self, rule: &str) {
        let words = ["netns", "exec", &self.namespace, "nft"].into_iter().chain(rule.split(' '));
        let words: Vec<_> = words.collect();
        assert!(succeeds("ip", &words), "nft {rule}");
    }

    /// How a program of this workspace is started there.
    pub fn command(&self, program: &str, arguments: &[&str]) -> (PathBuf, Vec<String>) {
        let program = binary(program).display().to_string();
        let words = ["netns", "exec", &self.namespace, &program];
        ("ip".into(), words.iter().chain(arguments).map(|word| (*word).to_owned()).collect())
    }

    /// Does something on a thread that is there; sockets stay where they are made.
    fn inside<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/run/netns/{}", self.namespace)).expect("it is there");
        let act = move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may");
            act()
        };
        thread::scope(|scope| scope.spawn(act).join().expect("it does not panic"))
    }

    /// A visitor from there.
    pub fn visitor(&self, to: SocketAddr) -> Visitor {
        Visitor::on(self.connect(to).expect("connected"))
    }

    pub fn connect(&self, to: SocketAddr) -> io::Result<tokio::net::TcpStream> {
        let socket = self.inside(|| TcpStream::connect_timeout(&to, Duration::from_secs(10)))?;
        socket.set_nonblocking(true)?;
        tokio::net::TcpStream::from_std(socket)
    }

    /// One GET from there.
    pub async fn get(&self, to: SocketAddr, name: &str, path: &str) -> Answer {
        self.visitor(to).get(name, path).await
    }

    pub fn listen(&self, address: &str) -> tokio::net::TcpListener {
        let listener = self.inside(|| TcpListener::bind(address)).expect("bound");
        listener.set_nonblocking(true).expect("allowed");
        tokio::net::TcpListener::from_std(listener).expect("a runtime")
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for namespace in &self.namespaces {
            succeeds("ip", &["netns", "del", namespace]);
        }
    }
}
