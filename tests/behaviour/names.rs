//! Names survive: breaks, restarts, frozen holders; and they belong to one owner.

use tests::{
    client::Client,
    eventually::eventually,
    origin::Origin,
    server::Server,
    stack::Stack,
    visitor::{Visitor, get},
    wormhole::{ScriptedClient, guest_hello, hello_2, published_hello},
};

async fn answers(server: &Server, name: &str) -> bool {
    get(server.visitors, name, "/").await.status == 200
}

fn has_closed(server: &Server) -> bool {
    server.process.stderr().iter().any(|line| line.contains("tunnel closed"))
}

#[tokio::test]
async fn the_same_name_after_a_server_restart() {
    for name in [None, Some("web")] {
        let origin = Origin::echo().await;
        let mut server = Server::start().await;
        let target = origin.target();
        let arguments: Vec<_> = [Some(&*target), name.map(|_| "-s"), name].into_iter().flatten().collect();
        let client = Client::start(&server, &arguments);
        let url = client.url().await;
        let host = url.trim_start_matches("http://").split('.').next().unwrap().to_owned();
        server = server.restart("KILL").await;
        eventually("the name is back", || answers(&server, &host)).await;
        assert_eq!(client.process.stdout(), [url], "the URL is printed once");
    }
}

#[tokio::test]
async fn a_visitor_that_waited_in_vain_is_told_to_come_back() {
    let stack = Stack::on(Server::with().env("GRACE", "3s").start().await, Origin::echo().await).await;
    stack.client.process.signal("KILL");
    eventually("the server notices", || async { has_closed(&stack.server) }).await;
    let answer = get(stack.door(), "web", "/").await;
    assert_eq!((answer.status, answer.field("tunnelto-error")), (503, vec!["tunnel_offline".to_owned()]));
    assert_eq!(answer.field("retry-after").len(), 1);
    eventually("the name is free", || async { get(stack.door(), "web", "/").await.status == 404 }).await;
}

#[tokio::test]
async fn a_parked_visitor_is_served_when_the_owner_is_back() {
    let origin = Origin::echo().await;
    let server = Server::start().await;
    let target = origin.target();
    let arguments = [&*target, "-s", "web", "-k", "ann"];
    let mut first = Client::start(&server, &arguments);
    first.url().await;
    first.process.signal("KILL");
    first.process.exit().await;
    let mut visitor = Visitor::connect(server.visitors).await;
    visitor.send("GET /parked HTTP/1.1\r\nHost: web.localhost\r\n\r\n").await;
    let _second = Client::start(&server, &arguments);
    let answer = visitor.answer().await;
    assert_eq!((answer.status, answer.text().as_str()), (200, "GET /parked "));
}

#[tokio::test]
async fn a_client_that_says_goodbye_frees_its_name_at_once() {
    let mut stack = Stack::start(Origin::echo().await).await;
    stack.client.process.signal("INT");
    assert_eq!(stack.client.process.exit().await, 0);
    assert_eq!(get(stack.door(), "web", "/").await.status, 404);
}

#[tokio::test]
async fn another_owner_does_not_get_the_name() {
    let server = Server::start().await;
    let (_ann, answer) = ScriptedClient::connect(&server, &published_hello("ann", Some("web"))).await;
    assert_eq!(answer["success"]["hostname"], "web.localhost");
    let (_, answer) = ScriptedClient::connect(&server, &published_hello("bob", Some("web"))).await;
    assert_eq!(answer, "sub_domain_in_use");
    let mut second = Client::start(&server, &["1", "-s", "web", "-k", "bob"]);
    assert_eq!(second.process.exit().await, 4);
    assert!(second.process.stderr()[0].contains("the name is in use"), "{:?}", second.process.stderr());
}

#[tokio::test]
async fn a_living_session_keeps_its_name_unless_it_is_taken_over() {
    let server = Server::start().await;
    let origin = Origin::echo().await;
    let target = origin.target();
    let arguments = [&*target, "-s", "web", "-k", "ann"];
    let mut first = Client::start(&server, &arguments);
    first.url().await;
    let mut second = Client::start(&server, &arguments);
    assert_eq!(second.process.exit().await, 4);
    let third = Client::start(&server, &[&arguments[..], &["--takeover"]].concat());
    third.url().await;
    assert_eq!(first.process.exit().await, 4, "the loser is told and ends");
    assert!(answers(&server, "web").await);
}

#[tokio::test]
async fn a_frozen_holder_loses_its_name_to_its_owner() {
    let server = Server::start().await;
    let origin = Origin::echo().await;
    let target = origin.target();
    let arguments = [&*target, "-s", "web", "-k", "ann"];
    let frozen = Client::start(&server, &arguments);
    frozen.url().await;
    frozen.process.signal("STOP");
    let second = Client::start(&server, &arguments);
    second.url().await;
    assert!(answers(&server, "web").await);
}

#[tokio::test]
async fn two_pool_members_share_a_name() {
    let server = Server::start().await;
    let origins = [Origin::echo().await, Origin::echo().await];
    let mut clients = Vec::new();
    for origin in &origins {
        let client = Client::start(&server, &[&origin.target(), "-s", "web", "-k", "ann", "--pool"]);
        client.url().await;
        clients.push(client);
    }
    assert!(!clients[0].process.has_exited(), "the first was not thrown out");
    clients[0].process.signal("INT");
    clients[0].process.exit().await;
    assert!(answers(&server, "web").await);
    assert_eq!((origins[0].requests().len(), origins[1].requests().len()), (0, 1));
}

#[tokio::test]
async fn a_key_without_a_name_gets_the_same_name_every_time() {
    let server = Server::start().await;
    let hello = published_hello("ann", None);
    let (first, one) = ScriptedClient::connect(&server, &hello).await;
    drop(first);
    eventually("the server notices", || async { has_closed(&server) }).await;
    let (second, two) = ScriptedClient::connect(&server, &hello).await;
    let _second = second.answer_pings();
    assert_eq!(one["success"]["sub_domain"], two["success"]["sub_domain"]);
    let (_third, three) = ScriptedClient::connect(&server, &hello).await;
    assert_ne!(two["success"]["sub_domain"], three["success"]["sub_domain"], "the first is still in use");
    let server = server.restart("TERM").await;
    let (_fourth, four) = ScriptedClient::connect(&server, &hello).await;
    assert_eq!(two["success"]["sub_domain"], four["success"]["sub_domain"]);
}

#[tokio::test]
async fn a_session_counts_only_with_its_token() {
    let server = Server::start().await;
    let session = "11111111-2222-3333-4444-555555555555";
    let hello = hello_2(guest_hello(Some("web"), None), session);
    let (_holder, answer) = ScriptedClient::connect(&server, &hello).await;
    let token = answer["success"]["reconnect_token"].as_str().unwrap().to_owned();
    let (_, thief) = ScriptedClient::connect(&server, &hello).await;
    assert_eq!(thief["refused"]["code"], "name_taken");
    let back = hello_2(guest_hello(Some("web"), Some(&token)), session);
    let (_back, answer) = ScriptedClient::connect(&server, &back).await;
    assert_eq!(answer["success"]["sub_domain"], "web");
}

#[tokio::test]
async fn reserved_blocked_and_malformed_names() {
    let server = Server::with().env("BLOCKED_SUB_DOMAINS", "www,admin").start().await;
    for name in ["wormhole", "www", "Admin", "a_b", "-a", ""] {
        let (_, answer) = ScriptedClient::connect(&server, &published_hello("ann", Some(name))).await;
        assert_eq!(answer, "invalid_sub_domain", "{name}");
    }
    let (_kept, answer) = ScriptedClient::connect(&server, &published_hello("ann", Some("Web"))).await;
    assert_eq!(answer["success"]["sub_domain"], "web", "names are folded");
}

#[tokio::test]
async fn a_client_on_the_visitors_door() {
    let origin = Origin::echo().await;
    let server = Server::start().await;
    // The system resolves every name under localhost to loopback.
    let url = format!("ws://wormhole.localhost:{}", server.visitors.port());
    let client = Client::towards(&url, &[&origin.target(), "-s", "web"]);
    client.url().await;
    assert!(answers(&server, "web").await);
}
