//! The handle by which a worker knows a value of this process.
//!
//! Invariants
//! 1. The worker is told of the value at most once.
//! 2. A handle that the worker was told of is freed once, even where it is freed while somebody else tells the worker.

use std::sync::PoisonError;

use crate::primitives::{Mutex, MutexGuard};

/// The number of a value's handle at the worker, if the worker was told of the value.
#[derive(Default)]
pub(crate) struct ToldHandle(Mutex<HandleState>);

#[derive(Default, Clone, Copy)]
enum HandleState {
    #[default]
    Untold,
    Told(u64),
    Freed(u64),
}

impl ToldHandle {
    fn state(&self) -> MutexGuard<'_, HandleState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the handle. The first time, `tell` tells the worker of the value.
    pub fn told<E>(&self, tell: impl FnOnce() -> Result<u64, E>) -> Result<u64, E> {
        let mut state = self.state();
        match *state {
            HandleState::Untold => {
                let id = tell()?;
                *state = HandleState::Told(id);
                Ok(id)
            }
            HandleState::Told(id) | HandleState::Freed(id) => Ok(id),
        }
    }

    /// Takes the handle to free it; `None` where the worker knows of none, or it was taken before.
    pub fn take(&self) -> Option<u64> {
        let mut state = self.state();
        match *state {
            HandleState::Told(id) => {
                *state = HandleState::Freed(id);
                Some(id)
            }
            HandleState::Untold | HandleState::Freed(_) => None,
        }
    }

    /// Whether the worker was told of a value that nobody else has, so that no lock is taken.
    pub fn was_told(&mut self) -> bool {
        let state = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        !matches!(state, HandleState::Untold)
    }
}
