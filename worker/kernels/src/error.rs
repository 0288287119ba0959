//! Why a kernel failed.

use crate::Cancelled;

/// A failure that depends on the data, or a cancellation. Outputs hold garbage afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// The step was cancelled.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
    /// An index points outside its axis.
    #[error("index {index} is out of range for axis {axis} of length {len}{}", valid_indices(*len))]
    IndexOutOfRange {
        /// The offending index, as the caller gave it.
        index: i64,
        /// Length of the indexed axis.
        len: usize,
        /// The indexed axis.
        axis: usize,
    },
    /// An integer was divided by zero.
    #[error("integer division by zero at element {element} of the divisor")]
    DivisionByZero {
        /// Flat position of the first zero in the divisor.
        element: usize,
    },
    /// A shape has more axes than the kernels handle.
    #[error("tensor of rank {rank} exceeds the {max} axes that kernels handle")]
    RankTooLarge {
        /// The rank of the given shape.
        rank: usize,
        /// The largest rank that kernels accept.
        max: usize,
    },
    /// A sequence length lies outside its axis.
    #[error("sequence length {length} of batch entry {batch} is outside 0..={max}")]
    SequenceLength {
        /// The given length.
        length: i64,
        /// The batch entry that the length belongs to.
        batch: usize,
        /// The length of the time axis.
        max: usize,
    },
    /// Reflect and wrap padding need data to copy.
    #[error(
        "cannot pad axis {axis} of length {len} by {pad} in this mode; constant mode has no such limit"
    )]
    PadTooLarge {
        /// The padded axis.
        axis: usize,
        /// The length of that axis.
        len: usize,
        /// The requested amount of padding, in elements.
        pad: i64,
    },
    /// A walk through a tree came to a node that is none, leads back, or compares what is not there.
    #[error("node {node} of the trees is none, or leads back, or to no feature, leaf or target")]
    BrokenTree {
        /// The number of the node; that of the nodes where a leaf is meant.
        node: usize,
    },
}

/// The indices that an axis of this length has, from the front and from the back.
fn valid_indices(len: usize) -> String {
    match len.checked_sub(1) {
        Some(last) => format!("; valid indices are -{len} to {last}"),
        None => String::new(),
    }
}

/// The result of a kernel: nothing, or why it failed.
pub type Result<T = ()> = std::result::Result<T, KernelError>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_told_with_those_that_are_there() {
        let told = |index, len| {
            let axis = 1;
            KernelError::IndexOutOfRange { index, len, axis }.to_string()
        };
        let outside = "index 3 is out of range for axis 1 of length";
        assert_eq!(
            told(3, 3),
            format!("{outside} 3; valid indices are -3 to 2")
        );
        assert_eq!(told(3, 0), format!("{outside} 0"));
    }
}
