//! Index tensors.

use crate::Exec;
use crate::error::{KernelError, Result};
use crate::split::PIECE;

/// The elements of an index tensor, which ONNX allows in two types.
#[derive(Debug, Clone, Copy)]
pub enum Indices<'a> {
    /// 32-bit indices.
    I32(&'a [i32]),
    /// 64-bit indices.
    I64(&'a [i64]),
}

impl Indices<'_> {
    /// Number of indices.
    pub fn len(&self) -> usize {
        match self {
            Indices::I32(indices) => indices.len(),
            Indices::I64(indices) => indices.len(),
        }
    }

    /// Whether the tensor has no indices.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The index at position `at`, as the tensor has it.
    pub(super) fn get(&self, at: usize) -> i64 {
        match self {
            Indices::I32(indices) => i64::from(indices[at]),
            Indices::I64(indices) => indices[at],
        }
    }

    /// The index at position `at`, counted from the end of the axis where it is negative. The index must have been
    /// checked.
    #[inline]
    pub(super) fn resolved(&self, at: usize, len: usize) -> usize {
        let index = self.get(at);
        (if index < 0 {
            index.wrapping_add(len as i64)
        } else {
            index
        }) as usize
    }

    /// Checks that every index addresses an element of an axis of length `len`.
    pub(super) fn check(&self, exec: &Exec, len: usize, axis: usize) -> Result {
        for at in 0..self.len() {
            if at.is_multiple_of(PIECE) {
                exec.check()?;
            }
            check_index(self.get(at), len, axis)?;
        }
        Ok(())
    }
}

/// Checks that `index` addresses an element of an axis of length `len`, from either end.
pub(super) fn check_index(index: i64, len: usize, axis: usize) -> Result {
    let bound = i64::try_from(len).unwrap_or(i64::MAX);
    if index < -bound || index >= bound {
        return Err(KernelError::IndexOutOfRange { index, len, axis });
    }
    Ok(())
}
