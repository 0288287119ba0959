//! The order of eager batches on a local link.
//!
//! Invariants
//! 1. One thread at a time delivers, for all that announce batches, so that batches arrive in order.
//! 2. A source that is announced is asked for its batches after that.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use crate::eager::Batches;
use crate::primitives::{Mutex, MutexGuard};

/// The sources whose batches wait to be delivered over a local link.
#[derive(Default)]
pub struct LocalBatches(Mutex<AnnouncedSources>);

#[derive(Default)]
struct AnnouncedSources {
    waiting: VecDeque<Arc<dyn Batches>>,
    delivering: bool,
}

impl LocalBatches {
    fn sources(&self) -> MutexGuard<'_, AnnouncedSources> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces a source, which is passed to `deliver` on this thread, unless another call delivers: that call then
    /// also delivers this source's batches.
    pub(super) fn announce(&self, source: &Arc<dyn Batches>, deliver: impl Fn(&dyn Batches)) {
        let mut sources = self.sources();
        sources.waiting.push_back(source.clone());
        if std::mem::replace(&mut sources.delivering, true) {
            return;
        }
        // The lock is not held during delivery: handling a batch may call this function again, on this very thread.
        while let Some(source) = sources.waiting.pop_front() {
            drop(sources);
            deliver(&*source);
            sources = self.sources();
        }
        sources.delivering = false;
    }
}
