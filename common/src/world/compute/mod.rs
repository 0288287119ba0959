//! The seam for kernels: threads, and the time that kernels take, are ambient.
//!
//! Invariants:
//! 1. Compute is shared fairly between accounts, and between the leases of each ([`FairQueue`]). Among the jobs of one
//!    lease the highest priority runs first, and jobs of equal priority run in the order in which they were submitted.
//! 2. The queue is bounded; a refused job goes back to the submitter, which may run it itself.
//! 3. A panicking job ends neither its thread nor another job. A job that must report its panic wraps its work in
//!    `catch_unwind`.

mod fair_queue;
mod job_queue;
mod share;

use std::time::Duration;

use convoke_graph::ids::FunctionId;

pub use fair_queue::{CREDIT, FairQueue, Rival, STEP_TURN};
pub use share::{AccountId, ComputeUse, Share};

/// A piece of work.
pub type Job = Box<dyn FnOnce() + Send + 'static>;

/// Called when a thread takes a job. Returns whether there is still anything to do: if not, the job is dropped and does
/// not run.
pub type Begin = Box<dyn FnOnce() -> bool + Send + 'static>;

/// The least time that it takes to wake a sleeping thread, and to be woken by it.
const BRIEF: Duration = Duration::from_micros(40);

/// Why a job was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The queue is full.
    Full,
    /// The pool is shutting down, or the process has none.
    Closed,
}

/// A job that was not queued, returned to its submitter.
pub struct RefusedJob {
    /// The job, which did not run.
    pub job: Job,
    /// Why the job was not queued.
    pub reason: Refusal,
}

impl std::fmt::Debug for RefusedJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RefusedJob")
            .field("reason", &self.reason)
            .finish_non_exhaustive()
    }
}

/// The compute of a process: the threads that run kernels.
pub trait Compute: Send + Sync {
    /// Over how many threads a kernel may be split.
    fn threads(&self) -> usize;

    /// The FLOP/s of a matrix product on all threads, and the bytes/s of a copy; the planner balances plans by these.
    fn speed(&self) -> (f64, f64);

    /// Queues a job of `share`; among the jobs of one share, those of higher `priority` start earlier.
    fn submit(&self, share: &Share, priority: i64, job: Job) -> Result<(), RefusedJob>;

    /// Like [`Compute::submit`]; also calls `begin` when a thread takes the job, right before it runs, unless `begin` says
    /// that nothing is left to do. In simulation, virtual time passes between `begin` and the job.
    fn submit_begun(
        &self,
        share: &Share,
        priority: i64,
        begin: Begin,
        job: Job,
    ) -> Result<(), RefusedJob> {
        let both = move || {
            if begin() {
                job();
            }
        };
        self.submit(share, priority, Box::new(both))
    }

    /// Tells whether work of `share` that takes about `time` may run at once on the thread that has its operands. It may
    /// not if others wait for compute and the share has already had its part; the work must be queued then.
    fn admits(&self, _share: &Share, _time: Duration) -> bool {
        true
    }

    /// The leases and sessions whose jobs run, then those whose jobs wait; within each kind the one that has run or
    /// waited longest comes first.
    fn turns(&self) -> Vec<ComputeUse> {
        vec![]
    }

    /// The longest time of work that runs on the thread that has its operands, since it would take longer to hand it to
    /// other threads and to hear of its end.
    fn brief(&self) -> Duration {
        BRIEF
    }

    /// How many kernels, at least one, a job may run before it is queued again for the rest. Real threads gain nothing
    /// by giving way; virtual time passes only between jobs.
    fn slice(&self) -> usize {
        usize::MAX
    }

    /// Called right before each kernel, once for every node of the kernel, where a panic counts as the kernel's own. Ops
    /// outside of functions have the default id. Steps call it only if [`hears_launches`] is true.
    ///
    /// [`hears_launches`]: Compute::hears_launches
    fn launching(&self, _function: &FunctionId, _node: &str) {}

    /// Whether steps are to call [`Compute::launching`].
    fn hears_launches(&self) -> bool {
        false
    }
}

/// The compute of a process that runs no kernels: it refuses every job.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoCompute;

impl Compute for NoCompute {
    fn threads(&self) -> usize {
        0
    }

    fn speed(&self) -> (f64, f64) {
        (0.0, 0.0)
    }

    fn submit(&self, _: &Share, _: i64, job: Job) -> Result<(), RefusedJob> {
        let reason = Refusal::Closed;
        Err(RefusedJob { job, reason })
    }
}
