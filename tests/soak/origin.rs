//! The local service of the soak: whatever a visitor asks for by its path, and nothing kept.

use std::{io, net::SocketAddr, time::Duration};

use sha2::{Digest, Sha256};
use tests::chance::bytes;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::sleep,
};

pub struct Origin {
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl Origin {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                // A visitor that leaves breaks its connection here; that is no news.
                tokio::spawn(async move { serve(BufReader::new(socket)).await.is_ok() });
            }
        });
        Self { address, task }
    }

    pub fn target(&self) -> String {
        self.address.to_string()
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut socket: BufReader<TcpStream>) -> io::Result<()> {
    loop {
        let mut line = String::new();
        if socket.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let mut length = 0;
        let mut field = String::new();
        while socket.read_line(&mut field).await? > 2 {
            if let Some((name, value)) = field.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().map_err(io::Error::other)?;
            }
            field.clear();
        }
        let path: Vec<_> = line.split(' ').nth(1).unwrap_or_default().split('/').skip(1).collect();
        let number = |at: usize| path.get(at).and_then(|text| text.parse().ok()).unwrap_or(0u64);
        match path[0] {
            "sum" => sum(&mut socket, length).await?,
            "chunks" => chunks(&mut socket, &bytes(number(2), number(1) as usize)).await?,
            "slow" => slow(&mut socket, &bytes(number(2), number(1) as usize)).await?,
            "half" => {
                socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nonly a part").await?;
                return Ok(());
            }
            "echo" => return echo(&mut socket).await,
            _ => whole(&mut socket, &bytes(number(2), number(1) as usize)).await?,
        }
    }
}

async fn whole(socket: &mut BufReader<TcpStream>, body: &[u8]) -> io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    socket.write_all(head.as_bytes()).await?;
    socket.write_all(body).await
}

async fn chunks(socket: &mut BufReader<TcpStream>, body: &[u8]) -> io::Result<()> {
    socket.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await?;
    for chunk in body.chunks(9_000) {
        socket.write_all(format!("{:x}\r\n", chunk.len()).as_bytes()).await?;
        socket.write_all(chunk).await?;
        socket.write_all(b"\r\n").await?;
    }
    socket.write_all(b"0\r\n\r\n").await
}

async fn slow(socket: &mut BufReader<TcpStream>, body: &[u8]) -> io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    socket.write_all(head.as_bytes()).await?;
    for piece in body.chunks(body.len().div_ceil(8).max(1)) {
        socket.write_all(piece).await?;
        sleep(Duration::from_millis(15)).await;
    }
    Ok(())
}

async fn sum(socket: &mut BufReader<TcpStream>, length: usize) -> io::Result<()> {
    let mut hash = Sha256::new();
    let mut block = vec![0; 64 * 1024];
    let mut left = length;
    while left > 0 {
        let most = left.min(block.len());
        let count = socket.read(&mut block[..most]).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        hash.update(&block[..count]);
        left -= count;
    }
    whole(socket, &hash.finalize()).await
}

async fn echo(socket: &mut BufReader<TcpStream>) -> io::Result<()> {
    socket
        .write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n")
        .await?;
    let mut block = vec![0; 16 * 1024];
    loop {
        let count = socket.read(&mut block).await?;
        if count == 0 {
            return socket.shutdown().await;
        }
        socket.write_all(&block[..count]).await?;
    }
}
