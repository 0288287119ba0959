//! Whether a worker takes new work, and when its running work has ended.
//!
//! ```text
//! Serving ──told to end──> Leaving
//!    └────a kernel does not stop────> Wedged <──┘
//! ```
//!
//! Invariants
//! 1. A worker that has stopped taking work never takes any again: its process ends, and another one returns.
//! 2. A step counts as live from its start until it has quiesced. A step is either refused or counted, never neither.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use convoke_common::actor;
use convoke_common::error::{Code, Error};
use tokio::sync::{Notify, watch};

/// Whether a worker takes new work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceState {
    /// The worker takes work.
    Serving,
    /// The worker was told to end, and finishes its running steps.
    Leaving,
    /// A kernel of the worker does not stop.
    Wedged(Error),
}

/// Refuses new work once the worker leaves or is wedged, and counts live steps.
#[derive(Debug)]
pub struct Gate {
    state: watch::Sender<ServiceState>,
    /// The error that refuses new work: a copy of the state's error, readable without a lock.
    refusal: OnceLock<Error>,
    live: AtomicU64,
    idle: Notify,
}

impl Default for Gate {
    fn default() -> Gate {
        Gate {
            state: watch::Sender::new(ServiceState::Serving),
            refusal: OnceLock::new(),
            live: AtomicU64::new(0),
            idle: Notify::new(),
        }
    }
}

impl Gate {
    /// The error that new work is refused with, if the worker takes none.
    pub fn refusal(&self) -> Option<&Error> {
        self.refusal.get()
    }

    /// A receiver of the worker's service state and of its changes.
    pub fn service_state(&self) -> watch::Receiver<ServiceState> {
        self.state.subscribe()
    }

    /// Stops taking new work, because the worker will end.
    pub fn leave(&self, worker: &str) {
        let _ = self.refusal.set(Error::leaving(worker));
        self.state.send_if_modified(|s| {
            let serving = *s == ServiceState::Serving;
            if serving {
                *s = ServiceState::Leaving;
            }
            serving
        });
    }

    /// Stops taking new work, because a kernel does not stop.
    pub fn wedge(&self, error: &Error) {
        let _ = self.refusal.set(error.clone());
        self.state.send_replace(ServiceState::Wedged(error.clone()));
    }

    /// Counts a step as live. The caller checks [`Gate::refusal`] afterwards, so that no step slips through while the
    /// gate closes.
    pub fn started(&self) {
        self.live.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends the count of a step that has quiesced.
    pub fn quiesced(&self) {
        if self.live.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.idle.notify_waiters();
        }
    }

    /// Returns once no step is live, or once a kernel is known not to stop, so that its step never ends.
    pub async fn finished(&self) {
        let mut state = self.service_state();
        let wedged = state.wait_for(|s| matches!(s, ServiceState::Wedged(_)));
        tokio::select! {
            biased;
            () = self.idle() => {}
            _ = wedged => {}
        }
    }

    /// The error that says why the process of a worker that has left leaves work behind, if it does.
    pub fn unfinished(&self, worker: &str) -> Option<Error> {
        if let ServiceState::Wedged(error) = &*self.state.borrow() {
            return Some(error.clone());
        }
        let live = self.live.load(Ordering::SeqCst);
        let why = || format!("worker {worker} left while {live} steps did not stop");
        (live > 0).then(|| Error::new(Code::Wedged, why()))
    }

    /// Returns once no step is live.
    pub async fn idle(&self) {
        let idle = || (self.live.load(Ordering::SeqCst) == 0).then_some(());
        actor::found(&self.idle, idle).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn what_closes_stays_closed_and_idle_waits_for_the_last() {
        let gate = Gate::default();
        let mut state = gate.service_state();
        assert!(gate.refusal().is_none() && gate.idle().now_or_never().is_some());
        gate.started();
        gate.started();
        gate.leave("w0");
        gate.leave("w0");
        assert_eq!(*state.borrow_and_update(), ServiceState::Leaving);
        gate.quiesced();
        let idle = gate.idle();
        tokio::pin!(idle);
        assert!(idle.as_mut().now_or_never().is_none());
        gate.quiesced();
        assert!(idle.now_or_never().is_some());

        assert_eq!(gate.unfinished("w0"), None);
        // A kernel hangs while the worker leaves.
        gate.started();
        let finished = gate.finished();
        tokio::pin!(finished);
        assert!(finished.as_mut().now_or_never().is_none());
        assert_eq!(gate.unfinished("w0").unwrap().code, Code::Wedged);
        let wedged = Error::new(Code::Wedged, "node 'n' does not stop");
        gate.wedge(&wedged);
        assert!(finished.now_or_never().is_some());
        assert_eq!(gate.unfinished("w0"), Some(wedged.clone()));
        gate.leave("w0");
        assert_eq!(*state.borrow_and_update(), ServiceState::Wedged(wedged));
        assert_eq!(gate.refusal().unwrap().code, Code::WorkerLeaving);
    }
}
