//! A line between two programs: each piece of bytes arrives later than it was sent, and only so many in a second.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep_until},
};

pub struct Link {
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

/// Pieces on their way in one direction.
const PIECES: usize = 256;

impl Link {
    /// A line from `listener` to `to`.
    pub fn over(
        listener: TcpListener,
        to: SocketAddr,
        delay: Duration,
        bytes_per_second: u64,
        connect: impl Fn(SocketAddr) -> std::io::Result<TcpStream> + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().expect("bound");
        let task = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = connect(to) else { continue };
                let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                tokio::spawn(carry(near_in, far_out, delay, bytes_per_second));
                tokio::spawn(carry(far_in, near_out, delay, bytes_per_second));
            }
        });
        Self { address, task }
    }
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, delay: Duration, bytes_per_second: u64) {
    let (sender, mut pieces) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES);
    tokio::spawn(async move {
        while let Some((due, piece)) = pieces.recv().await {
            sleep_until(due).await;
            if to.write_all(&piece).await.is_err() {
                return;
            }
        }
        // The other side may be gone.
        let _ = to.shutdown().await;
    });
    let mut buffer = vec![0; 16 * 1024];
    let mut free_at = Instant::now();
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let takes = Duration::from_secs_f64(read as f64 / bytes_per_second as f64);
        free_at = free_at.max(Instant::now()) + takes;
        sleep_until(free_at).await;
        if sender.send((Instant::now() + delay, buffer[..read].to_vec())).await.is_err() {
            return;
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}
