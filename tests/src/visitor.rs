//! A visitor that sends bytes as they are and reads answers by the letter.

use std::{io, net::SocketAddr};

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

    pub fn on(socket: TcpStream) -> Self {
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
        soon("a head comes", self.try_head()).await.expect("a whole head")
    }

    /// The next whole answer to a request that may have a body.
    pub async fn answer(&mut self) -> Answer {
        soon("an answer comes", self.try_answer()).await.expect("a whole answer")
    }

    pub async fn exactly(&mut self, count: usize) -> Vec<u8> {
        soon("the bytes come", self.try_exactly(count)).await.expect("enough bytes")
    }

    pub async fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.socket.write_all(bytes.as_ref()).await
    }

    /// For a visitor whose connection may be broken off.
    pub async fn try_head(&mut self) -> io::Result<String> {
        let end = self.until(|bytes| find(bytes, b"\r\n\r\n")).await?;
        Ok(String::from_utf8(self.buffer.drain(..end + 4).collect()).expect("heads are text"))
    }

    pub async fn try_answer(&mut self) -> io::Result<Answer> {
        let head = self.try_head().await?;
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).expect("a status");
        let body = if matches!(status, 101 | 204 | 304) { Vec::new() } else { self.body(&head).await? };
        Ok(Answer { status, head, body })
    }

    pub async fn try_exactly(&mut self, count: usize) -> io::Result<Vec<u8>> {
        self.until(|bytes| (bytes.len() >= count).then_some(())).await?;
        Ok(self.buffer.drain(..count).collect())
    }

    /// Reads to the end of the connection.
    pub async fn rest(&mut self) -> Vec<u8> {
        let mut rest = std::mem::take(&mut self.buffer);
        // A reset ends it as well.
        let _ = soon("the connection ends", self.socket.read_to_end(&mut rest)).await;
        rest
    }

    async fn body(&mut self, head: &str) -> io::Result<Vec<u8>> {
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
            Some(length) => self.try_exactly(length.parse().expect("a length")).await,
            None => Ok(self.rest().await),
        }
    }

    async fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let end = self.until(|bytes| find(bytes, b"\r\n")).await?;
            let line: Vec<u8> = self.buffer.drain(..end + 2).collect();
            let size =
                usize::from_str_radix(std::str::from_utf8(&line[..end]).expect("text"), 16).expect("a size");
            if size == 0 {
                break;
            }
            body.extend(self.try_exactly(size).await?);
            self.try_exactly(2).await?;
        }
        while self.until(|bytes| find(bytes, b"\r\n")).await? > 0 {
            let end = find(&self.buffer, b"\r\n").expect("just seen");
            self.buffer.drain(..end + 2);
        }
        self.buffer.drain(..2);
        Ok(body)
    }

    async fn until<T>(&mut self, found: impl Fn(&[u8]) -> Option<T>) -> io::Result<T> {
        loop {
            if let Some(found) = found(&self.buffer) {
                return Ok(found);
            }
            if self.socket.read_buf(&mut self.buffer).await? == 0 {
                let so_far = &self.buffer[..self.buffer.len().min(1000)];
                let text = format!("the connection ended early, after {:?}", String::from_utf8_lossy(so_far));
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
            }
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
