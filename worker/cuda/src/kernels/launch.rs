//! What a kernel of the device is, and the plan of one launch: its operands, calls, and the errors of operands that do
//! not fit.

use convoke_common::error::{Code, Error, Result};
use convoke_graph::ops::{ConcreteOutputs, OpError};
use convoke_graph::{DType, Tensor};
use convoke_worker::device::DeviceOp;

use super::args::{Arguments, OPERANDS};

/// Threads of a block, in every kernel.
pub const THREADS: u32 = 256;

/// The most blocks of a launch whose threads go on with further elements.
pub(super) const MOST_BLOCKS: usize = 1 << 16;

/// An operand of a launch.
pub enum OperandView<'a> {
    /// One that is left out.
    Nothing,
    /// One in host memory, as the op's definition has it.
    Host(&'a Tensor),
    /// One in device memory.
    Device(DType, &'a [usize]),
}

/// The operands and results that a kernel is planned for.
pub struct LaunchSignature<'a> {
    pub operands: &'a [OperandView<'a>],
    pub outputs: &'a ConcreteOutputs,
}

/// A place in the memory of an operand or result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The number of the operand or result.
    pub tensor: usize,
    /// Elements before the place.
    pub elements: i64,
}

/// One launch of a kernel's function. Addresses in `arguments` are filled in when memory is there.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The number of the function.
    pub function: usize,
    pub blocks: u32,
    pub arguments: Arguments,
    /// Where each operand of the kernel lies; `None` behind the last one.
    pub inputs: [Option<Place>; OPERANDS],
    pub output: Place,
    /// Whether the kernel may find elements of an operand that it cannot use, and says so by the word `fault`.
    pub faults: bool,
}

/// The work of a launch.
#[derive(Debug, Clone, PartialEq)]
pub enum Work {
    /// The result has the memory of operand 0.
    Share,
    /// These calls, in order, make the results.
    Calls(Vec<Call>),
}

/// A kernel of the device: what its sources need, and how it is called.
pub trait Template: Send + Sync {
    /// The source; `None` where every launch shares memory.
    fn source(&self) -> Option<String>;

    /// How many functions the source has, at most as many as [`FUNCTIONS`](super::FUNCTIONS).
    fn functions(&self) -> usize {
        1
    }

    /// The work of a launch.
    ///
    /// # Errors
    /// `kernel_failed` where the operands do not fit together.
    fn plan(&self, planned: &LaunchSignature<'_>) -> Result<Work>;
}

/// The dtype of operand `i`, where it is there.
pub(super) fn dtype_of(op: &DeviceOp<'_>, i: usize) -> Option<DType> {
    op.operands.get(i).copied().flatten()
}

/// The number of blocks of threads for this many elements, with one thread each.
pub(super) fn blocks_for(elements: usize) -> u32 {
    elements.div_ceil(THREADS as usize).clamp(1, MOST_BLOCKS) as u32
}

/// The error of operands that do not fit.
pub(super) fn misfit(why: impl Into<String>) -> Error {
    Error::new(Code::KernelFailed, why.into())
}

/// The error of attributes or operands that an op's rules refuse.
pub(super) fn op_error(e: OpError) -> Error {
    misfit(e.to_string())
}

impl<'a> LaunchSignature<'a> {
    /// Dtype and shape of operand `i`, which must be in device memory.
    pub(super) fn device(&self, i: usize) -> Result<(DType, &'a [usize])> {
        match self.operands.get(i) {
            Some(OperandView::Device(dtype, shape)) => Ok((*dtype, shape)),
            _ => Err(misfit(format!("operand {i} is not on the device"))),
        }
    }

    /// Whether operand `i` is given.
    pub(super) fn is_given(&self, i: usize) -> bool {
        !matches!(self.operands.get(i), None | Some(OperandView::Nothing))
    }

    /// The integers of operand `i`, which is in host memory; `None` where it is left out.
    pub(super) fn ints(&self, i: usize) -> Result<Option<Vec<i64>>> {
        match self.operands.get(i) {
            Some(OperandView::Host(tensor)) => {
                let ints = tensor.to_i64s();
                Ok(Some(ints.ok_or_else(|| {
                    misfit(format!("operand {i} has no integers"))
                })?))
            }
            Some(OperandView::Device(..)) => Err(misfit(format!("operand {i} is not on the host"))),
            Some(OperandView::Nothing) | None => Ok(None),
        }
    }

    /// The shape of result `i`.
    pub(super) fn output(&self, i: usize) -> Result<&'a [usize]> {
        let output = self.outputs.get(i).map(|(_, shape)| shape.as_slice());
        output.ok_or_else(|| misfit(format!("there is no result {i}")))
    }
}

/// The number of elements of a shape that fits in memory.
pub(super) fn count(shape: &[usize]) -> usize {
    shape.iter().product()
}

impl Call {
    /// Has the kernel read operand `i` too, where it is given.
    pub(super) fn reads(&mut self, i: usize, given: bool) {
        self.inputs[i] = given.then_some(Place {
            tensor: i,
            elements: 0,
        });
    }

    /// A call that reads the first `operands` operands from their beginning and makes result 0.
    pub(super) fn of(blocks: u32, arguments: Arguments, operands: usize) -> Call {
        let input = |i| {
            (i < operands).then_some(Place {
                tensor: i,
                elements: 0,
            })
        };
        Call {
            function: 0,
            blocks,
            arguments,
            inputs: std::array::from_fn(input),
            output: Place {
                tensor: 0,
                elements: 0,
            },
            faults: false,
        }
    }
}

impl Work {
    /// One call.
    pub(super) fn one(call: Call) -> Work {
        Work::Calls(vec![call])
    }

    /// Nothing, for results without elements.
    pub(super) fn none() -> Work {
        Work::Calls(vec![])
    }
}
