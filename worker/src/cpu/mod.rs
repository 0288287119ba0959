//! The CPU device: from ops of the graph to kernels over slices.
//!
//! ```text
//! resolve(op, attrs, dtypes) -> Kernel        once, at install: family -> dtype -> parsed attributes
//! Kernel::launch(inputs)     -> outputs       every step: sizes from the registry's rule, then the kernel
//! ```
//!
//! Invariants
//! 1. Output dtypes and shapes come from the registry's rule, which planning uses as well; a kernel decides a size only
//!    where it depends on data, as that of an op which is `sized_by_data` does.
//! 2. No value of an operand causes a panic: values that the registry's rule lets through are checked here or in the
//!    kernel, and refused with an error.
//! 3. A kernel overwrites an operand only if no one else holds its buffer.

mod cast;
pub(crate) mod chain;
mod control;
mod dispatch;
pub mod evaluate;
mod families;
#[cfg(test)]
mod hostile;
mod image;
mod kernel;
mod kernel_set;
mod packed;
mod resolution;
#[cfg(test)]
pub(crate) mod testing;
mod text;

pub use convoke_graph::Outputs;

pub(crate) use control::{Runs, Values, functions};
pub use families::{ChainRole, chain_role};
pub(crate) use families::{shape_between, shape_range};
pub(crate) use kernel::{
    FamilyAnswer, KernelBody, OpLaunch, SizeKey, Spec, caught, is_host, launch_error, write,
};
pub use kernel::{
    Inputs, Kernel, KernelFailure, Launch, MOST_SLOTS, OperandPlace, OperandRef, Operands, Register,
};
pub use kernel_set::kernels;
pub use resolution::resolve;
