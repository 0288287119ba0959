//! `simgpu`: runs the kernels of the CPU as a GPU would run its own.
//!
//! It has memory of its own, counted apart, in which a tensor is allocated when its turn comes, and poisoned when it is
//! freed. Work is deferred: it runs on the compute threads, a kernel at a time and in order, after the call that
//! enqueued it has returned. Copies to the host have a stream of their own, which waits for the event of the launch
//! that makes the copied tensor. A copy that reads memory before it is written is an internal error, so that a missing
//! wait is found. The numerics profile is that of the CPU.
//!
//! Nobody is faster with it. It shows without a GPU how a program runs with one, and it is the second implementation of
//! the seam.

mod queue;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use convoke_common::error::Result;
use convoke_common::memory::{Ledger, Pool, Purpose, SharedBlocks};
use convoke_common::world::{Compute, Share};
use convoke_graph::ops::{KernelSet, Op};

use self::queue::SimQueue;
use super::{Device, DeviceKernel, DeviceOp, DeviceQueue};
use crate::cpu;

/// The simulated GPU.
pub struct SimGpu {
    compute: Arc<dyn Compute>,
}

impl SimGpu {
    /// A simulated GPU whose kernels run on these compute threads.
    pub fn new(compute: Arc<dyn Compute>) -> SimGpu {
        SimGpu { compute }
    }
}

impl Device for SimGpu {
    fn kernels(&self) -> KernelSet {
        cpu::kernels()
    }

    fn shared_blocks(&self) -> SharedBlocks {
        Pool::SHARED_BLOCKS
    }

    /// Its kernels run on the compute threads.
    fn speed(&self) -> Option<(f64, f64)> {
        Some(self.compute.speed())
    }

    fn resolve(&self, op: &DeviceOp<'_>) -> Option<DeviceKernel> {
        // Control flow runs sub-functions and handles belong to sessions, on the host. So do the kernels of users.
        if matches!(op.def.op, Op::Control(_) | Op::Handle(_) | Op::Custom) {
            return None;
        }
        // An op that the CPU lacks is refused when the host is asked for its kernel.
        let kernel = cpu::resolve(op.def.name, op.attrs, op.operands, op.outputs).ok()?;
        Some(Arc::new(kernel))
    }

    fn open(
        &self,
        share: &Share,
        memory: &Ledger,
        purpose: Purpose,
        bytes: u64,
    ) -> Result<Arc<dyn DeviceQueue>> {
        let pool = Pool::new(memory, purpose, bytes)?;
        Ok(SimQueue::new(
            self.compute.clone(),
            share.clone(),
            pool,
            bytes,
        ))
    }
}
