//! What all kernels of the CPU share, whatever their family: the seam, a launch with its operands and failures, and the
//! arguments of an op's implementation.

pub(super) mod activation;
mod body;
mod call;
mod failure;
mod launch;
mod operands;
mod sizes;

pub(crate) use body::{FamilyAnswer, KernelBody, body};
pub(crate) use call::{OpLaunch, Spec, bits, one, operand, write, write_bits};
pub use failure::KernelFailure;
pub(crate) use failure::{caught, launch_error};
pub use launch::{Inputs, Kernel, Launch};
pub use operands::{MOST_SLOTS, OperandPlace, OperandRef, Operands, Register};
pub(crate) use sizes::{SizeKey, is_host};
