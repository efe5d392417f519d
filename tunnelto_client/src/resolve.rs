//! Names to addresses.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use tokio::{
    net::{TcpStream, lookup_host},
    task::JoinSet,
    time::sleep,
};

/// RFC 8305 section 5 recommends it.
const HEAD_START: Duration = Duration::from_millis(250);

/// Both loopback addresses.
const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// `localhost` and all names under it mean this machine (RFC 6761 section 6.3), whatever its resolver thinks.
pub fn is_localhost(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost")
}

/// Looked up anew each time: services and servers move.
pub async fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if is_localhost(host) {
        return Ok(LOOPBACK.map(|address| (address, port).into()).to_vec());
    }
    match host.parse::<IpAddr>() {
        Ok(address) => Ok(vec![(address, port).into()]),
        Err(_) => Ok(lookup_host((host, port)).await?.collect()),
    }
}

/// The first address that answers; the first error when none does. Each gets a head start over the next, so that a
/// dead one costs little (RFC 8305).
pub async fn connect(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    if let [only] = addresses {
        return TcpStream::connect(only).await;
    }
    let mut waiting = addresses.iter().copied();
    let mut tries = JoinSet::new();
    let mut first_error = None;
    let mut is_next_due = true;
    loop {
        if is_next_due && let Some(address) = waiting.next() {
            tries.spawn_local(TcpStream::connect(address));
        }
        is_next_due = tokio::select! {
            tried = tries.join_next() => match tried {
                Some(Ok(Ok(socket))) => return Ok(socket),
                Some(Ok(Err(error))) => { first_error.get_or_insert(error); true }
                Some(Err(_)) => true,
                None => break,
            },
            () = sleep(HEAD_START), if waiting.len() > 0 => true,
        };
    }
    Err(first_error.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address")))
}

#[cfg(test)]
mod tests {
    use super::is_localhost;

    #[test]
    fn what_is_this_machine() {
        assert!(is_localhost("localhost") && is_localhost("Wormhole.LOCALHOST."));
        assert!(!is_localhost("localhost.example.com") && !is_localhost("notlocalhost"));
    }
}
