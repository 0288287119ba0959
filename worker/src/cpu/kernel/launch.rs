//! The seam of the CPU's kernels: a [`Kernel`], and one [`Launch`] of it.

use convoke_common::memory::Pool;
use convoke_graph::Outputs;
use convoke_graph::ops::{ConcreteOperand, ConcreteOutputs};
use convoke_kernels::Exec;
use smallvec::SmallVec;

use super::failure::KernelFailure;
use super::operands::{Operands, Register};

/// One run of a kernel on operands.
pub struct Launch<'a> {
    /// The operands.
    pub inputs: Operands<'a>,
    /// Dtypes and shapes of the outputs, if they are known before the launch.
    pub sizes: Option<&'a ConcreteOutputs>,
    /// Threads and the cancel flag.
    pub exec: Exec<'a>,
    /// The pool that outputs and scratch memory come from.
    pub pool: &'a Pool,
}

/// Operands that the kernel may take; `None` for an optional one that is left out.
pub type Inputs = SmallVec<[Register; 2]>;

/// An op bound to attributes and operand dtypes. It can run any number of times, on any thread.
pub trait Kernel: Send + Sync {
    /// Runs the kernel on the launch's operands.
    fn launch(&self, launch: &mut Launch<'_>) -> Result<Outputs, KernelFailure>;

    /// Dtypes and shapes of the outputs for these operands, if dtypes, shapes and the given values of host operands
    /// decide them; `None` otherwise.
    fn sizes(&self, _operands: &[Option<ConcreteOperand<'_>>]) -> Option<ConcreteOutputs> {
        None
    }

    /// Dtypes and shapes of the outputs for these operands; fails where the op's rule refuses them, or where they do not
    /// decide the sizes.
    fn infer(
        &self,
        operands: &[Option<ConcreteOperand<'_>>],
    ) -> Result<ConcreteOutputs, KernelFailure> {
        let unknown = || KernelFailure::values("the sizes of the results are not known");
        self.sizes(operands).ok_or_else(unknown)
    }
}
