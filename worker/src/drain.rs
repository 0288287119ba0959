//! Whether a worker takes new work, and when what runs has ended.
//!
//! ```text
//! Serving ──told to end──> Leaving
//!    └────a kernel does not stop────> Wedged <──┘
//! ```
//!
//! Invariants
//! 1. A worker that stopped to take work never takes any again: its process ends, and another one returns.
//! 2. A step counts as live from its start until it has quiesced, and is refused or counted, never neither.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use convoke_common::error::{Code, Error};
use tokio::sync::{Notify, watch};

/// Where a worker stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It takes work.
    Serving,
    /// It was told to end, and finishes what runs.
    Leaving,
    /// A kernel of it does not stop.
    Wedged(Error),
}

/// See the module.
#[derive(Debug)]
pub struct Gate {
    standing: watch::Sender<Standing>,
    /// What new work is refused with: what [`Gate::standing`] says, without its lock.
    refusal: OnceLock<Error>,
    live: AtomicU64,
    idle: Notify,
}

impl Default for Gate {
    fn default() -> Gate {
        Gate {
            standing: watch::Sender::new(Standing::Serving),
            refusal: OnceLock::new(),
            live: AtomicU64::new(0),
            idle: Notify::new(),
        }
    }
}

impl Gate {
    /// What new work is refused with.
    pub fn refusal(&self) -> Option<&Error> {
        self.refusal.get()
    }

    /// Where the worker stands, from now on.
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    /// Takes no new work: the worker will end.
    pub fn leave(&self, worker: &str) {
        let _ = self.refusal.set(Error::leaving(worker));
        self.standing.send_if_modified(|s| {
            let serving = *s == Standing::Serving;
            if serving {
                *s = Standing::Leaving;
            }
            serving
        });
    }

    /// Takes no new work: a kernel does not stop.
    pub fn wedge(&self, error: &Error) {
        let _ = self.refusal.set(error.clone());
        self.standing.send_replace(Standing::Wedged(error.clone()));
    }

    /// A step starts. Asked for [`Gate::refusal`] afterwards, so that none slips through while the gate closes.
    pub fn started(&self) {
        self.live.fetch_add(1, Ordering::SeqCst);
    }

    /// A step that started has quiesced.
    pub fn quiesced(&self) {
        if self.live.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.idle.notify_waiters();
        }
    }

    /// Returns once no step is live, or one never will end because its kernel does not.
    pub async fn finished(&self) {
        let mut standing = self.standing();
        let wedged = standing.wait_for(|s| matches!(s, Standing::Wedged(_)));
        tokio::select! {
            biased;
            () = self.idle() => {}
            _ = wedged => {}
        }
    }

    /// Why the process of a worker that has left leaves work behind, where it does.
    pub fn unfinished(&self, worker: &str) -> Option<Error> {
        if let Standing::Wedged(error) = &*self.standing.borrow() {
            return Some(error.clone());
        }
        let live = self.live.load(Ordering::SeqCst);
        let why = || format!("worker {worker} left while {live} steps did not stop");
        (live > 0).then(|| Error::new(Code::Wedged, why()))
    }

    /// Returns once no step is live.
    pub async fn idle(&self) {
        loop {
            let idle = self.idle.notified();
            tokio::pin!(idle);
            // Registered before looking, so that the last step's end in between is not missed.
            idle.as_mut().enable();
            if self.live.load(Ordering::SeqCst) == 0 {
                return;
            }
            idle.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn what_closes_stays_closed_and_idle_waits_for_the_last() {
        let gate = Gate::default();
        let mut standing = gate.standing();
        assert!(gate.refusal().is_none() && gate.idle().now_or_never().is_some());
        gate.started();
        gate.started();
        gate.leave("w0");
        gate.leave("w0");
        assert_eq!(*standing.borrow_and_update(), Standing::Leaving);
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
        assert_eq!(*standing.borrow_and_update(), Standing::Wedged(wedged));
        assert_eq!(gate.refusal().unwrap().code, Code::WorkerLeaving);
    }
}
