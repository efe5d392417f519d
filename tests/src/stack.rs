//! A server, an origin and a client that serves it as `web`.

use std::net::SocketAddr;

use crate::{client::Client, origin::Origin, server::Server, visitor::Visitor};

pub struct Stack {
    pub server: Server,
    pub client: Client,
    pub origin: Origin,
}

impl Stack {
    pub async fn start(origin: Origin) -> Self {
        Self::on(Server::start().await, origin).await
    }

    pub async fn on(server: Server, origin: Origin) -> Self {
        let client = Client::start(&server, &[&origin.target(), "-s", "web"]);
        client.url().await;
        Self { server, client, origin }
    }

    pub fn door(&self) -> SocketAddr {
        self.server.visitors
    }

    /// A visitor that has asked for `/` and has the head of its answer.
    pub async fn visitor_with_a_head(&self) -> Visitor {
        let mut visitor = self.visitor().await;
        visitor.send("GET / HTTP/1.1\r\nHost: web.localhost\r\n\r\n").await;
        visitor.head().await;
        visitor
    }

    pub async fn visitor(&self) -> Visitor {
        Visitor::connect(self.door()).await
    }
}
