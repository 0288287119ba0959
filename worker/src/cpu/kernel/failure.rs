//! Why a launch has no result, and how a panic within a kernel becomes such a failure.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use convoke_common::{Code, Error};
use convoke_graph::ops::OpError;
use convoke_graph::tensor::TensorError;
use convoke_kernels::{Cancelled, KernelError};

/// The reason why a launch has no result.
#[derive(Debug, thiserror::Error)]
pub enum KernelFailure {
    /// The step was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// The error. It is boxed because it is large, and results are passed on often.
    #[error(transparent)]
    Error(Box<Error>),
}

impl KernelFailure {
    /// A failure with this message, for [`CustomKernel::run`](crate::ops::CustomKernel::run).
    pub fn new(message: impl Into<String>) -> KernelFailure {
        KernelFailure::values(message)
    }

    /// The failure of a kernel that has no result for the values of its operands.
    pub(crate) fn values(message: impl Into<String>) -> KernelFailure {
        Error::new(Code::KernelFailed, message).into()
    }
}

impl From<Error> for KernelFailure {
    fn from(e: Error) -> KernelFailure {
        KernelFailure::Error(Box::new(e))
    }
}

impl From<Cancelled> for KernelFailure {
    fn from(_: Cancelled) -> KernelFailure {
        KernelFailure::Cancelled
    }
}

impl From<KernelError> for KernelFailure {
    fn from(e: KernelError) -> KernelFailure {
        match e {
            KernelError::Cancelled(_) => KernelFailure::Cancelled,
            e => KernelFailure::values(e.to_string()),
        }
    }
}

impl From<OpError> for KernelFailure {
    fn from(e: OpError) -> KernelFailure {
        KernelFailure::values(e.to_string())
    }
}

impl From<TensorError> for KernelFailure {
    fn from(e: TensorError) -> KernelFailure {
        Error::from(e).into()
    }
}

/// Calls `launch`, which runs a kernel. A panic in it becomes the kernel's failure.
#[inline(always)]
pub(crate) fn caught<T>(
    launch: impl FnOnce() -> Result<T, KernelFailure>,
) -> Result<T, KernelFailure> {
    match catch_unwind(AssertUnwindSafe(launch)) {
        Ok(launched) => launched,
        Err(panic) => Err(panicked(&*panic)),
    }
}

#[cold]
fn panicked(panic: &(dyn Any + Send)) -> KernelFailure {
    let why = panic
        .downcast_ref::<&str>()
        .map(|s| s.to_string())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".into());
    let msg = format!("the kernel panicked: {why}");
    KernelFailure::Error(Box::new(Error::new(Code::KernelPanicked, msg)))
}

/// The error of a launch that failed, or gave too few results; `None` where it was cancelled.
#[cold]
pub(crate) fn launch_error<T>(launched: Result<T, KernelFailure>) -> Option<Error> {
    match launched {
        Ok(_) => Some(Error::internal("a kernel left results out")),
        Err(KernelFailure::Cancelled) => None,
        Err(KernelFailure::Error(e)) => Some(*e),
    }
}
