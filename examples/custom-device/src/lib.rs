//! The kind of device `file`, whose memory is a file, and which computes with plain loops.
//!
//! It shows what a device has to do, and is of no other use. Its kernels add up in another order than those of the CPU,
//! so that it has a numerics profile of its own. Ops that it has no kernel for run on the host of its worker.
//!
//! ```text
//! worker ── copy in, launch, copy out, event ──> queue ┄┄ a thread, one task after the other ┄┄> memory (a file)
//! ```

mod kernels;
mod memory;
mod queue;

use std::sync::Arc;

use convoke::devices::{
    DTypeSet, Device, DeviceKernel, DeviceKind, DeviceOp, DeviceQueue, KernelSet, Ledger, Purpose,
    Share,
};
use convoke::{Code, DType, Error, Result};

use self::kernels::FileKernel;
use self::memory::FileMemory;
use self::queue::FileQueue;

/// The numerics profile of the device. It is to change whenever a kernel gives other bits, or there is a kernel more.
pub const PROFILE: &str = "example-file-1";

/// Registers the kind of device, so that workers of this process may have it.
pub fn register() -> Result<()> {
    let kind = DeviceKind::new("file", PROFILE, |_| Ok(Arc::new(FileDevice::open()?)));
    convoke::devices::register(kind)
}

/// A device with its memory.
pub struct FileDevice {
    memory: Arc<FileMemory>,
}

impl FileDevice {
    /// Opens a device with memory of its own, which is in the folder for temporary files, and is gone with the device.
    pub fn open() -> Result<FileDevice> {
        let memory = FileMemory::open().map_err(|e| {
            let msg = format!("the memory of the device cannot be opened: {e}");
            Error::new(Code::Io, msg).advise("give TMPDIR a folder in which files may be made")
        })?;
        Ok(FileDevice {
            memory: Arc::new(memory),
        })
    }
}

impl Device for FileDevice {
    fn kernels(&self) -> KernelSet {
        let floats: DTypeSet = [DType::F32].into_iter().collect();
        KernelSet::only(FileKernel::OPS.map(|(op, _)| (op, floats)))
    }

    fn resolve(&self, op: &DeviceOp<'_>) -> Option<DeviceKernel> {
        let kernel = FileKernel::resolve(op)?;
        Some(Arc::new(kernel))
    }

    fn open(
        &self,
        _: &Share,
        memory: &Ledger,
        purpose: Purpose,
        bytes: u64,
    ) -> Result<Arc<dyn DeviceQueue>> {
        let queue = FileQueue::start(self.memory.clone(), memory, purpose, bytes)?;
        Ok(Arc::new(queue))
    }
}
