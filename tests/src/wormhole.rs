//! The wire itself, spoken by an independent WebSocket implementation: a scripted client for our server, and a
//! scripted server for our client.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, accept_async, connect_async, tungstenite::Message};
use tunnelto_lib::packet::Packet;

use crate::{eventually::soon, server::Server};

/// One end of a wormhole.
pub struct Wormhole<S> {
    pub socket: WebSocketStream<S>,
}

/// A client of ours to script.
pub type ScriptedClient = Wormhole<MaybeTlsStream<TcpStream>>;

/// One connection of our client, at a server to script.
pub type ScriptedServer = Wormhole<TcpStream>;

/// A protocol 1 hello with a key, as the published client says it.
pub fn published_hello(key: &str, name: Option<&str>) -> Value {
    json!({ "id": "test", "sub_domain": name, "client_type": { "Auth": { "key": key } }, "reconnect_token": null })
}

pub fn guest_hello(name: Option<&str>, token: Option<&str>) -> Value {
    json!({ "id": "test", "sub_domain": name, "client_type": "Anonymous", "reconnect_token": token })
}

/// The same with what protocol 2 adds.
pub fn hello_2(mut hello: Value, session: &str) -> Value {
    hello["protocol"] = json!(2);
    hello["session"] = json!(session);
    hello["connection"] = json!(0);
    hello["window"] = json!(262_144);
    hello["max_streams"] = json!(100);
    hello["tunnel"] = json!({ "kind": "http", "remote_port": null, "pool": false, "takeover": false });
    hello
}

impl ScriptedClient {
    /// Connects, says `hello`, and returns the server's answer.
    pub async fn connect(server: &Server, hello: &Value) -> (Self, Value) {
        Self::connect_to(server.clients, hello).await
    }

    pub async fn connect_to(clients: SocketAddr, hello: &Value) -> (Self, Value) {
        let url = format!("ws://{clients}/wormhole");
        let (socket, _) = soon("the handshake", connect_async(url)).await.expect("upgraded");
        let mut wormhole = Self { socket };
        wormhole.socket.send(Message::text(hello.to_string())).await.expect("sent");
        let answer = wormhole.message().await.expect("a hello");
        (wormhole, serde_json::from_slice(&answer).expect("JSON"))
    }
}

impl ScriptedClient {
    /// Lives on by itself, as a client without visitors.
    pub fn answer_pings(mut self) -> JoinHandle<()> {
        tokio::spawn(async move {
            while let Some(Ok(message)) = self.socket.next().await {
                if let Ok(Packet::Ping { .. }) = Packet::decode(message.into_data())
                    && self.socket.send(Message::Binary(Packet::Ping { token: None }.encode())).await.is_err()
                {
                    return;
                }
            }
        })
    }
}

impl ScriptedServer {
    /// Waits for a client and its hello.
    pub async fn accept(listener: &TcpListener) -> (Self, Value) {
        let (socket, _) = soon("the client connects", listener.accept()).await.expect("accepted");
        let socket = soon("the handshake", accept_async(socket)).await.expect("upgraded");
        let mut wormhole = Self { socket };
        let hello = wormhole.message().await.expect("a hello");
        (wormhole, serde_json::from_slice(&hello).expect("JSON"))
    }

    pub async fn say(&mut self, hello: Value) {
        self.socket.send(Message::binary(hello.to_string().into_bytes())).await.expect("sent");
    }
}

impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin> Wormhole<S> {
    pub async fn send(&mut self, packet: Packet) {
        soon("the packet is taken", self.socket.send(Message::Binary(packet.encode()))).await.expect("sent");
    }

    /// The next packet that is no Ping; `None` when the other side has closed.
    pub async fn packet(&mut self) -> Option<Packet> {
        loop {
            match Packet::decode(self.message().await?).expect("a packet") {
                Packet::Ping { .. } => {}
                packet => return Some(packet),
            }
        }
    }

    /// A packet that is here already, or comes within a moment.
    pub async fn packet_now(&mut self) -> Option<Packet> {
        tokio::time::timeout(Duration::from_millis(1), self.packet()).await.ok().flatten()
    }

    /// The next packet, Pings included.
    pub async fn any_packet(&mut self) -> Option<Packet> {
        Some(Packet::decode(self.message().await?).expect("a packet"))
    }

    async fn message(&mut self) -> Option<Bytes> {
        match soon("a message", self.socket.next()).await? {
            Ok(Message::Binary(bytes)) => Some(bytes),
            Ok(Message::Text(text)) => Some(text.into()),
            Ok(Message::Close(_)) | Err(_) => None,
            Ok(other) => panic!("the published client ends at this: {other:?}"),
        }
    }
}
