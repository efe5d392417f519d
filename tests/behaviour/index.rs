//! Names written down in a store: any instance finds them by one question, and goes on without the store when that is
//! away, slow or has forgotten everything.

use std::{collections::HashSet, time::Duration};

use tests::{
    client::Client,
    cluster::instance,
    eventually::eventually,
    load::Load,
    origin::Origin,
    process::{Process, binary},
    server::{Server, Starting},
    store::{Kind, Store},
    tls::Authority,
    visitor::get,
    wormhole::{ScriptedClient, hello_2, published_hello},
};
use uuid::Uuid;

/// Every promise, with each of the stores.
macro_rules! with_each_store {
    ($($promise:ident),* $(,)?) => {
        mod redis {
            $(#[tokio::test]
            async fn $promise() {
                super::$promise(tests::store::Kind::Redis).await;
            })*
        }
        mod etcd {
            $(#[tokio::test]
            async fn $promise() {
                super::$promise(tests::store::Kind::Etcd).await;
            })*
        }
    };
}

with_each_store!(
    a_name_is_found_by_one_question_to_the_store,
    of_two_that_claim_at_once_one_gets_the_name,
    an_owner_keeps_the_name_and_another_is_refused,
    a_store_that_dies_and_comes_back_empty_is_not_noticed_by_visitors,
    a_frozen_store_holds_nobody_up_for_long,
    what_a_dead_instance_held_is_free_again,
    names_that_were_taken_without_the_store_have_one_owner_when_it_is_back,
    a_client_that_moves_takes_its_name_along,
    an_instance_that_stops_takes_itself_out,
    an_instance_that_was_frozen_for_longer_than_its_lease_is_found_again,
);

const LEASE: Duration = Duration::from_secs(3);

/// With a short lease, since tests wait for its end.
fn indexed(number: usize, setting: String) -> Starting {
    instance(number, setting).env("LEASE", "3s")
}

async fn start(store: &Store, count: usize) -> Vec<Server> {
    start_at(&store.setting(), count).await
}

async fn start_at(setting: &str, count: usize) -> Vec<Server> {
    let mut servers = Vec::new();
    for number in 0..count {
        servers.push(indexed(number, setting.to_owned()).start().await);
    }
    for server in &servers {
        eventually("instances find each other", || async {
            server.metric("tunnelto_peers").await == (count - 1) as f64
        })
        .await;
    }
    servers
}

/// From now on what the store does not have does not exist.
async fn is_trusted(servers: &[Server]) {
    for server in servers {
        eventually("the store is trusted", || async { server.metric("tunnelto_store_trusted").await == 1.0 })
            .await;
    }
}

/// Nobody is asked any more.
async fn relies_on_the_store(servers: &[Server]) {
    is_trusted(servers).await;
    eventually("instances ask nobody but the store", || async {
        let before = questions(servers).await;
        tokio::time::sleep(LEASE / 2).await;
        questions(servers).await == before
    })
    .await;
}

async fn questions(servers: &[Server]) -> f64 {
    let mut all = 0.0;
    for server in servers {
        for result in ["answered", "failed"] {
            all += server.metric(&format!("tunnelto_questions_total{{result=\"{result}\"}}")).await;
        }
    }
    all
}

fn client(server: &Server, origin: &Origin, arguments: &[&str]) -> Client {
    let target = origin.target();
    Client::start(server, &[&[&*target, "-s", "web"][..], arguments].concat())
}

async fn a_name_is_found_by_one_question_to_the_store(kind: Kind) {
    let Some(store) = Store::start(kind).await else { return };
    let servers = start(&store, 3).await;
    // At the beginning the store may lack what others have not written yet, so instances are asked as well.
    assert_eq!(get(servers[1].visitors, "web", "/").await.status, 404);
    is_trusted(&servers).await;
    let origin = Origin::echo().await;
    let client = client(&servers[0], &origin, &[]);
    client.url().await;
    for server in &servers {
        let answer = get(server.visitors, "web", "/found").await;
        assert_eq!(answer.text(), "GET /found ", "through {}", server.visitors);
        assert_eq!(get(server.visitors, "nobody", "/").await.status, 404);
    }
    relies_on_the_store(&servers).await;
    let before = questions(&servers).await;
    for round in 0..20 {
        for server in &servers {
            assert_eq!(get(server.visitors, "web", "/").await.status, 200);
            assert_eq!(get(server.visitors, &format!("nobody{round}"), "/").await.status, 404);
        }
    }
    assert_eq!(questions(&servers).await, before, "nobody was asked but the store");
    let check = Process::start(
        binary("tunnelto_server"),
        ["check", "--host", "web"],
        &[
            ("CLUSTER", store.setting()),
            ("MASTER_SIG_KEY", tests::cluster::MASTER_KEY.to_owned()),
            ("BIND", servers[0].visitors.ip().to_string()),
            ("PORT", servers[0].visitors.port().to_string()),
            ("CTRL_PORT", servers[0].clients.port().to_string()),
            ("NET_PORT", servers[0].peers.port().to_string()),
        ],
        tests::process::home(),
    );
    let mut check = check;
    assert_eq!(check.exit().await, 0, "{:?}", check.stdout());
    let peers = check.stdout().iter().filter(|line| line.contains("is instance instance-")).count();
    assert_eq!(peers, 3, "{:?}", check.stdout());
}

async fn of_two_that_claim_at_once_one_gets_the_name(kind: Kind) {
    let Some(store) = Store::start(kind).await else { return };
    let servers = start(&store, 2).await;
    is_trusted(&servers).await;
    for round in 0..20 {
        let name = format!("race{round}");
        let hello = |key: &str| hello_2(published_hello(key, Some(&name)), &Uuid::new_v4().to_string());
        let (ann, bob) = (hello("ann"), hello("bob"));
        let ((ann, at_ann), (bob, at_bob)) = tokio::join!(
            ScriptedClient::connect(&servers[0], &ann),
            ScriptedClient::connect(&servers[1], &bob),
        );
        let won = [&at_ann, &at_bob].map(|answer| answer["success"].is_object());
        assert_eq!(won.iter().filter(|won| **won).count(), 1, "round {round}: {at_ann} {at_bob}");
        drop((ann, bob));
    }
}

async fn an_owner_keeps_the_name_and_another_is_refused(kind: Kind) {
    let Some(store) = Store::start(kind).await else { return };
    let servers = start(&store, 3).await;
    is_trusted(&servers).await;
    let (one, two) = (Origin::named("one").await, Origin::named("two").await);
    let ann = client(&servers[0], &one, &["-k", "ann"]);
    ann.url().await;
    for server in &servers {
        let mut bob = client(server, &two, &["-k", "bob"]);
        assert_eq!(bob.process.exit().await, 4, "on {}", server.visitors);
    }
    // The owner's other client may take it over; then the first is told.
    let second = client(&servers[2], &two, &["-k", "ann", "--takeover"]);
    second.url().await;
    let mut ann = ann;
    assert_eq!(ann.process.exit().await, 4);
    for server in &servers {
        eventually("every instance has heard of it", || async {
            get(server.visitors, "web", "/").await.text() == "two"
        })
        .await;
    }
    // When it says goodbye the name is anybody's.
    let mut second = second;
    second.process.signal("INT");
    second.process.exit().await;
    let bob = client(&servers[1], &one, &["-k", "bob"]);
    bob.url().await;
    assert_eq!(get(servers[2].visitors, "web", "/").await.text(), "one");
}

async fn a_store_that_dies_and_comes_back_empty_is_not_noticed_by_visitors(kind: Kind) {
    let Some(mut store) = Store::start(kind).await else { return };
    let servers = start(&store, 3).await;
    is_trusted(&servers).await;
    let origin = Origin::echo().await;
    let first = client(&servers[0], &origin, &[]);
    first.url().await;
    let loads: Vec<_> = servers.iter().map(|server| Load::start(server.visitors, 40)).collect();
    let go_on = async || {
        for load in &loads {
            load.has_done(40).await;
        }
    };
    go_on().await;
    store.kill().await;
    go_on().await;
    // A new name meanwhile.
    let late = Client::start(&servers[1], &[&origin.target(), "-s", "late"]);
    late.url().await;
    eventually("it is found", || async { get(servers[2].visitors, "late", "/").await.status == 200 }).await;
    assert_eq!(get(servers[2].visitors, "nobody", "/").await.status, 404);
    let store = store.again_empty().await;
    for _ in 0..10 {
        go_on().await;
    }
    is_trusted(&servers).await;
    go_on().await;
    let keys = store.keys().await;
    assert!(keys.contains("web") && keys.contains("late"), "{keys}");
    for load in loads {
        let (failures, done) = load.end().await;
        assert!(
            failures.is_empty(),
            "{} of {done} failed: {:?}",
            failures.len(),
            &failures[..failures.len().min(5)]
        );
    }
    for server in &servers {
        assert_eq!(get(server.visitors, "late", "/").await.status, 200);
        assert_eq!(get(server.visitors, "nobody", "/").await.status, 404);
    }
}

async fn a_frozen_store_holds_nobody_up_for_long(kind: Kind) {
    let Some(store) = Store::start(kind).await else { return };
    let servers = start(&store, 2).await;
    is_trusted(&servers).await;
    let origin = Origin::echo().await;
    let first = client(&servers[0], &origin, &[]);
    first.url().await;
    store.process.signal("STOP");
    let load = Load::start(servers[1].visitors, 40);
    assert_eq!(get(servers[1].visitors, "web", "/").await.status, 200);
    assert_eq!(get(servers[1].visitors, "nobody", "/").await.status, 404);
    let late = Client::start(&servers[1], &[&origin.target(), "-s", "late"]);
    late.url().await;
    eventually("it is found", || async { get(servers[0].visitors, "late", "/").await.status == 200 }).await;
    load.has_done(100).await;
    store.process.signal("CONT");
    is_trusted(&servers).await;
    load.has_done(40).await;
    let (failures, done) = load.end().await;
    assert!(failures.is_empty(), "{} of {done} failed: {failures:?}", failures.len());
    eventually("what was new meanwhile is written down", || async { store.keys().await.contains("late") })
        .await;
}

async fn what_a_dead_instance_held_is_free_again(kind: Kind) {
    let Some(store) = Store::start(kind).await else { return };
    let mut servers = start(&store, 2).await;
    is_trusted(&servers).await;
    let origin = Origin::named("ann").await;
    let ann = client(&servers[1], &origin, &["-k", "ann"]);
    ann.url().await;
    let other = Client::start(&servers[0], &[&origin.target(), "-s", "web", "-k", "bob"]);
    let mut other = other;
    assert_eq!(other.process.exit().await, 4);
    // The instance and its client at once: nobody will say that they are gone.
    ann.process.signal("KILL");
    servers[1].process.signal("KILL");
    servers[1].process.exit().await;
    let bobs = Origin::named("bob").await;
    let bob = client(&servers[0], &bobs, &["-k", "bob"]);
    bob.url().await;
    assert_eq!(get(servers[0].visitors, "web", "/").await.text(), "bob");
    drop(ann);
}

async fn names_that_were_taken_without_the_store_have_one_owner_when_it_is_back(kind: Kind) {
    let Some(mut store) = Store::start(kind).await else { return };
    // They know of each other by the store alone, so they can't ask each other while it was never there.
    store.kill().await;
    let first = indexed(0, store.setting()).start().await;
    let second = indexed(1, store.setting()).start().await;
    let (one, two) = (Origin::named("one").await, Origin::named("two").await);
    let ann = client(&first, &one, &["-k", "ann"]);
    ann.url().await;
    let mut bob = client(&second, &two, &["-k", "bob"]);
    bob.url().await;
    let _store = store.again().await;
    assert_eq!(bob.process.exit().await, 4, "the older claim stays");
    for server in [&first, &second] {
        eventually("both know the owner", || async {
            get(server.visitors, "web", "/").await.text() == "one"
        })
        .await;
    }
    drop(ann);
}

async fn a_client_that_moves_takes_its_name_along(kind: Kind) {
    let Some(store) = Store::start(kind).await else { return };
    let mut servers = start(&store, 3).await;
    is_trusted(&servers).await;
    let origin = Origin::echo().await;
    let list = format!("{},{}", servers[1].url(), servers[2].url());
    let client = Client::towards(&list, &[&origin.target(), "-s", "web"]);
    client.url().await;
    let load = Load::start(servers[0].visitors, 100);
    load.has_done(50).await;
    for at in [1, 2] {
        servers[at].process.signal("TERM");
        assert_eq!(servers[at].process.exit().await, 0);
        load.has_done(50).await;
        let old = &servers[at];
        let again = indexed(at, store.setting())
            .env("PORT", old.visitors.port().to_string())
            .env("CTRL_PORT", old.clients.port().to_string())
            .env("NET_PORT", old.peers.port().to_string())
            .start()
            .await;
        servers[at] = again;
        load.has_done(50).await;
    }
    let (failures, done) = load.end().await;
    assert!(failures.is_empty(), "{} of {done} failed: {failures:?}", failures.len());
}

async fn an_instance_that_stops_takes_itself_out(kind: Kind) {
    let Some(store) = Store::start(kind).await else { return };
    let mut servers = start(&store, 3).await;
    let origin = Origin::echo().await;
    let client = client(&servers[0], &origin, &[]);
    client.url().await;
    let stopped = servers.remove(2);
    let mut process = stopped.process;
    process.signal("TERM");
    assert_eq!(process.exit().await, 0);
    assert!(
        !store.keys().await.contains("instance-2")
            || kind == Kind::Redis
                && !store.ask(&["ZRANGE", "tunnelto:instances", "0", "-1"]).await.contains("instance-2")
    );
    for server in &servers {
        eventually("the others know", || async { server.metric("tunnelto_peers").await == 1.0 }).await;
    }
}

async fn an_instance_that_was_frozen_for_longer_than_its_lease_is_found_again(kind: Kind) {
    let Some(store) = Store::start(kind).await else { return };
    let servers = start(&store, 2).await;
    is_trusted(&servers).await;
    let origin = Origin::named("ann").await;
    let ann = client(&servers[1], &origin, &["-k", "ann"]);
    ann.url().await;
    let door = servers[0].visitors;
    assert_eq!(get(door, "web", "/").await.text(), "ann");
    servers[1].process.signal("STOP");
    tokio::time::sleep(2 * LEASE).await;
    servers[1].process.signal("CONT");
    // It may not be reached yet, but it is not said to be nowhere.
    let mut answered = 0;
    while answered < 100 {
        let answer = get(door, "web", "/").await;
        assert!([200, 502, 503].contains(&answer.status), "{} {}", answer.status, answer.text());
        answered = if answer.status == 200 { answered + 1 } else { 0 };
    }
    is_trusted(&servers).await;
    assert_eq!(get(door, "web", "/").await.text(), "ann");
}

#[tokio::test]
async fn a_name_that_cannot_be_written_down_is_found_all_the_same() {
    let Some(store) = Store::start(Kind::Redis).await else { return };
    let servers = start(&store, 2).await;
    is_trusted(&servers).await;
    // A page of another kind, which no command for pages takes.
    store.ask(&["SET", "tunnelto:name:web", "something else"]).await;
    let origin = Origin::named("ann").await;
    let ann = client(&servers[0], &origin, &["-k", "ann"]);
    ann.url().await;
    for _ in 0..50 {
        assert_eq!(get(servers[1].visitors, "web", "/").await.text(), "ann");
    }
    let mut bob = client(&servers[1], &origin, &["-k", "bob"]);
    assert_eq!(bob.process.exit().await, 4);
    store.ask(&["DEL", "tunnelto:name:web"]).await;
    eventually("it is written down", || async {
        store.ask(&["HKEYS", "tunnelto:name:web"]).await.contains("by:instance-0")
    })
    .await;
    is_trusted(&servers).await;
    assert_eq!(get(servers[1].visitors, "web", "/").await.text(), "ann");
}

#[tokio::test]
async fn what_is_in_redis_without_our_signature_does_not_count() {
    let Some(store) = Store::start(Kind::Redis).await else { return };
    let servers = start(&store, 2).await;
    is_trusted(&servers).await;
    let text = r#"{"instance":"evil","life":1,"port":1,"ip":"127.0.0.9","net_port":1}"#;
    store.ask(&["HSET", "tunnelto:instance:evil", "text", text]).await;
    store.ask(&["ZADD", "tunnelto:instances", "9999999999999", "evil"]).await;
    store.ask(&["INCR", "tunnelto:instances:version"]).await;
    let entry = r#"{"life":1,"owner":1,"since":1,"connections":[[0,1]]}"#;
    store.ask(&["HSET", "tunnelto:name:web", "by:evil", entry, "version", "1"]).await;
    assert_eq!(get(servers[0].visitors, "web", "/").await.status, 404);
    let origin = Origin::named("ann").await;
    let ann = client(&servers[0], &origin, &[]);
    ann.url().await;
    assert_eq!(get(servers[1].visitors, "web", "/").await.text(), "ann");
}

#[tokio::test]
async fn redis_that_comes_back_with_what_it_had_long_ago_leaves_no_name_stuck() {
    let Some(store) = Store::start(Kind::Redis).await else { return };
    let servers = start(&store, 2).await;
    is_trusted(&servers).await;
    let (one, two) = (Origin::named("one").await, Origin::named("two").await);
    let mut ann = client(&servers[0], &one, &["-k", "ann"]);
    ann.url().await;
    store.ask(&["SAVE"]).await;
    ann.process.signal("INT");
    ann.process.exit().await;
    let bob = client(&servers[1], &two, &["-k", "bob"]);
    bob.url().await;
    let late = Client::start(&servers[0], &[&one.target(), "-s", "late"]);
    late.url().await;
    let mut store = store;
    store.kill().await;
    let store = store.again().await;
    let seen: HashSet<_> = store.keys().await.lines().map(str::to_owned).collect();
    assert!(seen.contains("tunnelto:name:web") && !seen.contains("tunnelto:name:late"), "{seen:?}");
    for _ in 0..50 {
        for server in &servers {
            assert_eq!(get(server.visitors, "web", "/").await.text(), "two");
            assert_eq!(get(server.visitors, "late", "/").await.text(), "one");
        }
    }
    is_trusted(&servers).await;
    let mut bob = bob;
    assert!(!bob.process.has_exited(), "an old entry of another owner costs nobody the name");
    for server in &servers {
        assert_eq!(get(server.visitors, "web", "/").await.text(), "two");
    }
}

/// `servers` find each other through the store, and say nothing of its password.
async fn works_without_a_word_of(servers: &[Server], secret: &str) {
    is_trusted(servers).await;
    let origin = Origin::named("ann").await;
    let ann = client(&servers[0], &origin, &[]);
    ann.url().await;
    assert_eq!(get(servers[1].visitors, "web", "/").await.text(), "ann");
    for server in servers {
        let log = server.process.stderr().join("\n");
        assert!(!log.contains(secret), "{log}");
    }
}

#[tokio::test]
async fn redis_with_a_password_and_over_tls() {
    let Some(store) = Store::start(Kind::Redis).await else { return };
    store.ask(&["CONFIG", "SET", "requirepass", "s3cr3t"]).await;
    let setting = format!("redis://:s3cr3t@{}", store.at);
    works_without_a_word_of(&start_at(&setting, 2).await, "s3cr3t").await;

    let authority = Authority::new();
    authority.certify("store", &[&store.at.ip().to_string()]);
    let [certificate, key] =
        ["store.pem", "store.key"].map(|file| authority.path(file).display().to_string());
    let port = tests::dns::free_port();
    for (name, value) in
        [("tls-cert-file", &*certificate), ("tls-key-file", &key), ("tls-auth-clients", "no")]
    {
        let set = store.ask(&["-a", "s3cr3t", "--no-auth-warning", "CONFIG", "SET", name, value]).await;
        assert_eq!(set.trim(), "OK", "{name}");
    }
    let set = ["-a", "s3cr3t", "--no-auth-warning", "CONFIG", "SET", "tls-port", &port.to_string()];
    assert_eq!(store.ask(&set).await.trim(), "OK");
    let setting = format!("rediss://:s3cr3t@{}:{port}/1", store.at.ip());
    let mut servers = Vec::new();
    for number in 0..2 {
        let starting = indexed(number, setting.clone()).env("SSL_CERT_FILE", authority.root());
        servers.push(starting.start().await);
    }
    works_without_a_word_of(&servers, "s3cr3t").await;
}

#[tokio::test]
async fn etcd_with_a_user() {
    let Some(store) = Store::start(Kind::Etcd).await else { return };
    store.ask(&["user", "add", "root:s3cr3t"]).await;
    store.ask(&["user", "grant-role", "root", "root"]).await;
    store.ask(&["auth", "enable"]).await;
    let refused = indexed(0, store.setting()).start().await;
    eventually("it is said what is wrong", || async {
        refused.process.stderr().iter().any(|line| line.contains("user name is empty"))
    })
    .await;
    let setting = format!("etcd://root:s3cr3t@{}", store.at);
    works_without_a_word_of(&start_at(&setting, 2).await, "s3cr3t").await;
}

#[tokio::test]
async fn an_entry_that_nobody_stands_by_holds_up_no_claim_and_goes() {
    let Some(store) = Store::start(Kind::Redis).await else { return };
    let servers = start(&store, 2).await;
    is_trusted(&servers).await;
    let origin = Origin::named("ann").await;
    let ann = client(&servers[0], &origin, &["-k", "ann"]);
    ann.url().await;
    let entry = async || store.ask(&["HGET", "tunnelto:name:web", "by:instance-0"]).await.trim().to_owned();
    eventually("the name is written down", || async { entry().await.contains("owner") }).await;
    let entry = entry().await;
    // As if its removal had been forgotten.
    store.ask(&["HSET", "tunnelto:name:ghost", "by:instance-0", &entry, "version", "1"]).await;
    let bob = Client::start(&servers[1], &[&origin.target(), "-s", "ghost", "-k", "bob"]);
    bob.url().await;
    eventually("the entry is gone", || async {
        let page = store.ask(&["HKEYS", "tunnelto:name:ghost"]).await;
        page.contains("by:instance-1") && !page.contains("by:instance-0")
    })
    .await;
    for server in &servers {
        assert_eq!(get(server.visitors, "ghost", "/").await.text(), "ann", "its origin is the same");
    }
}

#[tokio::test]
async fn redis_that_throws_names_away_is_not_trusted() {
    let Some(store) = Store::start(Kind::Redis).await else { return };
    store.ask(&["CONFIG", "SET", "maxmemory", "100mb"]).await;
    store.ask(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    let servers = start(&store, 2).await;
    for server in &servers {
        eventually("it is said so", || async {
            server.process.stderr().iter().any(|line| line.contains("maxmemory-policy noeviction"))
        })
        .await;
    }
    let origin = Origin::named("ann").await;
    let ann = client(&servers[0], &origin, &[]);
    ann.url().await;
    // Any other store is trusted by then.
    tokio::time::sleep(2 * LEASE).await;
    let before = questions(&servers).await;
    eventually("instances ask each other", || async { questions(&servers).await > before }).await;
    store.ask(&["DEL", "tunnelto:name:web"]).await;
    assert_eq!(get(servers[1].visitors, "web", "/").await.text(), "ann");
    assert_eq!(servers[1].metric("tunnelto_store_trusted").await, 0.0);
}

#[tokio::test]
async fn an_endpoint_of_etcd_that_is_silent_is_left_for_the_next() {
    let Some(store) = Store::start(Kind::Etcd).await else { return };
    // Takes connections and says nothing.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let setting = format!("etcd://{},{}", silent.local_addr().unwrap(), store.at);
    let servers = start_at(&setting, 2).await;
    is_trusted(&servers).await;
    let origin = Origin::named("ann").await;
    let ann = client(&servers[0], &origin, &[]);
    ann.url().await;
    assert_eq!(get(servers[1].visitors, "web", "/").await.text(), "ann");
}
