//! The waiting jobs of one lease: higher priority goes first, and equal priorities go in the order of arrival. Every
//! few turns the oldest job goes first whatever its priority, so that no job waits for ever.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// One turn of this many goes to the oldest job.
const OLDEST: u64 = 8;

/// The waiting jobs of one lease. The owner bounds how many wait.
pub(super) struct JobQueue<T> {
    waiting: BTreeMap<(Reverse<i64>, u64), T>,
    /// The priorities of the waiting jobs, by age.
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
    /// Adds a job.
    pub(super) fn push(&mut self, priority: i64, job: T) {
        self.sequence += 1;
        self.waiting.insert((Reverse(priority), self.sequence), job);
        self.by_age.insert(self.sequence, priority);
    }

    /// Takes the job whose turn it is.
    pub(super) fn pop(&mut self) -> Option<T> {
        self.turns += 1;
        if self.turns.is_multiple_of(OLDEST) {
            let (sequence, priority) = self.by_age.pop_first()?;
            return self.waiting.remove(&(Reverse(priority), sequence));
        }
        let ((_, sequence), job) = self.waiting.pop_first()?;
        self.by_age.remove(&sequence);
        Some(job)
    }

    /// Takes out the first job for which `wanted` holds.
    pub(super) fn take(&mut self, wanted: impl Fn(&T) -> bool) -> Option<T> {
        let found = self.waiting.iter().find(|(_, job)| wanted(job));
        let key = *found?.0;
        self.by_age.remove(&key.1);
        self.waiting.remove(&key)
    }

    /// The waiting jobs, the most urgent first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.waiting.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priority_comes_before_age() {
        let mut queue = JobQueue::default();
        for (priority, job) in [(1, "a"), (3, "b"), (1, "c"), (3, "d")] {
            queue.push(priority, job);
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, ["b", "d", "a", "c"]);
    }

    #[test]
    fn none_waits_for_ever() {
        let mut queue = JobQueue::default();
        queue.push(0, "old");
        let turns = (0..OLDEST).map(|_| {
            queue.push(9, "new");
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
    fn what_is_taken_out_has_no_turn() {
        let mut queue = JobQueue::default();
        for job in ["a", "b", "c"] {
            queue.push(0, job);
        }
        assert_eq!(queue.take(|job| *job == "b"), Some("b"));
        assert_eq!(queue.take(|job| *job == "b"), None);
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, ["a", "c"]);
    }
}
