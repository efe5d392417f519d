//! One name, one owner, on however many instances; and what happens to it when instances part and meet again.

use serde_json::json;
use tests::{
    client::Client,
    cluster::{Cluster, Members, instance},
    eventually::eventually,
    origin::Origin,
    server::Server,
    visitor::{Visitor, get},
    wormhole::{ScriptedClient, hello_2, published_hello},
};
use tunnelto_lib::packet::Packet;
use uuid::Uuid;

async fn text(server: &Server, path: &str) -> String {
    get(server.visitors, "web", path).await.text()
}

fn client(cluster: &Cluster, at: usize, origin: &Origin, arguments: &[&str]) -> Client {
    let target = origin.target();
    Client::start(&cluster.servers[at], &[&[&*target, "-s", "web"][..], arguments].concat())
}

#[tokio::test]
async fn another_owner_is_refused_on_every_instance() {
    let cluster = Cluster::start(3).await;
    let origin = Origin::named("ann").await;
    let ann = client(&cluster, 0, &origin, &["-k", "ann"]);
    ann.url().await;
    for at in 0..3 {
        let mut bob = client(&cluster, at, &origin, &["-k", "bob"]);
        assert_eq!(bob.process.exit().await, 4, "on instance {at}");
    }
    assert_eq!(text(&cluster.servers[2], "/").await, "ann");
}

#[tokio::test]
async fn of_two_that_claim_at_once_on_two_instances_one_gets_the_name() {
    let cluster = Cluster::start(2).await;
    for round in 0..10 {
        let name = format!("race{round}");
        let hello = |key: &str| hello_2(published_hello(key, Some(&name)), &Uuid::new_v4().to_string());
        let (ann, bob) = (hello("ann"), hello("bob"));
        let ((ann, at_ann), (bob, at_bob)) = tokio::join!(
            ScriptedClient::connect(&cluster.servers[0], &ann),
            ScriptedClient::connect(&cluster.servers[1], &bob),
        );
        let won = [&at_ann, &at_bob].map(|answer| answer["success"].is_object());
        assert_eq!(won.iter().filter(|won| **won).count(), 1, "round {round}: {at_ann} {at_bob}");
        drop((ann, bob));
    }
}

#[tokio::test]
async fn the_owners_other_client_gets_the_name_by_takeover_or_when_the_first_is_silent() {
    let cluster = Cluster::start(2).await;
    let (one, two, three) =
        (Origin::named("one").await, Origin::named("two").await, Origin::named("three").await);
    let mut first = client(&cluster, 0, &one, &["-k", "ann"]);
    first.url().await;
    let mut second = client(&cluster, 1, &two, &["-k", "ann"]);
    assert_eq!(second.process.exit().await, 4, "the first one lives");
    let second = client(&cluster, 1, &two, &["-k", "ann", "--takeover"]);
    second.url().await;
    assert_eq!(first.process.exit().await, 4, "it is told");
    assert_eq!(text(&cluster.servers[0], "/").await, "two");
    second.process.signal("STOP");
    let third = client(&cluster, 0, &three, &["-k", "ann"]);
    third.url().await;
    assert_eq!(text(&cluster.servers[0], "/").await, "three");
    eventually("the other instance has heard of it", || async {
        text(&cluster.servers[1], "/").await == "three"
    })
    .await;
}

#[tokio::test]
async fn pools_share_a_name_over_instances() {
    let cluster = Cluster::start(3).await;
    let (one, two) = (Origin::named("one").await, Origin::named("two").await);
    let mut first = client(&cluster, 0, &one, &["-k", "ann", "--pool"]);
    let second = client(&cluster, 1, &two, &["-k", "ann", "--pool"]);
    first.url().await;
    second.url().await;
    assert_eq!(text(&cluster.servers[0], "/").await, "one", "rather the client that is here");
    assert_eq!(text(&cluster.servers[1], "/").await, "two");
    first.process.signal("INT");
    first.process.exit().await;
    for server in &cluster.servers {
        assert_eq!(text(server, "/").await, "two");
    }
}

#[tokio::test]
async fn a_pool_member_whose_service_is_down_is_skipped() {
    let cluster = Cluster::start(2).await;
    let up = Origin::named("up").await;
    let arguments = ["-k", "ann", "--pool"];
    let down = Client::start(&cluster.servers[0], &[&["127.0.0.1:1", "-s", "web"][..], &arguments].concat());
    down.url().await;
    let answer = get(cluster.servers[0].visitors, "web", "/").await;
    assert_eq!(answer.field("tunnelto-error"), ["tunnel_refused"], "there is no other");
    let well = client(&cluster, 0, &up, &arguments);
    well.url().await;
    for _ in 0..8 {
        assert_eq!(text(&cluster.servers[0], "/").await, "up");
        assert_eq!(text(&cluster.servers[1], "/").await, "up");
    }
    drop(well);
    let elsewhere = client(&cluster, 1, &up, &arguments);
    elsewhere.url().await;
    eventually("another instance's client is asked", || async {
        text(&cluster.servers[0], "/").await == "up"
    })
    .await;
}

#[tokio::test]
async fn instances_that_meet_again_agree_on_the_older_owner() {
    let cluster = Apart::start().await;
    let (one, two) = (Origin::named("ann").await, Origin::named("bob").await);
    let ann = Client::start(&cluster.first, &[&one.target(), "-s", "web", "-k", "ann"]);
    ann.url().await;
    let mut bob = Client::start(&cluster.second, &[&two.target(), "-s", "web", "-k", "bob"]);
    bob.url().await;
    assert_eq!(text(&cluster.second, "/").await, "bob", "they do not know of each other");
    cluster.meet();
    assert_eq!(bob.process.exit().await, 4, "the younger is told that it is out");
    assert!(bob.process.stderr().join("\n").contains("another owner had the name first"));
    eventually("both agree", || async {
        text(&cluster.first, "/").await == "ann" && text(&cluster.second, "/").await == "ann"
    })
    .await;
    assert_eq!(cluster.second.metric("tunnelto_claims_lost_total").await, 1.0);
}

/// Two instances that have not heard of each other.
struct Apart {
    first: Server,
    second: Server,
    members: Members,
}

impl Apart {
    async fn start() -> Self {
        let members = Members::none();
        let first = instance(0, members.setting()).start().await;
        let second = instance(1, members.setting()).start().await;
        Self { first, second, members }
    }

    fn meet(&self) {
        self.members.are([self.first.peers, self.second.peers]);
    }
}

#[tokio::test]
async fn a_published_client_that_loses_is_sent_away_and_finds_the_name_taken() {
    let cluster = Apart::start().await;
    let hello = |key: &str| published_hello(key, Some("web"));
    let (ann, _) = ScriptedClient::connect(&cluster.first, &hello("ann")).await;
    let _ann = ann.answer_pings();
    let (mut bob, answer) = ScriptedClient::connect(&cluster.second, &hello("bob")).await;
    assert!(answer["success"].is_object());
    cluster.meet();
    assert_eq!(bob.packet().await, None, "closed without a word that it would end at");
    let (_bob, answer) = ScriptedClient::connect(&cluster.second, &hello("bob")).await;
    assert_eq!(answer, json!("sub_domain_in_use"));
}

#[tokio::test]
async fn a_client_that_comes_back_on_another_instance_leaves_no_shadow() {
    let cluster = Cluster::start(2).await;
    let session = Uuid::new_v4().to_string();
    let hello = hello_2(published_hello("ann", Some("web")), &session);
    // The first connection looks alive for a while, as after a change of networks.
    let (mut first, _) = ScriptedClient::connect(&cluster.servers[0], &hello).await;
    let (mut second, answer) = ScriptedClient::connect(&cluster.servers[1], &hello).await;
    assert!(answer["success"].is_object(), "the same session is not asked");
    assert_eq!(first.packet().await, None, "the first instance lets go of it");
    let mut visitor = Visitor::connect(cluster.servers[0].visitors).await;
    visitor.send("GET / HTTP/1.1\r\nHost: web.localhost\r\n\r\n").await;
    assert!(matches!(second.packet().await, Some(Packet::Init { .. })));
}

#[tokio::test]
async fn a_visitor_waits_where_it_is_for_a_client_that_comes_back_elsewhere() {
    let cluster = Cluster::start(2).await;
    let origin = Origin::echo().await;
    let mut first = client(&cluster, 0, &origin, &["-k", "ann"]);
    first.url().await;
    first.process.signal("KILL");
    first.process.exit().await;
    let mut waiting = Vec::new();
    for server in &cluster.servers {
        let mut visitor = Visitor::connect(server.visitors).await;
        visitor.send("GET /waiting HTTP/1.1\r\nHost: web.localhost\r\n\r\n").await;
        waiting.push(visitor);
    }
    for server in &cluster.servers {
        eventually("it waits", || async { server.metric("tunnelto_parked").await == 1.0 }).await;
    }
    let second = client(&cluster, 1, &origin, &["-k", "ann"]);
    second.url().await;
    for visitor in &mut waiting {
        let answer = visitor.answer().await;
        assert_eq!((answer.status, answer.text().as_str()), (200, "GET /waiting "));
    }
}

#[tokio::test]
async fn a_client_that_leaves_on_purpose_frees_its_name_everywhere_at_once() {
    let cluster = Cluster::start(2).await;
    let origin = Origin::echo().await;
    let mut ann = client(&cluster, 0, &origin, &["-k", "ann"]);
    ann.url().await;
    assert_eq!(get(cluster.servers[1].visitors, "web", "/").await.status, 200);
    ann.process.signal("INT");
    ann.process.exit().await;
    for server in &cluster.servers {
        assert_eq!(get(server.visitors, "web", "/").await.status, 404);
    }
    let bob = client(&cluster, 1, &origin, &["-k", "bob"]);
    bob.url().await;
}

#[tokio::test]
async fn a_name_that_was_given_away_while_its_instance_was_silent_goes_back() {
    let cluster = Cluster::start(2).await;
    let (one, two) = (Origin::named("ann").await, Origin::named("bob").await);
    let ann = client(&cluster, 0, &one, &["-k", "ann"]);
    ann.url().await;
    assert_eq!(text(&cluster.servers[1], "/").await, "ann", "both know of it");
    cluster.servers[0].process.signal("STOP");
    let mut bob = client(&cluster, 1, &two, &["-k", "bob"]);
    bob.url().await;
    cluster.servers[0].process.signal("CONT");
    assert_eq!(bob.process.exit().await, 4, "the younger is told that it is out");
    eventually("both agree", || async {
        text(&cluster.servers[0], "/").await == "ann" && text(&cluster.servers[1], "/").await == "ann"
    })
    .await;
}
