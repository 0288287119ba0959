//! A pool of threads for kernels.
//!
//! Invariants:
//! 1. The highest priority runs first; equal priorities run in the order submitted.
//! 2. The queue is bounded; a refused job goes back to the submitter, which may run it itself.
//! 3. A panicking job kills neither its thread nor another job. Reporting it is the job's business: whoever wants to
//!    know wraps the work in `catch_unwind`.
//! 4. After [`ComputePool::shutdown`] no job runs and no thread of the pool exists; queued jobs are dropped unrun.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A piece of work.
pub type Job = Box<dyn FnOnce() + Send + 'static>;

/// Why a job was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The queue holds as many jobs as it may.
    Full,
    /// The pool is shutting down.
    Closed,
}

/// A job that was not queued, given back.
pub struct RefusedJob {
    /// The job, not run.
    pub job: Job,
    /// Why.
    pub reason: Refusal,
}

impl std::fmt::Debug for RefusedJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RefusedJob")
            .field("reason", &self.reason)
            .finish_non_exhaustive()
    }
}

/// Where kernels run.
pub trait Compute: Send + Sync {
    /// How many jobs can run at once.
    fn threads(&self) -> usize;

    /// Queues a job; a higher `priority` starts earlier.
    fn submit(&self, priority: i64, job: Job) -> Result<(), RefusedJob>;
}

struct Queued {
    priority: i64,
    sequence: u64,
    job: Job,
}

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> Ordering {
        self.priority
            .cmp(&other.priority)
            .then(other.sequence.cmp(&self.sequence))
    }
}
impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Queued {}

struct Queue {
    jobs: BinaryHeap<Queued>,
    next_sequence: u64,
    /// Threads parked on `wake`: a submit makes the system call only when there is one.
    idle: usize,
    closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    threads: usize,
    bound: usize,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Jobs run outside the lock, so a poisoned queue is still a consistent one.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<Job> {
        let mut queue = self.lock();
        loop {
            if queue.closed {
                return None;
            }
            if let Some(queued) = queue.jobs.pop() {
                return Some(queued.job);
            }
            queue.idle += 1;
            queue = self
                .wake
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            if catch_unwind(AssertUnwindSafe(job)).is_err() {
                tracing::error!("a compute job panicked and did not report it");
            }
        }
    }
}

impl Compute for Shared {
    fn threads(&self) -> usize {
        self.threads
    }

    fn submit(&self, priority: i64, job: Job) -> Result<(), RefusedJob> {
        let wake = {
            let mut queue = self.lock();
            let reason = if queue.closed {
                Some(Refusal::Closed)
            } else if queue.jobs.len() >= self.bound {
                Some(Refusal::Full)
            } else {
                None
            };
            if let Some(reason) = reason {
                return Err(RefusedJob { job, reason });
            }
            let sequence = queue.next_sequence;
            queue.next_sequence += 1;
            queue.jobs.push(Queued {
                priority,
                sequence,
                job,
            });
            queue.idle > 0
        };
        if wake {
            self.wake.notify_one();
        }
        Ok(())
    }
}

/// The owner of the threads. Dropping it shuts the pool down and joins them.
pub struct ComputePool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl ComputePool {
    /// Starts `threads` threads named `name-0`, `name-1`, … with room for `queue` waiting jobs.
    #[allow(
        clippy::disallowed_methods,
        reason = "this is the seam that owns compute threads"
    )]
    pub fn start(name: &str, threads: NonZeroUsize, queue: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue {
                jobs: BinaryHeap::new(),
                next_sequence: 0,
                idle: 0,
                closed: false,
            }),
            wake: Condvar::new(),
            threads: threads.get(),
            bound: queue,
        });
        let mut pool = Self {
            shared: shared.clone(),
            threads: Vec::with_capacity(threads.get()),
        };
        for index in 0..threads.get() {
            let shared = shared.clone();
            let thread = std::thread::Builder::new()
                .name(format!("{name}-{index}"))
                .spawn(move || shared.work())?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// The pool as a [`World`](super::World) carries it; after shutdown it refuses every job.
    pub fn handle(&self) -> Arc<dyn Compute> {
        self.shared.clone()
    }

    /// Drops the queued jobs, lets the running ones finish and joins the threads.
    pub fn shutdown(self) {}
}

impl Drop for ComputePool {
    fn drop(&mut self) {
        let unrun = {
            let mut queue = self.shared.lock();
            queue.closed = true;
            std::mem::take(&mut queue.jobs)
        };
        self.shared.wake.notify_all();
        // Outside the lock: dropping a job may run code that submits another.
        drop(unrun);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a compute thread ended by a panic");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn pool(threads: usize, queue: usize) -> ComputePool {
        let threads = NonZeroUsize::new(threads).expect("at least one");
        ComputePool::start("test", threads, queue).expect("threads start")
    }

    /// Occupies the pool's one thread until the sender is used.
    fn block(compute: &Arc<dyn Compute>) -> mpsc::Sender<()> {
        let (release, released) = mpsc::channel();
        let (started, has_started) = mpsc::channel();
        let job = Box::new(move || {
            started.send(()).expect("test waits");
            let _ = released.recv();
        });
        compute.submit(0, job).expect("room");
        has_started.recv().expect("job runs");
        release
    }

    #[test]
    fn higher_priority_first_then_in_order() {
        let pool = pool(1, 16);
        let compute = pool.handle();
        let release = block(&compute);
        let (seen, order) = mpsc::channel();
        for (priority, name) in [(1, "a"), (5, "b"), (1, "c"), (5, "d")] {
            let seen = seen.clone();
            let job = Box::new(move || seen.send(name).expect("test waits"));
            compute.submit(priority, job).expect("room");
        }
        drop(seen);
        release.send(()).expect("job waits");
        assert_eq!(order.iter().collect::<Vec<_>>(), ["b", "d", "a", "c"]);
    }

    #[test]
    fn a_full_queue_gives_the_job_back() {
        let pool = pool(1, 1);
        let compute = pool.handle();
        let release = block(&compute);
        compute.submit(0, Box::new(|| ())).expect("room for one");
        let refused = compute.submit(0, Box::new(|| ())).expect_err("no room");
        assert_eq!(refused.reason, Refusal::Full);
        (refused.job)();
        release.send(()).expect("job waits");
    }

    #[test]
    fn a_panic_leaves_the_thread_alive() {
        let pool = pool(1, 16);
        let compute = pool.handle();
        compute
            .submit(0, Box::new(|| panic!("injected")))
            .expect("room");
        let (done, finished) = mpsc::channel();
        let job = Box::new(move || done.send(()).expect("test waits"));
        compute.submit(0, job).expect("room");
        finished.recv().expect("the thread survived");
    }

    #[test]
    fn shutdown_joins_and_drops_what_did_not_run() {
        let pool = pool(1, 16);
        let compute = pool.handle();
        let release = block(&compute);
        let (done, finished) = mpsc::channel::<()>();
        let job = Box::new(move || drop(done));
        compute.submit(0, job).expect("room");
        release.send(()).expect("job waits");
        pool.shutdown();
        assert!(finished.recv().is_err(), "run or dropped, never kept");
        let refused = compute.submit(0, Box::new(|| ())).expect_err("closed");
        assert_eq!(refused.reason, Refusal::Closed);
    }

    #[test]
    fn every_thread_works() {
        let pool = pool(3, 16);
        let compute = pool.handle();
        assert_eq!(compute.threads(), 3);
        let barrier = Arc::new(std::sync::Barrier::new(4));
        for _ in 0..3 {
            let barrier = barrier.clone();
            let job = Box::new(move || {
                barrier.wait();
            });
            compute.submit(0, job).expect("room");
        }
        barrier.wait();
    }
}
