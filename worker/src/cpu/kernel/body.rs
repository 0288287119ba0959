//! The implementation of an op, as the families give it.

use convoke_graph::Outputs;
use convoke_graph::ops::OpError;

use super::call::OpLaunch;
use super::failure::KernelFailure;
use crate::ops::RegisteredKernel;

/// An implementation of an op. It has captured all that does not depend on shapes and values.
pub(crate) enum KernelBody {
    Own(Box<dyn Fn(OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> + Send + Sync>),
    /// The kernel of a custom op.
    Custom(RegisteredKernel),
}

impl KernelBody {
    /// Runs the implementation on one launch.
    #[inline]
    pub fn run(&self, call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
        match self {
            KernelBody::Own(run) => run(call),
            KernelBody::Custom(custom) => {
                let _excused = call.launch.exec.excused();
                custom.run(call)
            }
        }
    }
}

/// The result of looking for the implementation of an op.
pub(crate) type FamilyAnswer = Result<KernelBody, OpError>;

/// Boxes a closure as an implementation.
pub(crate) fn body(
    f: impl Fn(OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> + Send + Sync + 'static,
) -> Result<KernelBody, OpError> {
    Ok(KernelBody::Own(Box::new(f)))
}
