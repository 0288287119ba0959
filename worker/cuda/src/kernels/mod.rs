//! The kernels of the device: for an op with its attributes and dtypes, a source, and how a launch calls it.
//!
//! A source is the prelude, a few definitions that the op decides, and the text of its family. It depends on op, dtypes and
//! form only; shapes and attributes are arguments. So there are few sources, and each is compiled once for an architecture.
//!
//! ```text
//! elementwise   unary, binary, comparisons, choice, casts        one thread per element
//! movement      views, strided copies, gather                    one thread per element
//! product       MatMul, Gemm, FusedGemm                          tiles, ascending over K
//! attention     FusedAttention                                   a block per four rows of queries, keys ascending
//! blocks        MatMulNBits                                      tiles, or one thread per element
//! conv          Conv, FusedConv                                  tiles, ascending over channels and taps
//! pool          pools over windows                               one thread per element
//! tiles         the tiles of products and convolutions
//! rotary        RotaryEmbedding                                  one thread per element
//! rows          reductions, softmax, normalisations, planes      a block per row, a fixed tree
//! ```

mod activation;
pub mod args;
mod attention;
mod blocks;
mod conv;
mod elementwise;
pub mod listing;
mod movement;
mod pool;
mod product;
mod rotary;
mod rows;
mod tiles;
mod window;

use std::ffi::CStr;

use convoke_common::error::{Code, Error, Result};
use convoke_graph::ops::{ConcreteOutputs, Op, OpError};
use convoke_graph::{DType, Tensor};
use convoke_worker::device::DeviceOp;

use self::args::{Arguments, OPERANDS};

/// Threads of a block, in every kernel.
pub const THREADS: u32 = 256;

/// The names of the functions of a source, by their numbers. Most sources have one.
pub const FUNCTIONS: [&CStr; 5] = [
    c"convoke_0",
    c"convoke_1",
    c"convoke_2",
    c"convoke_3",
    c"convoke_4",
];

/// The most blocks of a launch whose threads go on with further elements.
const MOST_BLOCKS: usize = 1 << 16;

/// The text that every source begins with.
const PRELUDE: &str = include_str!("prelude.cu");

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

    /// How many functions the source has, at most as many as [`FUNCTIONS`].
    fn functions(&self) -> usize {
        1
    }

    /// The work of a launch.
    ///
    /// # Errors
    /// `kernel_failed` where the operands do not fit together.
    fn plan(&self, planned: &LaunchSignature<'_>) -> Result<Work>;
}

/// The kernel of an op; `None` where the device has none, so that the op runs on the host.
pub fn template(op: &DeviceOp<'_>) -> Option<Box<dyn Template>> {
    let found = match op.def.op {
        Op::Unary(unary) => elementwise::unary(unary, op).or_else(|| movement::identity(unary, op)),
        Op::Binary(binary) => elementwise::binary(binary, op),
        Op::Shape(shape) => movement::view(shape, op),
        Op::Movement(moves) => movement::transposition(moves, op),
        Op::Slice(slice) => movement::slices(slice, op),
        Op::Index(index) => movement::gather(index, op),
        Op::MatMul(product) => product::plain(product, op),
        Op::Fused(fused) => product::fused(fused, op)
            .or_else(|| conv::fused(fused, op))
            .or_else(|| attention::fused(fused, op)),
        Op::Conv(convolution) => conv::plain(convolution, op),
        Op::Pool(pool) => pool::pool(pool, op),
        Op::Quantised(quantised) => blocks::product(quantised, op),
        Op::Reduce(reduce) => rows::reduction(reduce, op),
        Op::Norm(norm) => rows::normalisation(norm, op),
        Op::Position(position) => rotary::position(position, op),
        // Named one by one, so that an op of a new family is decided about here.
        Op::Control(_)
        | Op::Custom
        | Op::Handle(_)
        | Op::Learn(_)
        | Op::Random(_)
        | Op::Recurrent(_)
        | Op::Resize(_)
        | Op::Scan(_)
        | Op::Signal(_)
        | Op::Text(_)
        | Op::Vision(_) => None,
    };
    found.filter(|_| op.outputs == 1 || matches!(op.def.op, Op::Slice(_)))
}

/// The name in a source of a dtype that kernels can move; `None` for those that share bytes or have lengths of their own.
fn type_name(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::F32 => "f32",
        DType::F64 => "f64",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::I8 => "i8",
        DType::I16 => "i16",
        DType::I32 => "i32",
        DType::I64 => "i64",
        DType::U8 | DType::Bool => "u8",
        DType::U16 => "u16",
        DType::U32 => "u32",
        DType::U64 => "u64",
        _ => return None,
    })
}

/// The name of the type of this size that copies move.
fn moved_as(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::F8E4M3FN | DType::F8E4M3FNUZ | DType::F8E5M2 | DType::F8E5M2FNUZ | DType::F8E8M0 => {
            "u8"
        }
        other => match Tensor::size_of(other, &[1]).ok()? {
            _ if type_name(other).is_none() => return None,
            1 => "u8",
            2 => "u16",
            4 => "u32",
            _ => "u64",
        },
    })
}

/// Whether elements are computed in f32.
fn in_f32(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// The dtype of operand `i`, where it is there.
fn dtype_of(op: &DeviceOp<'_>, i: usize) -> Option<DType> {
    op.operands.get(i).copied().flatten()
}

/// A source: the prelude, definitions of names by their texts, and a family's text.
fn source(definitions: &[(&str, &str)], family: &str) -> String {
    let mut text = format!("#define ARGUMENTS {}\n{PRELUDE}\n", size_of::<Arguments>());
    for (name, value) in definitions {
        text.push_str(&format!("#define {name} {value}\n"));
    }
    text.push_str(family);
    text
}

/// The number of blocks of threads for this many elements, with one thread each.
fn blocks_for(elements: usize) -> u32 {
    elements.div_ceil(THREADS as usize).clamp(1, MOST_BLOCKS) as u32
}

/// The error of operands that do not fit.
fn misfit(why: impl Into<String>) -> Error {
    Error::new(Code::KernelFailed, why.into())
}

fn op_error(e: OpError) -> Error {
    misfit(e.to_string())
}

impl<'a> LaunchSignature<'a> {
    /// Dtype and shape of operand `i`, which must be in device memory.
    fn device(&self, i: usize) -> Result<(DType, &'a [usize])> {
        match self.operands.get(i) {
            Some(OperandView::Device(dtype, shape)) => Ok((*dtype, shape)),
            _ => Err(misfit(format!("operand {i} is not on the device"))),
        }
    }

    fn is_given(&self, i: usize) -> bool {
        !matches!(self.operands.get(i), None | Some(OperandView::Nothing))
    }

    /// The integers of operand `i`, which is in host memory; `None` where it is left out.
    fn ints(&self, i: usize) -> Result<Option<Vec<i64>>> {
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
    fn output(&self, i: usize) -> Result<&'a [usize]> {
        let output = self.outputs.get(i).map(|(_, shape)| shape.as_slice());
        output.ok_or_else(|| misfit(format!("there is no result {i}")))
    }
}

/// The number of elements of a shape that fits in memory.
fn count(shape: &[usize]) -> usize {
    shape.iter().product()
}

impl Call {
    /// Has the kernel read operand `i` too, where it is given.
    fn reads(&mut self, i: usize, given: bool) {
        self.inputs[i] = given.then_some(Place {
            tensor: i,
            elements: 0,
        });
    }

    /// A call that reads the first `operands` operands from their beginning and makes result 0.
    fn of(blocks: u32, arguments: Arguments, operands: usize) -> Call {
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
    fn one(call: Call) -> Work {
        Work::Calls(vec![call])
    }

    /// Nothing, for results without elements.
    fn none() -> Work {
        Work::Calls(vec![])
    }
}
