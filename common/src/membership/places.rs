//! A bounded number of places for work that unauthenticated peers may begin; the newest peer always gets a place.
//!
//! Honest work of this kind takes a few round trips, hostile work as long as it is allowed to. So when all places are
//! taken, the oldest holder loses its place: a flood pushes out only itself, whereas refusing newcomers would shut out
//! the honest ones.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

#[derive(Debug, Default)]
struct TakenPlaces {
    last: u64,
    /// The places in use, the oldest first.
    places: VecDeque<(u64, CancellationToken)>,
}

/// A bounded number of places; clones share them.
#[derive(Debug, Clone)]
pub struct Places {
    most: usize,
    taken: Arc<Mutex<TakenPlaces>>,
}

/// A place in use; it is free again when this is dropped.
#[derive(Debug)]
pub struct Place {
    of: Places,
    id: u64,
    pushed_out: CancellationToken,
}

impl Places {
    /// Makes `most` places, but at least one.
    pub fn new(most: usize) -> Places {
        Places {
            most: most.max(1),
            taken: Arc::default(),
        }
    }

    fn taken(&self) -> MutexGuard<'_, TakenPlaces> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of places in use.
    pub fn len(&self) -> usize {
        self.taken().places.len()
    }

    /// Whether no place is in use.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes a place. The second value says whether the oldest holder lost its place for that.
    pub fn take(&self) -> (Place, bool) {
        let mut taken = self.taken();
        let full = taken.places.len() >= self.most;
        if let Some((_, oldest)) = full.then(|| taken.places.pop_front()).flatten() {
            oldest.cancel();
        }
        taken.last += 1;
        let (id, pushed_out) = (taken.last, CancellationToken::new());
        taken.places.push_back((id, pushed_out.clone()));
        let of = self.clone();
        let place = Place { of, id, pushed_out };
        (place, full)
    }
}

impl Place {
    /// Runs the work to its end, or returns `None` once the place is lost.
    pub async fn hold<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.pushed_out.run_until_cancelled(work).await
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.of.taken().places.retain(|(id, _)| *id != self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_newest_gets_a_place_and_the_oldest_loses_its_own() {
        let places = Places::new(2);
        let (first, _) = places.take();
        let (second, pushed) = places.take();
        assert!(!pushed);
        let (third, pushed) = places.take();
        assert!(pushed && places.len() == 2);
        assert_eq!(first.hold(std::future::pending::<()>()).await, None);
        assert_eq!(second.hold(async { 2 }).await, Some(2));
        drop(first);
        assert_eq!(places.len(), 2);
        drop((second, third));
        assert!(places.is_empty());
    }
}
