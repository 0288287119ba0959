//! Work that runs on a host, as the scenario outside the simulation sees it.

use std::cell::RefCell;
use std::fmt;

use tokio::sync::oneshot::{self, error::TryRecvError};

enum TaskState<T> {
    Runs(oneshot::Receiver<T>),
    Over(Option<T>),
}

/// Work that runs on a host. Dropping it does not end the work.
pub struct Task<T>(RefCell<TaskState<T>>);

impl<T> Task<T> {
    pub(super) fn new() -> (oneshot::Sender<T>, Task<T>) {
        let (tell, told) = oneshot::channel();
        (tell, Task(RefCell::new(TaskState::Runs(told))))
    }

    /// A task that is over without a result, because its host does not exist.
    pub(super) fn lost() -> Task<T> {
        Task(RefCell::new(TaskState::Over(None)))
    }

    /// Whether the task has ended, by itself or with its process.
    pub fn is_over(&self) -> bool {
        let mut seen = self.0.borrow_mut();
        let TaskState::Runs(told) = &mut *seen else {
            return true;
        };
        let over = match told.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Closed) => None,
            Err(TryRecvError::Empty) => return false,
        };
        *seen = TaskState::Over(over);
        true
    }

    /// Takes the task's result. It is `None` while the task runs, if the process ended first, and once it was taken.
    pub fn take(&self) -> Option<T> {
        match self.is_over() {
            true => match &mut *self.0.borrow_mut() {
                TaskState::Over(result) => result.take(),
                TaskState::Runs(_) => None,
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
