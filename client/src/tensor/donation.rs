//! Which call a tensor is promised or donated to.
//!
//! ```text
//! free ──promise──> promised ──give──> donated, for good
//!  ^──withdraw────────┘
//! ```
//!
//! Invariant: of the calls that take a tensor at once, one has its promise; a tensor that was donated is promised to
//! nobody any more.

use std::panic::Location;

use crate::primitives::{AtomicBool, OnceLock, Ordering};

/// The call that has a tensor, or is promised it.
pub(super) struct Donation {
    promised: AtomicBool,
    /// The line of the call that the tensor was donated to.
    given: OnceLock<&'static Location<'static>>,
}

impl Donation {
    /// A tensor that no call has.
    pub fn none() -> Donation {
        Donation {
            promised: AtomicBool::new(false),
            given: OnceLock::new(),
        }
    }

    /// The line of the call that the tensor was donated to.
    pub fn given(&self) -> Option<&'static Location<'static>> {
        self.given.get().copied()
    }

    /// Promises the tensor; returns `false` where another call has it or its promise.
    pub fn promise(&self) -> bool {
        !self.promised.swap(true, Ordering::AcqRel)
    }

    /// Donates the tensor to the call at this line, which has its promise. A call that runs again was given it before.
    pub fn give(&self, at: &'static Location<'static>) {
        let _ = self.given.set(at);
    }

    /// Takes back the promise of a call, unless the tensor was given to that call.
    pub fn withdraw(&self) {
        if self.given().is_none() {
            self.promised.store(false, Ordering::Release);
        }
    }
}
