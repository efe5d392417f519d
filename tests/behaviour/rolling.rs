//! Instances stop, die and start again under load, and no visitor notices.

use tests::{
    balancer::Balancer, client::Client, cluster::Cluster, eventually::eventually, load::Load, origin::Origin,
    published::Published, visitor::Visitor,
};
use tokio::time::Instant;

/// Takes each instance out of the balancers, stops it, starts it again and puts it back.
async fn roll(cluster: &mut Cluster, visitors: &Balancer, clients: &Balancer, load: &Load) {
    for at in 0..cluster.servers.len() {
        load.has_done(200).await;
        let server = &mut cluster.servers[at];
        let doors = (server.visitors, server.clients);
        visitors.take_out(doors.0);
        clients.take_out(doors.1);
        server.process.signal("TERM");
        assert_eq!(server.process.exit().await, 0);
        cluster.again(at).await;
        visitors.put_in(doors.0);
        clients.put_in(doors.1);
        cluster.meets().await;
    }
    load.has_done(200).await;
}

async fn instances_of(cluster: &Cluster) -> usize {
    let mut count = 0;
    for server in &cluster.servers {
        let mut asker = Visitor::connect(server.peers).await;
        asker.send("GET /?host=web HTTP/1.1\r\nHost: x\r\n\r\n").await;
        count += usize::from(!asker.answer().await.text().contains("null"));
    }
    count
}

#[tokio::test]
async fn a_rolling_restart_loses_no_request() {
    let mut cluster = Cluster::start(3).await;
    let visitors = Balancer::start(cluster.servers.iter().map(|server| server.visitors)).await;
    let clients = Balancer::start(cluster.servers.iter().map(|server| server.clients)).await;
    let origin = Origin::echo().await;
    let client = Client::towards(&clients.url(), &[&origin.target(), "-s", "web", "-k", "ann"]);
    client.url().await;
    eventually("it holds two connections", || async { instances_of(&cluster).await == 2 }).await;
    let load = Load::start(visitors.address, 200);
    roll(&mut cluster, &visitors, &clients, &load).await;
    let (failures, done) = load.end().await;
    assert!(
        failures.is_empty(),
        "{} of {done} failed: {:#?}",
        failures.len(),
        &failures[..failures.len().min(10)]
    );
    eventually("it holds two connections again", || async { instances_of(&cluster).await == 2 }).await;
}

#[tokio::test]
async fn visitors_of_the_published_client_wait_through_a_rolling_restart() {
    let mut cluster = Cluster::start(3).await;
    let visitors = Balancer::start(cluster.servers.iter().map(|server| server.visitors)).await;
    let clients = Balancer::start(cluster.servers.iter().map(|server| server.clients)).await;
    let origin = Origin::echo().await;
    let arguments = ["-s", "web", "-k", "ann"];
    let Some(mut client) = Published::towards(clients.address, origin.address.port(), &arguments) else {
        return;
    };
    eventually("it is here", || async { instances_of(&cluster).await == 1 }).await;
    let load = Load::start(visitors.address, 50);
    roll(&mut cluster, &visitors, &clients, &load).await;
    let (failures, done) = load.end().await;
    let lost: Vec<_> = failures.iter().filter(|failure| !failure.starts_with("POST")).collect();
    assert!(lost.is_empty(), "{} of {done} failed: {lost:#?}", lost.len());
    assert!(!failures.iter().any(|failure| failure.contains("404")), "{failures:#?}");
    assert!(client.lives());
}

#[tokio::test]
async fn an_instance_that_dies_takes_only_what_was_under_way_on_it() {
    let mut cluster = Cluster::start(3).await;
    let clients = Balancer::start(cluster.servers.iter().map(|server| server.clients)).await;
    let origin = Origin::echo().await;
    let client = Client::towards(&clients.url(), &[&origin.target(), "-s", "web", "-k", "ann"]);
    client.url().await;
    eventually("it holds two connections", || async { instances_of(&cluster).await == 2 }).await;
    for at in 0..3 {
        let (killed, others) = (at, [(at + 1) % 3, (at + 2) % 3]);
        let door = cluster.servers[killed].clients;
        clients.take_out(door);
        cluster.servers[killed].process.signal("KILL");
        cluster.servers[killed].process.exit().await;
        let died = Instant::now();
        for other in others {
            let mut visitor = Visitor::connect(cluster.servers[other].visitors).await;
            let answer = visitor.get("web", "/after").await;
            assert_eq!((answer.status, answer.text().as_str()), (200, "GET /after "));
        }
        let took = died.elapsed();
        // A figure for docs/operations.md; what is promised there is measured by the benchmark.
        println!("answered by both others {took:?} after the end of instance {killed}");
        cluster.again(killed).await;
        clients.put_in(door);
        cluster.meets().await;
        eventually("it holds two connections again", || async { instances_of(&cluster).await == 2 }).await;
    }
}
