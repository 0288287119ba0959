//! Where kernels run: a seam, since threads and the time that kernels take are ambient.
//!
//! Invariants:
//! 1. Compute is shared fairly between accounts, and between the leases of each ([`super::FairQueue`]); of one lease's jobs the
//!    highest priority runs first, and equal priorities run in the order submitted.
//! 2. The queue is bounded; a refused job goes back to the submitter, which may run it itself.
//! 3. A panicking job takes neither its thread nor another job with it. Reporting it is the job's business: whoever
//!    wants to know wraps the work in `catch_unwind`.

use std::time::Duration;

use super::share::Share;
use crate::rpc::ComputeUse;

/// A piece of work.
pub type Job = Box<dyn FnOnce() + Send + 'static>;

/// What waking a sleeping thread takes, at least: 25 to 50 µs were measured.
const THREAD_WAKE: Duration = Duration::from_micros(20);

/// Why a job was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The queue holds as many jobs as it may.
    Full,
    /// The pool is shutting down, or there is none.
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
    /// How many threads a kernel may split over.
    fn threads(&self) -> usize;

    /// FLOP/s of a matrix product on all threads, and bytes/s of a copy: plans are balanced by them.
    fn speed(&self) -> (f64, f64);

    /// Queues a job of `share`; of its jobs a higher `priority` starts earlier.
    fn submit(&self, share: &Share, priority: i64, job: Job) -> Result<(), RefusedJob>;

    /// As [`Compute::submit`]; calls `begin` once a thread has the job, right before it. Where time is virtual it passes
    /// between the two.
    fn submit_begun(
        &self,
        share: &Share,
        priority: i64,
        begin: Job,
        job: Job,
    ) -> Result<(), RefusedJob> {
        let both = move || {
            begin();
            job();
        };
        self.submit(share, priority, Box::new(both))
    }

    /// Whether work of `share` that takes about so long may run at once on the thread that has its operands. It may not where
    /// others wait for compute and the share has had its part; it is queued then.
    fn admits(&self, _share: &Share, _time: Duration) -> bool {
        true
    }

    /// Who runs, and who waits behind whom, the longest first.
    fn turns(&self) -> Vec<ComputeUse> {
        vec![]
    }

    /// What it takes to start a job: work that is predicted to be briefer runs on the thread that has its operands.
    fn wake(&self) -> Duration {
        THREAD_WAKE
    }

    /// Kernels that one job may run before it queues up again for the rest, at least one. Threads gain nothing by
    /// giving way; where time is virtual it passes only between jobs.
    fn slice(&self) -> usize {
        usize::MAX
    }

    /// Called right before each kernel, where a panic counts as the kernel's own: in steps only where [`hears_launches`] says
    /// so, for every node that the kernel is.
    ///
    /// [`hears_launches`]: Compute::hears_launches
    fn launching(&self, _node: &str) {}

    /// Whether it wants to be told of launches.
    fn hears_launches(&self) -> bool {
        false
    }
}

/// The compute of a process that runs no kernels: it takes no job.
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
