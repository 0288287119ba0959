//! Why a tensor cannot be made or read.

use crate::dtype::DType;
use crate::tensor::text::layout::MOST_BYTES;

/// Why a tensor cannot be made or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// The shape's byte size exceeds the address space.
    #[error("shape {shape:?} of {dtype} is too large to allocate")]
    TooLarge { dtype: DType, shape: Vec<usize> },
    /// The allocator had no room.
    #[error("out of memory allocating {bytes} bytes")]
    OutOfMemory { bytes: usize },
    /// The bytes given do not fill the shape.
    #[error("shape {shape:?} of {dtype} needs {need} bytes, {got} given")]
    WrongLength {
        dtype: DType,
        shape: Vec<usize>,
        need: usize,
        got: usize,
    },
    /// The tensor holds another dtype.
    #[error("tensor is {have}, not {want}")]
    WrongDType { have: DType, want: DType },
    /// A bool tensor has a byte other than 0 and 1.
    #[error("a bool tensor holds a byte that is neither 0 nor 1")]
    NotBool,
    /// Bits of the last byte of a packed tensor belong to no element and are not zero.
    #[error("the last byte of a packed tensor holds more than its elements")]
    Padding,
    /// The bytes are no table of strings with their text, for this reason.
    #[error("the bytes are no tensor of strings: {reason}")]
    NotStrings { reason: &'static str },
    /// The strings of one tensor take more bytes than [`crate::text::MOST_BYTES`].
    #[error(
        "strings of {bytes} bytes are above the limit of {} bytes in one tensor",
        MOST_BYTES
    )]
    TooMuchText { bytes: usize },
    /// A number is not one of those that a narrow dtype has.
    #[error("element {at} is no number that {dtype} has")]
    NotInDType { at: usize, dtype: DType },
    /// The shape has more dimensions than [`MAX_RANK`](crate::tensor::MAX_RANK).
    #[error("rank {rank} is above the limit of 16")]
    Rank { rank: usize },
}
