//! A load that finds out whether any request of it failed.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{interval, timeout},
};

use crate::{
    eventually::eventually,
    visitor::{Answer, Visitor},
};

/// Requests until it is stopped, from visitors that keep their connections and others that don't.
pub struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
    visitors: JoinSet<Vec<String>>,
}

/// Bodies that are sent and come back; large enough to be cut if anything is.
const BODY: usize = 100_000;

impl Load {
    /// So many requests in a second for `web`, by ten visitors.
    pub fn start(door: SocketAddr, per_second: u64) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut visitors = JoinSet::new();
        for number in 0..10 {
            let (stop, done) = (stop.clone(), done.clone());
            visitors.spawn(async move {
                let mut failures = Vec::new();
                let mut kept: Option<Visitor> = None;
                let mut pace = interval(Duration::from_millis(10_000 / per_second));
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    pace.tick().await;
                    let mut visitor = match kept.take() {
                        Some(visitor) => visitor,
                        None => Visitor::connect(door).await,
                    };
                    let answer = ask(&mut visitor, number, round).await;
                    done.fetch_add(1, Ordering::Relaxed);
                    match answer {
                        Ok(answer) if number % 2 == 0 && answer.field("connection") != ["close"] => {
                            kept = Some(visitor)
                        }
                        Ok(_) => {}
                        Err(failure) => failures.push(failure),
                    }
                }
                failures
            });
        }
        Self { stop, done, visitors }
    }

    pub async fn has_done(&self, more: usize) {
        let wanted = self.done.load(Ordering::Relaxed) + more;
        eventually("requests go on", || async { self.done.load(Ordering::Relaxed) >= wanted }).await;
    }

    /// What went wrong, and how many requests there were.
    pub async fn end(mut self) -> (Vec<String>, usize) {
        self.stop.store(true, Ordering::Relaxed);
        let mut failures = Vec::new();
        while let Some(visitor) = self.visitors.join_next().await {
            failures.extend(visitor.unwrap());
        }
        (failures, self.done.load(Ordering::Relaxed))
    }
}

/// Small ones that may be repeated, and large ones that may not.
async fn ask(visitor: &mut Visitor, number: usize, round: usize) -> Result<Answer, String> {
    let body = if round % 10 == 9 { vec![b'a' + (number % 26) as u8; BODY] } else { Vec::new() };
    let method = if body.is_empty() { "GET" } else { "POST" };
    let head = format!(
        "{method} /{number}/{round} HTTP/1.1\r\nHost: web.localhost\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let wanted = [format!("{method} /{number}/{round} ").into_bytes(), body.clone()].concat();
    let failure = |text: String| format!("{method} /{number}/{round}: {text}");
    visitor.try_send([head.as_bytes(), &body].concat()).await.map_err(|error| failure(error.to_string()))?;
    let answer = timeout(Duration::from_secs(20), visitor.try_answer()).await;
    let answer =
        answer.map_err(|_| failure("no answer".into()))?.map_err(|error| failure(error.to_string()))?;
    if answer.status != 200 || answer.body != wanted {
        return Err(failure(format!(
            "{} {}",
            answer.status,
            answer.text().chars().take(200).collect::<String>()
        )));
    }
    Ok(answer)
}
