//! Where a step's outcome waits for its caller.
//!
//! Invariant: the outcome is put once and taken once; what is attached before it is taken is part of it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use convoke_common::error::{Error, Result};
use tokio::sync::Notify;

use crate::table::Delivered;

/// What came in the recv slots, by slot.
pub(super) type Arrived = Result<Vec<Option<Delivered>>>;

/// See the module.
#[derive(Default)]
pub(super) struct Outcome {
    result: Mutex<Option<Arrived>>,
    put: Notify,
}

impl Outcome {
    fn result(&self) -> MutexGuard<'_, Option<Arrived>> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The step has resolved.
    pub(super) fn put(&self, result: Arrived) {
        *self.result() = Some(result);
        self.put.notify_one();
    }

    /// Another cause of a step that failed. Of no effect once the caller has the first.
    pub(super) fn attach(&self, error: Error) {
        if let Some(Err(first)) = &mut *self.result() {
            // Who was lost as well was not stopped.
            let about = error.site.as_ref().and_then(|s| s.worker.as_ref());
            first.stopped.retain(|name| Some(name) != about);
            first.attached.push(error);
        }
    }

    /// Waits for the outcome.
    pub(super) async fn take(&self) -> Arrived {
        loop {
            if let Some(result) = self.result().take() {
                return result;
            }
            self.put.notified().await;
        }
    }
}
