//! Eager work of a client and a worker in one process: brief ops run on the client's own thread, and their results are
//! there as soon as the ops are issued. They cause no command, no report and no handle at the worker.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use convoke_common::ids::LeaseId;
use convoke_graph::graph::Attrs;
use convoke_graph::{DType, Outputs, Tensor};

/// A client's session at a worker of its own process.
pub trait DirectSession: Send + Sync {
    /// Resolves an op for operands of these dtypes; `None` if such an op never runs directly.
    fn resolve(
        &self,
        op: &str,
        attrs: &Attrs,
        operands: &[Option<DType>],
        outputs: u8,
    ) -> Option<Arc<dyn DirectOp>>;
    /// The value of a handle, if it has been computed already.
    fn value(&self, handle: u64) -> Option<Tensor>;
    /// Copies a small value into memory of the session; `None` if the value is to be sent instead.
    fn own(&self, value: &Tensor) -> Option<Tensor>;
    /// The function of a lease that the client has at this worker; `None` if it has no such lease.
    fn function(&self, lease: LeaseId) -> Option<Arc<dyn DirectFunction>>;
    /// The number of handles of the client that the session does not know.
    fn handles(&self) -> Arc<AtomicU64>;
}

/// An op that was resolved for its operands' dtypes.
pub trait DirectOp: Send + Sync {
    /// Runs the op; `None`, without any effect, if it is to be issued as a command instead: because it takes long, it
    /// fails, or the worker takes no work.
    fn run(&self, inputs: &[Option<&Tensor>]) -> Option<Outputs>;
}

/// A recv slot of a lease, and the number that is fed to it as a tensor. A number stands for a handle: operands are
/// numbered from 0 on, then results.
pub type Number = (u32, Tensor);

/// A function whose lease has this one worker.
pub trait DirectFunction: Send + Sync {
    /// Runs the function; `None` if it is to run as an ordinary step instead, as for [`DirectOp::run`].
    fn run(&self, numbers: &[Number], operands: &[&Tensor], results: usize) -> Option<Outputs>;
}
