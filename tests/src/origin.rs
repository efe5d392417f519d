//! A local service that a test scripts: it sees each request's head and body, and writes what it likes.

use std::{
    future::Future,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

pub struct Origin {
    pub address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    connections: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

#[derive(Debug, Clone)]
pub struct Request {
    pub head: String,
    pub body: Vec<u8>,
}

/// The connection on which a request came; whoever answers may also keep, close or break it.
pub struct Connection {
    pub socket: TcpStream,
    buffer: Vec<u8>,
    /// Requests that came on it.
    requests: usize,
}

impl Origin {
    /// Answers every request with 200 and `METHOD TARGET BODY`.
    pub async fn echo() -> Self {
        Self::start(|mut connection, request| async move {
            let mut body = request.line().into_bytes();
            body.push(b' ');
            body.extend(&request.body);
            connection.answer("200 OK", &body).await;
            Some(connection)
        })
        .await
    }

    /// Answers every request with its own name.
    pub async fn named(name: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        Self::named_on(listener, name)
    }

    pub fn named_on(listener: TcpListener, name: &'static str) -> Self {
        Self::on(listener, move |mut connection, _| async move {
            connection.answer("200 OK", name.as_bytes()).await;
            Some(connection)
        })
    }

    /// Hands each request to `script`, which gives the connection back to keep it.
    pub async fn start<F>(script: impl Fn(Connection, Request) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Option<Connection>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        Self::on(listener, script)
    }

    pub fn on<F>(
        listener: TcpListener,
        script: impl Fn(Connection, Request) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Option<Connection>> + Send + 'static,
    {
        let address = listener.local_addr().expect("bound");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(AtomicUsize::new(0));
        let script = Arc::new(script);
        let (seen, count) = (requests.clone(), connections.clone());
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                let (script, seen) = (script.clone(), seen.clone());
                tokio::spawn(async move {
                    let mut next = Some(Connection { socket, buffer: Vec::new(), requests: 0 });
                    while let Some(mut connection) = next {
                        let Some(request) = connection.request().await else { return };
                        seen.lock().expect("not poisoned").push(request.clone());
                        next = script(connection, request).await;
                    }
                });
            }
        });
        Self { address, requests, connections, task }
    }

    pub fn target(&self) -> String {
        self.address.to_string()
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("not poisoned").clone()
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Request {
    pub fn line(&self) -> String {
        self.head.lines().next().unwrap_or_default().trim_end_matches(" HTTP/1.1").to_owned()
    }

    pub fn target(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

impl Connection {
    pub async fn answer(&mut self, status: &str, body: &[u8]) {
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
        self.write(head.as_bytes()).await;
        self.write(body).await;
    }

    /// Whether the request at hand is not its first.
    pub fn has_served(&self) -> bool {
        self.requests > 1
    }

    /// A visitor that is gone is not the origin's matter.
    pub async fn write(&mut self, bytes: &[u8]) {
        let _ = self.socket.write_all(bytes).await;
    }

    async fn request(&mut self) -> Option<Request> {
        let end = loop {
            if let Some(end) = self.buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            self.fill().await?;
        };
        let head = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
        self.buffer.drain(..end);
        self.requests += 1;
        let request = Request { head, body: Vec::new() };
        // A script that wants a body piece by piece asks for `X-Raw`.
        if request.field("x-raw").is_some() {
            return Some(request);
        }
        let body = match (request.field("content-length"), request.field("transfer-encoding")) {
            (Some(length), _) => self.exactly(length.parse().ok()?).await?,
            (None, Some(_)) => self.chunks().await?,
            (None, None) => Vec::new(),
        };
        Some(Request { body, ..request })
    }

    /// Changes protocols, reads everything that the visitor has to say, and then says how much it was.
    pub async fn upgrade_and_count(&mut self) {
        self.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n").await;
        let mut count = 0;
        loop {
            match self.piece().await.len() {
                0 => break,
                more => count += more,
            }
        }
        self.write(format!("got {count}").as_bytes()).await;
    }

    /// The next bytes as they come; empty at the end.
    pub async fn piece(&mut self) -> Vec<u8> {
        if self.buffer.is_empty() {
            self.fill().await;
        }
        std::mem::take(&mut self.buffer)
    }

    async fn chunks(&mut self) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let size = usize::from_str_radix(self.line().await?.split(';').next()?, 16).ok()?;
            if size == 0 {
                while !self.line().await?.is_empty() {}
                return Some(body);
            }
            body.extend(self.exactly(size).await?);
            self.exactly(2).await?;
        }
    }

    async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|window| window == b"\r\n") {
                let line = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
                self.buffer.drain(..end + 2);
                return Some(line);
            }
            self.fill().await?;
        }
    }

    async fn exactly(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.buffer.len() < count {
            self.fill().await?;
        }
        Some(self.buffer.drain(..count).collect())
    }

    async fn fill(&mut self) -> Option<()> {
        match self.socket.read_buf(&mut self.buffer).await {
            Ok(count) if count > 0 => Some(()),
            _ => None,
        }
    }
}
