//! What the session of a connection is asked to do by whoever knows the connection.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{
    mpsc::{self, OwnedPermit},
    oneshot,
};

#[derive(Debug)]
pub enum Order {
    /// Ping the client; answer when it shows life.
    Probe(oneshot::Sender<()>),
    /// Another connection has taken the name's place.
    Leave(Reason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The same client is connected anew.
    Replaced,
    /// Another session of the owner has the name now.
    TakenOver,
    /// Another owner had the name first, on another instance.
    LostClaim,
}

/// The way to one session.
#[derive(Clone, Debug)]
pub struct Orders {
    queue: mpsc::Sender<Order>,
    /// A place in the queue is kept for the order to leave, which must not be lost however many ask for life.
    leaving: Arc<Mutex<Option<OwnedPermit<Order>>>>,
}

/// Orders that wait for a session; more than one is rare.
const WAITING: usize = 8;

impl Orders {
    pub fn new() -> (Self, mpsc::Receiver<Order>) {
        let (queue, orders) = mpsc::channel(WAITING);
        let place = queue.clone().try_reserve_owned().ok();
        (Self { queue, leaving: Arc::new(Mutex::new(place)) }, orders)
    }

    /// The first reason counts.
    pub fn leave(&self, reason: Reason) {
        if let Some(place) = self.leaving.lock().unwrap_or_else(PoisonError::into_inner).take() {
            place.send(Order::Leave(reason));
        }
    }

    /// Whether the client answers; waits while the session has its hands full.
    pub async fn shows_life(&self) -> bool {
        let (alive, answer) = oneshot::channel();
        self.queue.send(Order::Probe(alive)).await.is_ok() && answer.await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn however_many_ask_for_life_the_word_to_leave_comes_through() {
        let (way, mut orders) = Orders::new();
        let asking: Vec<_> = (0..2 * WAITING)
            .map(|_| {
                let way = way.clone();
                tokio::spawn(async move { way.shows_life().await })
            })
            .collect();
        while orders.len() < WAITING - 1 {
            tokio::task::yield_now().await;
        }
        way.leave(Reason::TakenOver);
        way.leave(Reason::Replaced);
        let (mut probes, mut left) = (0, Vec::new());
        while probes < 2 * WAITING {
            match orders.recv().await.unwrap() {
                Order::Probe(answer) => {
                    answer.send(()).unwrap();
                    probes += 1;
                }
                Order::Leave(reason) => left.push((probes, reason)),
            }
        }
        assert_eq!(left, [(WAITING - 1, Reason::TakenOver)]);
        for asked in asking {
            assert!(asked.await.unwrap());
        }
    }
}
