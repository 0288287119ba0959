//! Eager work of a client and a worker in one process: brief ops run on the client's own thread, and their results are
//! there when they were issued. No command, no report and no handle at the worker comes of them.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use convoke_common::graph::Attrs;
use convoke_common::ids::LeaseId;
use convoke_common::{DType, Outputs, Tensor};

/// A client's session at a worker of its own process.
pub trait Direct: Send + Sync {
    /// Resolves an op for operands of these dtypes; `None` where it is never run so.
    fn resolve(
        &self,
        op: &str,
        attrs: &Attrs,
        operands: &[Option<DType>],
        outputs: u8,
    ) -> Option<Arc<dyn DirectOp>>;
    /// The value of a handle, where it is there already.
    fn value(&self, handle: u64) -> Option<Tensor>;
    /// A small value in memory of the session; `None` where it is to be sent.
    fn own(&self, value: &Tensor) -> Option<Tensor>;
    /// A lease of the client at this worker; `None` where it has none.
    fn function(&self, lease: LeaseId) -> Option<Arc<dyn DirectFunction>>;
    /// How many handles the client has that the session knows nothing of.
    fn handles(&self) -> Arc<AtomicU64>;
}

/// An op that is resolved.
pub trait DirectOp: Send + Sync {
    /// Runs it; `None` where it is to be issued instead: it takes long, it fails, or the worker takes no work. Then it
    /// has had no effect.
    fn run(&self, inputs: &[Option<&Tensor>]) -> Option<Outputs>;
}

/// A recv slot of a lease and the number of a handle that it is fed with: operands are numbered from 0 on, and then results.
pub type Number = (u32, Tensor);

/// A function that is installed at the one worker.
pub trait DirectFunction: Send + Sync {
    /// Runs it; `None` where it is to be a step as any other, as for [`DirectOp::run`].
    fn run(&self, numbers: &[Number], operands: &[&Tensor], results: usize) -> Option<Outputs>;
}
