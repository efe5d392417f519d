//! Counts of what is under way, readable from every thread.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// How many [`Counted`] there are just now. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<AtomicUsize>);

/// One of what a gauge counts, until it is dropped.
#[derive(Debug)]
pub struct Counted(Gauge);

impl Gauge {
    pub fn enter(&self) -> Counted {
        // Nothing else is published with the count.
        self.0.fetch_add(1, Ordering::Relaxed);
        Counted(self.clone())
    }

    /// One more, unless there are `most` already.
    pub fn try_enter(&self, most: usize) -> Option<Counted> {
        let place = self.enter();
        (self.count() <= most).then_some(place)
    }

    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::Gauge;

    #[test]
    fn what_is_dropped_is_counted_out() {
        let gauge = Gauge::default();
        let first = gauge.try_enter(1);
        assert!(first.is_some() && gauge.try_enter(1).is_none());
        assert_eq!(gauge.count(), 1);
        drop(first);
        assert_eq!(gauge.count(), 0);
    }
}
