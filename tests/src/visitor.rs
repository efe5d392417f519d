//! A visitor that sends bytes as they are and reads answers by the letter.

use std::net::SocketAddr;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use crate::eventually::soon;

pub struct Visitor {
    pub socket: TcpStream,
    buffer: Vec<u8>,
}

#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Visitor {
    pub async fn connect(address: SocketAddr) -> Self {
        let socket = soon("the door opens", TcpStream::connect(address)).await.expect("connected");
        Self { socket, buffer: Vec::new() }
    }

    /// From one loopback address of its own.
    pub async fn connect_from(local: &str, address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(format!("{local}:0").parse().expect("an address")).expect("bound");
        Self { socket: socket.connect(address).await.expect("connected"), buffer: Vec::new() }
    }

    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        soon("the bytes are taken", self.socket.write_all(bytes.as_ref())).await.expect("sent");
    }

    /// `GET path` for `name`.localhost, the connection kept.
    pub async fn get(&mut self, name: &str, path: &str) -> Answer {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: {name}.localhost\r\n\r\n")).await;
        self.answer().await
    }

    /// The next head, interim ones included, without reading its body.
    pub async fn head(&mut self) -> String {
        let end = self.until(|bytes| find(bytes, b"\r\n\r\n")).await;
        String::from_utf8(self.buffer.drain(..end + 4).collect()).expect("heads are text")
    }

    /// The next whole answer to a request that may have a body.
    pub async fn answer(&mut self) -> Answer {
        let head = self.head().await;
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).expect("a status");
        let body = if matches!(status, 101 | 204 | 304) { Vec::new() } else { self.body(&head).await };
        Answer { status, head, body }
    }

    pub async fn exactly(&mut self, count: usize) -> Vec<u8> {
        self.until(|bytes| (bytes.len() >= count).then_some(())).await;
        self.buffer.drain(..count).collect()
    }

    /// Reads to the end of the connection.
    pub async fn rest(&mut self) -> Vec<u8> {
        let mut rest = std::mem::take(&mut self.buffer);
        // A reset ends it as well.
        let _ = soon("the connection ends", self.socket.read_to_end(&mut rest)).await;
        rest
    }

    async fn body(&mut self, head: &str) -> Vec<u8> {
        let field = |name: &str| {
            head.lines().find_map(|line| {
                let (field, value) = line.split_once(':')?;
                field.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
            })
        };
        if field("transfer-encoding").is_some() {
            return self.chunks().await;
        }
        match field("content-length") {
            Some(length) => self.exactly(length.parse().expect("a length")).await,
            None => self.rest().await,
        }
    }

    async fn chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let end = self.until(|bytes| find(bytes, b"\r\n")).await;
            let line: Vec<u8> = self.buffer.drain(..end + 2).collect();
            let size =
                usize::from_str_radix(std::str::from_utf8(&line[..end]).expect("text"), 16).expect("a size");
            if size == 0 {
                break;
            }
            body.extend(self.exactly(size).await);
            self.exactly(2).await;
        }
        while self.until(|bytes| find(bytes, b"\r\n")).await > 0 {
            let end = find(&self.buffer, b"\r\n").expect("just seen");
            self.buffer.drain(..end + 2);
        }
        self.buffer.drain(..2);
        body
    }

    async fn until<T>(&mut self, found: impl Fn(&[u8]) -> Option<T>) -> T {
        loop {
            if let Some(found) = found(&self.buffer) {
                return found;
            }
            let count =
                soon("more bytes come", self.socket.read_buf(&mut self.buffer)).await.expect("readable");
            let so_far = String::from_utf8_lossy(&self.buffer);
            assert!(count > 0, "the connection ended early, after {so_far:?}");
        }
    }
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The values of a field, in order.
    pub fn field(&self, name: &str) -> Vec<String> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        lines
            .filter(|(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim().into())
            .collect()
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

/// One GET on a connection of its own.
pub async fn get(address: SocketAddr, name: &str, path: &str) -> Answer {
    Visitor::connect(address).await.get(name, path).await
}
