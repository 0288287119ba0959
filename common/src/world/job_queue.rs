//! Jobs that wait for a thread: those of higher priority first, of equal priority in the order they came. Now and then
//! the oldest has its turn whatever its priority, so that none waits for ever.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Jobs that may wait: far above steps in flight of all leases together.
const MOST: usize = 1 << 16;
/// One turn of so many is the oldest job's.
const OLDEST: u64 = 8;

/// See the module.
pub struct JobQueue<T> {
    waiting: BTreeMap<(Reverse<i64>, u64), T>,
    /// The priorities of those that wait, by age.
    by_age: BTreeMap<u64, i64>,
    sequence: u64,
    turns: u64,
}

impl<T> Default for JobQueue<T> {
    fn default() -> Self {
        JobQueue {
            waiting: BTreeMap::new(),
            by_age: BTreeMap::new(),
            sequence: 0,
            turns: 0,
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
        self.waiting.insert((Reverse(priority), self.sequence), job);
        self.by_age.insert(self.sequence, priority);
        Ok(())
    }

    /// The job whose turn it is.
    pub fn pop(&mut self) -> Option<T> {
        self.turns += 1;
        if self.turns.is_multiple_of(OLDEST) {
            let (sequence, priority) = self.by_age.pop_first()?;
            return self.waiting.remove(&(Reverse(priority), sequence));
        }
        let ((_, sequence), job) = self.waiting.pop_first()?;
        self.by_age.remove(&sequence);
        Some(job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priority_comes_before_age() {
        let mut queue = JobQueue::default();
        for (priority, job) in [(1, "a"), (3, "b"), (1, "c"), (3, "d")] {
            assert_eq!(queue.push(priority, job), Ok(()));
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, ["b", "d", "a", "c"]);
    }

    #[test]
    fn none_waits_for_ever() {
        let mut queue = JobQueue::default();
        queue.push(0, "old").unwrap();
        let turns = (0..OLDEST).map(|_| {
            queue.push(9, "new").unwrap();
            queue.pop().unwrap()
        });
        let turns: Vec<_> = turns.collect();
        assert_eq!(
            turns.iter().filter(|t| **t == "old").count(),
            1,
            "{turns:?}"
        );
    }

    #[test]
    fn what_is_full_gives_back() {
        let mut queue = JobQueue::default();
        for _ in 0..MOST {
            assert_eq!(queue.push(0, "x"), Ok(()));
        }
        assert_eq!(queue.push(9, "y"), Err("y"));
    }
}
