//! The device: kernels by op, and queues.

use std::sync::Arc;

use convoke_common::error::Result;
use convoke_common::memory::{Ledger, Purpose};
use convoke_common::world::Share;
use convoke_graph::ops::KernelSet;
use convoke_worker::device::{Device, DeviceKernel, DeviceOp, DeviceQueue};

use crate::driver::Driver;
use crate::gpu::{CudaKernel, Gpu};
use crate::kernels::{listing, template};
use crate::queue::CudaQueue;

/// The GPU of a worker.
pub struct CudaDevice {
    gpu: Arc<Gpu>,
}

impl CudaDevice {
    /// The device behind a driver.
    pub fn new(driver: Arc<dyn Driver>) -> CudaDevice {
        CudaDevice {
            gpu: Arc::new(Gpu::new(driver)),
        }
    }
}

impl Device for CudaDevice {
    fn kernels(&self) -> KernelSet {
        listing::set()
    }

    /// A kernel that cannot be compiled is no reason to run the op elsewhere, since that would change its bits: the kernel
    /// is there, and its launches fail.
    fn resolve(&self, op: &DeviceOp<'_>) -> Option<DeviceKernel> {
        let template = template(op)?;
        let (source, count) = (template.source(), template.functions());
        let functions = source.map(|source| self.gpu.driver.functions(&source, count));
        Some(Arc::new(CudaKernel {
            template,
            functions,
        }))
    }

    fn open(
        &self,
        _: &Share,
        memory: &Ledger,
        purpose: Purpose,
        bytes: u64,
    ) -> Result<Arc<dyn DeviceQueue>> {
        if let Some(lost) = self.gpu.lost() {
            return Err(lost.clone());
        }
        let queue = CudaQueue::open(self.gpu.clone(), memory, purpose, bytes)?;
        Ok(Arc::new(queue))
    }
}
