//! Where visitors wait whose tunnel's client is away: a bounded number for each name and in all. Only heads are held;
//! bodies stay unread.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use dashmap::DashMap;
use tokio::{
    sync::{Notify, futures::OwnedNotified},
    time::timeout_at,
};
use tunnelto_lib::name::Label;

use crate::{
    gauge::{Counted, Gauge},
    limits::{MAX_PARKED, MAX_PARKED_NAME},
};

/// All places to wait.
#[derive(Default)]
pub struct Lot {
    spots: DashMap<Label, Spot>,
    parked: Gauge,
}

/// The places of one name; there is none while nobody waits for it.
#[derive(Clone, Default)]
struct Spot {
    woken: Arc<Notify>,
    parked: Gauge,
}

/// A taken place. What happens from its making on is heard by the next [`Parking::wait`].
pub struct Parking {
    lot: Arc<Lot>,
    name: Label,
    woken: Arc<Notify>,
    next: std::pin::Pin<Box<OwnedNotified>>,
    /// Of the name's, and of all. Given back before the spot is looked at, so optional.
    places: Option<(Counted, Counted)>,
}

impl Lot {
    /// `None` while all places are taken.
    pub fn park(self: &Arc<Self>, name: &Label) -> Option<Parking> {
        let (woken, places) = {
            let spot = self.spots.entry(name.clone()).or_default();
            let of_name = spot.parked.try_enter(MAX_PARKED_NAME);
            (spot.woken.clone(), of_name.zip(self.parked.try_enter(MAX_PARKED)))
        };
        let Some(places) = places else {
            self.tidy(name);
            return None;
        };
        let next = Box::pin(woken.clone().notified_owned());
        Some(Parking { lot: self.clone(), name: name.clone(), woken, next, places: Some(places) })
    }

    /// Something has changed about `name`: whoever waits for it looks again.
    pub fn wake(&self, name: &Label) {
        if let Some(spot) = self.spots.get(name) {
            spot.woken.notify_waiters();
        }
    }

    fn tidy(&self, name: &Label) {
        self.spots.remove_if(name, |_, spot| spot.parked.count() == 0);
    }

    pub fn parked(&self) -> usize {
        self.parked.count()
    }
}

impl Parking {
    /// Waits until something changes, for `longest`, or until `until`.
    pub async fn wait(&mut self, until: Instant, longest: Duration) {
        let limit = until.min(Instant::now() + longest);
        // Either way it is time to look again.
        let _ = timeout_at(limit.into(), self.next.as_mut()).await;
        self.next = Box::pin(self.woken.clone().notified_owned());
    }
}

impl Drop for Parking {
    fn drop(&mut self) {
        self.places = None;
        self.lot.tidy(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn name() -> Label {
        Label::parse("web").unwrap()
    }

    #[test]
    fn places_are_bounded_and_come_back() {
        let lot = Arc::new(Lot::default());
        let places: Vec<_> = (0..MAX_PARKED_NAME).map(|_| lot.park(&name()).expect("a place")).collect();
        assert!(lot.park(&name()).is_none());
        assert_eq!(lot.parked(), MAX_PARKED_NAME);
        drop(places);
        assert!(lot.spots.is_empty());
        assert!(lot.park(&name()).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn what_happens_between_two_waits_is_not_missed() {
        let lot = Arc::new(Lot::default());
        let mut parking = lot.park(&name()).unwrap();
        let began = Instant::now();
        lot.wake(&name());
        parking.wait(began + LONG, LONG).await;
        lot.wake(&name());
        parking.wait(began + LONG, LONG).await;
        assert!(tokio::time::Instant::now().into_std() < began + LONG / 2);
    }
}
