//! Options of the sockets that carry what others wait for.

use std::{io, net::IpAddr};

use socket2::SockRef;

/// No delay for small writes; and no bandwidth to be estimated where there is none to share.
///
/// On loopback BBR's pacing costs a timer per packet and finds nothing out; Reno is always there and costs least.
pub fn prepare(socket: SockRef<'_>, peer: IpAddr) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    #[cfg(target_os = "linux")]
    if peer.to_canonical().is_loopback() {
        // A kernel without Reno keeps what it has.
        let _ = socket.set_tcp_congestion(b"reno");
    }
    Ok(())
}
