//! The seam of devices with memory of their own, to which work is handed without waiting for it.
//!
//! ```text
//! install   resolve(op) -> kernel                  open(memory) -> queue            split(program) -> copies are nodes
//! step      copy_in(tensor) -> device tensor       launch(kernel, operands) -> device tensors       at once, in order
//!           copy_out(device tensor) ┄┄┄> tensor    event ┄┄┄> all that was enqueued has ended           called back later
//! ```
//! A worker owns one device and its host. The device `cpu` is the host itself: its kernels are those of [`crate::cpu`],
//! they return host tensors at once, and no value is copied. Any other device implements [`Device`]. Its worker divides
//! the step part of each program between host and device (`split`): the device runs the nodes that it has kernels
//! for, and values that the other side reads are copied, by nodes of their own.
//!
//! Invariants
//! 1. Work takes effect in the order in which it was enqueued, as far as its results show: a launch reads what earlier
//!    launches and copies wrote. A device that works on several streams waits for events between them.
//! 2. Memory of a device tensor is used again only after everything enqueued that reads or writes it has ended.
//! 3. No call waits for the device, and nothing is lost: every callback is called exactly once, with a result or an
//!    error, even where the device fails or its queue is dropped.
//! 4. A launch returns before it can fail. If it fails, its results carry the failure, and so do the results of every
//!    launch that reads them.
//! 5. A device that will never work again fails whatever is enqueued with an error of code `wedged`. Its worker then
//!    refuses work and ends, and calls run elsewhere.

mod constants;
mod kinds;
mod measure;
mod side;
pub mod simgpu;
mod split;
pub mod suite;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use convoke_common::error::{Error, Result};
use convoke_common::memory::{Ledger, Pool, Purpose, SharedBlocks};
use convoke_common::world::Share;
use convoke_graph::graph::Attrs;
use convoke_graph::ops::{ConcreteOutputs, KernelSet, OpDef};
use convoke_graph::{DType, Shape, Tensor};
use smallvec::SmallVec;

pub use constants::ConstantCopies;
pub(crate) use constants::{UnwatchedKernels, copy_constants};
pub use kinds::{DeviceContext, DeviceKind, OwnedDevice, open, register};
pub(crate) use measure::speed;
pub(crate) use side::{Side, SideFacts, is_arithmetic, read_shape, side};
pub use split::DeviceNode;
pub(crate) use split::split;

/// A tensor in the memory of a device. Clones share the memory.
#[derive(Clone)]
pub struct DeviceTensor {
    /// The dtype of the elements.
    pub dtype: DType,
    /// The dimensions.
    pub shape: Shape,
    /// The memory, as the device's queue made it.
    pub buffer: Arc<dyn Any + Send + Sync>,
}

impl DeviceTensor {
    /// The type as text, as [`Tensor::signature`] writes it.
    pub fn signature(&self) -> String {
        let dims: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        format!("{}[{}]", self.dtype, dims.join(","))
    }
}

/// An operand of a launch.
pub enum DeviceOperand {
    /// An optional operand that is left out.
    Nothing,
    /// A host operand, as the op's definition declares it ([`convoke_graph::ops::Memory::Host`]).
    Host(Tensor),
    /// A tensor on the device. Where the launch is its last reader, no other clone of it is kept, so that its memory may
    /// be overwritten.
    Device(DeviceTensor),
}

/// A kernel that a device resolved; only the device that made it can run it.
pub type DeviceKernel = Arc<dyn Any + Send + Sync>;

/// The op of a node, for which a device is asked for a kernel.
pub struct DeviceOp<'a> {
    pub def: &'static OpDef,
    pub attrs: &'a Attrs,
    /// The dtypes of the operands; `None` for one that is left out.
    pub operands: &'a [Option<DType>],
    /// Number of results.
    pub outputs: usize,
}

/// The failure of a launch or a copy.
#[derive(Debug)]
pub struct DeviceFailure {
    /// The step node whose launch failed.
    pub node: u32,
    /// The error; `None` where the step was cancelled.
    pub error: Option<Error>,
}

/// Sees to what surrounds each kernel of a device that runs its kernels on compute threads.
pub trait KernelWatch: Send + Sync {
    /// Calls `run`, which runs the kernel of step node `node`.
    fn around(&self, node: u32, run: &mut dyn FnMut());
}

/// One step's work on a device.
pub struct DeviceStep {
    /// Set once the step is cancelled. A device that can take back work that it has not begun does so.
    pub cancel: Arc<AtomicBool>,
    pub watch: Arc<dyn KernelWatch>,
    failed: OnceLock<Arc<DeviceFailure>>,
    /// The node whose kernel runs; [`NO_NODE`] while none does.
    at_work: AtomicU32,
    /// The node whose tensor is copied; [`NO_NODE`] while none is.
    copies: AtomicU32,
}

/// The node index that stands for no node.
const NO_NODE: u32 = u32::MAX;

impl DeviceStep {
    /// A step with no work yet.
    pub fn new(cancel: Arc<AtomicBool>, watch: Arc<dyn KernelWatch>) -> DeviceStep {
        DeviceStep {
            cancel,
            watch,
            failed: OnceLock::new(),
            at_work: AtomicU32::new(NO_NODE),
            copies: AtomicU32::new(NO_NODE),
        }
    }

    /// Whether the step is cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    /// Notes that a kernel of the step runs; `None` once it has ended.
    pub fn works_at(&self, node: Option<u32>) {
        self.at_work
            .store(node.unwrap_or(NO_NODE), Ordering::Relaxed);
    }

    /// Notes that a tensor of the step is copied to the host, for this node; `None` once it is.
    pub fn copies_at(&self, node: Option<u32>) {
        self.copies
            .store(node.unwrap_or(NO_NODE), Ordering::Relaxed);
    }

    /// The node whose kernel runs, else the one whose tensor is copied, if either is so.
    pub fn at_work(&self) -> Option<u32> {
        let all = [&self.at_work, &self.copies].map(|node| node.load(Ordering::Relaxed));
        all.into_iter().find(|node| *node != NO_NODE)
    }

    /// Notes a failure; the first one is kept.
    pub fn fail(&self, failure: &Arc<DeviceFailure>) {
        let _ = self.failed.set(failure.clone());
    }

    /// The first failure that was noted.
    pub fn failure(&self) -> Option<&Arc<DeviceFailure>> {
        self.failed.get()
    }
}

/// One launch of a kernel.
pub struct DeviceLaunch<'a> {
    pub kernel: &'a DeviceKernel,
    pub step: &'a Arc<DeviceStep>,
    /// The step node that is launched.
    pub node: u32,
    pub operands: SmallVec<[DeviceOperand; 4]>,
    /// Dtypes and shapes of the results.
    pub outputs: &'a ConcreteOutputs,
}

/// The results of a launch, one for each result of the op.
pub type LaunchResults = SmallVec<[DeviceTensor; 2]>;

/// Called with the host copy of a device tensor, or with the failure of the launch that should have made it.
pub type CopiedCallback = Box<dyn FnOnce(std::result::Result<Tensor, Arc<DeviceFailure>>) + Send>;

/// Called once everything that was enqueued before has ended.
pub type EventCallback = Box<dyn FnOnce() + Send>;

/// The most work that a step or a session enqueues ahead of the device, in predicted nanoseconds: enqueued work may be
/// past recall. A single launch may take longer.
pub(crate) const AHEAD: u64 = 20_000_000;

/// One lease's queue at a device, with the device memory that the lease has reserved. The copies and launches of one
/// queue take effect in the order in which they were enqueued. No call waits for the device.
pub trait DeviceQueue: Send + Sync {
    /// Copies a host tensor to the device. The tensor is kept until the copy has ended.
    fn copy_in(&self, step: &Arc<DeviceStep>, node: u32, tensor: Tensor) -> DeviceTensor;

    /// Enqueues a launch; returns its results, which are not there yet.
    fn launch(&self, launch: DeviceLaunch<'_>) -> LaunchResults;

    /// Copies a tensor to the host, into memory of `pool`, and hands it to `then`.
    fn copy_out(
        &self,
        step: &Arc<DeviceStep>,
        node: u32,
        tensor: DeviceTensor,
        pool: &Pool,
        then: CopiedCallback,
    );

    /// Calls `then` once everything that was enqueued before has ended, callbacks included.
    fn event(&self, then: EventCallback);

    /// Called after a step was cancelled: work of cancelled steps that has not begun may end at once, without its turn.
    /// A device that can call nothing back does nothing.
    fn recall(&self) {}
}

/// A device with memory of its own.
pub trait Device: Send + Sync {
    /// The ops that [`Device::resolve`] may have a kernel for, with the dtypes of their first operands. The coordinator
    /// plans by this set: nodes of other ops are taken to run on the host. It has at least every op for which there is
    /// some kernel.
    fn kernels(&self) -> KernelSet;

    /// How small constants share blocks of the device's memory, from which the coordinator knows the most bytes that the
    /// ledger counts for constants. By default each counts with its own bytes.
    fn shared_blocks(&self) -> SharedBlocks {
        SharedBlocks::default()
    }

    /// FLOP/s of a matrix product and bytes/s of memory, where the device knows them; otherwise they are measured when
    /// the worker starts.
    fn speed(&self) -> Option<(f64, f64)> {
        None
    }

    /// The kernel of an op; `None` where the device has none, so that the op runs on the host.
    fn resolve(&self, op: &DeviceOp<'_>) -> Option<DeviceKernel>;

    /// Opens a queue that reserves `bytes` of device memory in `memory` for its life. Tensors beyond them are reserved
    /// one by one. The work of the queue is charged to `share`.
    fn open(
        &self,
        share: &Share,
        memory: &Ledger,
        purpose: Purpose,
        bytes: u64,
    ) -> Result<Arc<dyn DeviceQueue>>;
}
