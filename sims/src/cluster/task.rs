//! Work on a host, as the scenario outside sees it.

use std::cell::RefCell;
use std::fmt;

use tokio::sync::oneshot::{self, error::TryRecvError};

enum Seen<T> {
    Runs(oneshot::Receiver<T>),
    Over(Option<T>),
}

/// Work that runs on a host. Dropping it does not end the work.
pub struct Task<T>(RefCell<Seen<T>>);

impl<T> Task<T> {
    pub(super) fn new() -> (oneshot::Sender<T>, Task<T>) {
        let (tell, told) = oneshot::channel();
        (tell, Task(RefCell::new(Seen::Runs(told))))
    }

    /// Work whose host is not there.
    pub(super) fn lost() -> Task<T> {
        Task(RefCell::new(Seen::Over(None)))
    }

    /// Whether it has ended, with its process or by itself.
    pub fn is_over(&self) -> bool {
        let mut seen = self.0.borrow_mut();
        let Seen::Runs(told) = &mut *seen else {
            return true;
        };
        let over = match told.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Closed) => None,
            Err(TryRecvError::Empty) => return false,
        };
        *seen = Seen::Over(over);
        true
    }

    /// Its result; `None` while it runs, where its process ended first, and after it was taken.
    pub fn take(&self) -> Option<T> {
        match self.is_over() {
            true => match &mut *self.0.borrow_mut() {
                Seen::Over(result) => result.take(),
                Seen::Runs(_) => None,
            },
            false => None,
        }
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("over", &self.is_over())
            .finish()
    }
}
