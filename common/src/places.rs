//! Places for work that strangers may begin: a bounded number, of which the newest always gets one.
//!
//! Honest work of this kind takes a few round trips, hostile work as long as it may. So where all places are taken
//! the oldest goes: a flood only pushes out itself, where refusing newcomers would shut out the honest ones.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

#[derive(Debug, Default)]
struct Taken {
    last: u64,
    /// The oldest first.
    places: VecDeque<(u64, CancellationToken)>,
}

/// The places; clones share them.
#[derive(Debug, Clone)]
pub struct Places {
    most: usize,
    taken: Arc<Mutex<Taken>>,
}

/// A place, given back on drop.
#[derive(Debug)]
pub struct Place {
    of: Places,
    id: u64,
    pushed_out: CancellationToken,
}

impl Places {
    /// So many, at least one.
    pub fn new(most: usize) -> Places {
        Places {
            most: most.max(1),
            taken: Arc::default(),
        }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many are taken.
    pub fn len(&self) -> usize {
        self.taken().places.len()
    }

    /// Whether none is taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes one. Tells whether that pushed somebody out.
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
    /// Does the work, or `None` once the place is lost.
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
