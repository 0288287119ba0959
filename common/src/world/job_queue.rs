//! Jobs that wait for a thread: those of higher priority first, of equal priority in the order they came.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Jobs that may wait: far above steps in flight of all leases together.
const MOST: usize = 1 << 16;

/// See the module.
pub struct JobQueue<T> {
    waiting: BinaryHeap<Waiting<T>>,
    sequence: u64,
}

struct Waiting<T> {
    priority: i64,
    sequence: u64,
    job: T,
}

impl<T> Default for JobQueue<T> {
    fn default() -> Self {
        JobQueue {
            waiting: BinaryHeap::new(),
            sequence: 0,
        }
    }
}

impl<T> JobQueue<T> {
    /// Adds a job, or returns it where the queue is full.
    pub fn push(&mut self, priority: i64, job: T) -> Result<(), T> {
        if self.waiting.len() >= MOST {
            return Err(job);
        }
        self.sequence += 1;
        self.waiting.push(Waiting {
            priority,
            sequence: self.sequence,
            job,
        });
        Ok(())
    }

    /// The job whose turn it is.
    pub fn pop(&mut self) -> Option<T> {
        self.waiting.pop().map(|w| w.job)
    }
}

impl<T> Ord for Waiting<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        let order = self.priority.cmp(&other.priority);
        order.then(other.sequence.cmp(&self.sequence))
    }
}

impl<T> PartialOrd for Waiting<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Waiting<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T> Eq for Waiting<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priority_comes_before_age_and_what_is_full_gives_back() {
        let mut queue = JobQueue::default();
        for (priority, job) in [(1, "a"), (3, "b"), (1, "c"), (3, "d")] {
            assert_eq!(queue.push(priority, job), Ok(()));
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, ["b", "d", "a", "c"]);
        for _ in 0..MOST {
            assert_eq!(queue.push(0, "x"), Ok(()));
        }
        assert_eq!(queue.push(9, "y"), Err("y"));
    }
}
