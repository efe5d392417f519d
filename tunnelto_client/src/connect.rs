//! Opening a connection to the server: TCP, TLS, the WebSocket's opening handshake, the hellos.

use std::{io, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use httparse::{EMPTY_HEADER, Status};
use rustls::{ClientConfig, pki_types::ServerName};
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;
use tunnelto_lib::{
    hello::{ClientHello, Refusal, ServerHello, Success},
    read_buffer::ReadBuffer,
    socket,
    ws::{Decoder, Message, Opcode, Role, WsError, accept_value, new_key, put_frame_head},
};

use crate::{config::ServerAddress, resolve};

/// From the first packet to the server's hello: a slow line with TLS takes a few round trips.
const LIMIT: Duration = Duration::from_secs(15);

/// The answer to the opening handshake, in bytes.
const MAX_HEAD: usize = 16 * 1024;

/// Unacknowledged bytes end the connection after this long.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(15);

/// A byte stream to the server, whatever carries it.
pub trait Transport: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Transport for T {}

/// A connection behind both hellos.
pub struct Connected {
    pub io: ServerIo,
    pub buffer: ReadBuffer,
    pub decoder: Decoder,
    pub success: Success,
}

pub enum ServerIo {
    Plain(TcpStream),
    Other(Box<dyn Transport>),
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("no answer in {LIMIT:?}")]
    TimedOut,
    #[error("the server answered with status {status}")]
    Status { status: u16, retry_after: Option<Duration> },
    #[error("not a tunnelto server: {0}")]
    NotAServer(&'static str),
    #[error(transparent)]
    Frame(#[from] WsError),
    /// Final: trying again would change nothing.
    #[error("{}", .0.message)]
    Refused(Refusal),
    #[error("{0}")]
    Tls(String),
}

/// `first` says with which of the server's addresses to begin, so that tries reach different instances.
pub async fn connect(
    server: &ServerAddress,
    tls: &Arc<ClientConfig>,
    hello: &ClientHello,
    first: usize,
) -> Result<Connected, ConnectError> {
    timeout(LIMIT, connect_unlimited(server, tls, hello, first)).await.unwrap_or(Err(ConnectError::TimedOut))
}

async fn connect_unlimited(
    server: &ServerAddress,
    tls: &Arc<ClientConfig>,
    hello: &ClientHello,
    first: usize,
) -> Result<Connected, ConnectError> {
    let bare_host = server.host.trim_start_matches('[').trim_end_matches(']');
    let mut addresses = resolve::addresses(bare_host, server.port).await?;
    let count = addresses.len().max(1);
    addresses.rotate_left(first % count);
    let socket = resolve::connect(&addresses).await?;
    prepare(&socket)?;
    let mut io = if server.tls {
        let name = ServerName::try_from(bare_host.to_owned())
            .map_err(|error| ConnectError::Tls(error.to_string()))?;
        ServerIo::Other(Box::new(TlsConnector::from(tls.clone()).connect(name, socket).await?))
    } else {
        ServerIo::Plain(socket)
    };
    let mut buffer = ReadBuffer::default();
    let mut decoder = Decoder::new(Role::Client);
    let answer = match &mut io {
        ServerIo::Plain(io) => greet(io, &mut buffer, &mut decoder, server, hello).await?,
        ServerIo::Other(io) => greet(io, &mut buffer, &mut decoder, server, hello).await?,
    };
    let success = accepted(answer)?;
    Ok(Connected { io, buffer, decoder, success })
}

async fn greet(
    io: &mut (impl AsyncRead + AsyncWrite + Unpin),
    buffer: &mut ReadBuffer,
    decoder: &mut Decoder,
    server: &ServerAddress,
    hello: &ClientHello,
) -> Result<ServerHello, ConnectError> {
    let key = new_key();
    let request = format!(
        "GET /wormhole HTTP/1.1\r\nHost: {}:{}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\nUser-Agent: tunnelto/{}\r\n\r\n",
        server.host,
        server.port,
        env!("CARGO_PKG_VERSION"),
    );
    io.write_all(request.as_bytes()).await?;
    io.flush().await?;
    while !has_switched(buffer, &accept_value(&key))? {
        fill(io, buffer).await?;
    }
    let json = serde_json::to_vec(hello).map_err(io::Error::other)?;
    let mut frame = BytesMut::new();
    put_frame_head(&mut frame, Role::Client, Opcode::Binary, json.len());
    frame.extend_from_slice(&json);
    io.write_all(&frame).await?;
    io.flush().await?;
    let answer = loop {
        match decoder.decode(&mut buffer.bytes)? {
            Some(Message::Binary(bytes) | Message::Text(bytes)) => break bytes,
            Some(Message::Close) => return Err(io::Error::from(io::ErrorKind::ConnectionAborted).into()),
            Some(Message::Ping(_) | Message::Pong) => {}
            None => fill(io, buffer).await?,
        }
    };
    serde_json::from_slice(&answer).map_err(|_| ConnectError::NotAServer("its hello is not understood"))
}

async fn fill(io: &mut (impl AsyncRead + Unpin), buffer: &mut ReadBuffer) -> Result<(), ConnectError> {
    match buffer.fill(io).await? {
        0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        _ => Ok(()),
    }
}

/// Takes the answer to the opening handshake off the buffer once it is whole.
fn has_switched(buffer: &mut ReadBuffer, accept: &str) -> Result<bool, ConnectError> {
    let mut slots = [EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut slots);
    let size = match response.parse(&buffer.bytes) {
        Ok(Status::Complete(size)) => size,
        Ok(Status::Partial) if buffer.bytes.len() < MAX_HEAD => return Ok(false),
        Ok(Status::Partial) | Err(_) => return Err(ConnectError::NotAServer("it does not speak HTTP")),
    };
    let field = |name: &str| {
        let field = response.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(field.value).ok()
    };
    match response.code {
        Some(101) if field("sec-websocket-accept") == Some(accept) => {}
        Some(101) => return Err(ConnectError::NotAServer("its handshake is wrong")),
        code => {
            let retry_after =
                field("retry-after").and_then(|value| value.parse().ok()).map(Duration::from_secs);
            return Err(ConnectError::Status { status: code.unwrap_or(0), retry_after });
        }
    }
    let _: Bytes = buffer.bytes.split_to(size).freeze();
    Ok(true)
}

/// Protocol 1's refusals have no text of their own.
fn accepted(answer: ServerHello) -> Result<Success, ConnectError> {
    let (code, message) = match answer {
        ServerHello::Success(success) => return Ok(*success),
        ServerHello::Refused(refusal) => return Err(ConnectError::Refused(refusal)),
        ServerHello::AuthFailed => ("auth_failed", "the server does not accept this key".to_owned()),
        ServerHello::SubDomainInUse => {
            ("name_taken", "the name is in use; choose another with -s".to_owned())
        }
        ServerHello::InvalidSubDomain => ("name_invalid", "the server does not accept this name".to_owned()),
        ServerHello::Error(text) => ("error", text),
    };
    Err(ConnectError::Refused(Refusal { code: code.to_owned(), message, retry_after: None }))
}

fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket::prepare(SockRef::from(socket), socket.peer_addr()?.ip())?;
    #[cfg(target_os = "linux")]
    SockRef::from(socket).set_tcp_user_timeout(Some(TCP_USER_TIMEOUT))?;
    Ok(())
}
