//! Clients that go without a word, and come back.

use std::{net::SocketAddr, time::Duration};

use tests::{
    chance::Chance,
    client::Client,
    wormhole::{ScriptedClient, published_hello},
};
use tokio::time::{Instant, sleep};

/// Keeps a client on every name; kills one of them every now and then, and starts it anew.
pub async fn kill_and_restart(
    url: String,
    target: String,
    names: Vec<String>,
    mut chance: Chance,
    until: Instant,
) {
    let start = |name: &String| Client::towards(&url, &[&target, "-s", name, "-k", "bob"]);
    let mut clients: Vec<_> = names.iter().map(start).collect();
    while Instant::now() < until {
        sleep(Duration::from_millis(300)).await;
        let victim = chance.below(clients.len() as u64) as usize;
        clients[victim].process.signal("KILL");
        clients[victim].process.exit().await;
        clients[victim] = start(&names[victim]);
    }
    for client in &mut clients {
        client.process.signal("KILL");
        client.process.exit().await;
    }
}

/// Connections that say hello, get a name, and are gone.
pub async fn come_and_vanish(clients: SocketAddr, until: Instant) {
    let mut number = 0;
    while Instant::now() < until {
        number += 1;
        let hello = published_hello("carol", Some(&format!("vanishing-{}", number % 50)));
        drop(ScriptedClient::connect_to(clients, &hello).await);
        sleep(Duration::from_millis(50)).await;
    }
}
