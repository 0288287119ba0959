//! Operands and results of ops.

use convoke_graph::Tensor as HostTensor;
use smallvec::SmallVec;

use super::Tensor;

/// An operand of an op.
pub enum Operand<'a> {
    /// A tensor on a device.
    Tensor(&'a Tensor),
    /// A value of this program, which travels with the op: shapes, axes, scalars.
    Value(HostTensor),
    /// An operand that is left out.
    None,
}

/// The results of an op.
pub(crate) type OpResults = SmallVec<[Tensor; 2]>;

impl<'a> From<&'a Tensor> for Operand<'a> {
    fn from(t: &'a Tensor) -> Operand<'a> {
        Operand::Tensor(t)
    }
}

impl From<HostTensor> for Operand<'_> {
    fn from(t: HostTensor) -> Self {
        Operand::Value(t)
    }
}
