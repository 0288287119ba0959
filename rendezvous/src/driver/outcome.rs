//! The place where a step's outcome waits for its caller.
//!
//! Invariant: the outcome is put once and taken once; a cause that is attached before it is taken is part of it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use convoke_common::error::{Error, Result};
use tokio::sync::Notify;

use crate::step::table::Delivery;

/// The deliveries of the recv slots, by slot; or the error of the step.
pub(super) type StepResults = Result<Vec<Option<Delivery>>>;

/// The outcome of one step, until its caller takes it.
#[derive(Default)]
pub(super) struct Outcome {
    result: Mutex<Option<StepResults>>,
    put: Notify,
}

impl Outcome {
    fn result(&self) -> MutexGuard<'_, Option<StepResults>> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the outcome of a step that has resolved.
    pub(super) fn put(&self, result: StepResults) {
        *self.result() = Some(result);
        self.put.notify_one();
    }

    /// Adds another cause to the error of a failed step. It has no effect once the caller has taken the error.
    pub(super) fn attach(&self, error: Error) {
        if let Some(Err(first)) = &mut *self.result() {
            // A participant that was lost as well is not among those that stopped the step.
            let about = error.site.as_ref().and_then(|s| s.worker.as_ref());
            first.stopped.retain(|name| Some(name) != about);
            first.attached.push(error);
        }
    }

    /// Waits for the outcome, and takes it.
    pub(super) async fn take(&self) -> StepResults {
        loop {
            if let Some(result) = self.result().take() {
                return result;
            }
            self.put.notified().await;
        }
    }
}
