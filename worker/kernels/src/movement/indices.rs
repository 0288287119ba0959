//! Index tensors.

use crate::Exec;
use crate::error::{KernelError, Result};
use crate::multiversion::multiversion;
use crate::split::PIECE;

/// The elements of an index tensor, which ONNX allows in two types.
#[derive(Debug, Clone, Copy)]
pub enum Indices<'a> {
    /// 32-bit indices.
    I32(&'a [i32]),
    /// 64-bit indices.
    I64(&'a [i64]),
}

/// An index of one of the types that ONNX allows.
pub(super) trait Index: Copy + Send + Sync {
    /// The index as the tensor has it.
    fn wide(self) -> i64;
}

impl Index for i32 {
    #[inline(always)]
    fn wide(self) -> i64 {
        self.into()
    }
}

impl Index for i64 {
    #[inline(always)]
    fn wide(self) -> i64 {
        self
    }
}

/// The element of an axis of length `len` that an index addresses, which counts from the end of the axis where it is
/// negative. The index must have been checked.
#[inline(always)]
pub(super) fn resolve(index: i64, len: usize) -> usize {
    let from_end = if index < 0 { len as i64 } else { 0 };
    index.wrapping_add(from_end) as usize
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
        resolve(self.get(at), len)
    }

    /// Checks that every index addresses an element of an axis of length `len`.
    pub(super) fn check(&self, exec: &Exec, len: usize, axis: usize) -> Result {
        match self {
            Indices::I32(indices) => check(exec, indices, len, axis),
            Indices::I64(indices) => check(exec, indices, len, axis),
        }
    }
}

fn check<I: Index>(exec: &Exec, indices: &[I], len: usize, axis: usize) -> Result {
    for piece in indices.chunks(PIECE) {
        exec.check()?;
        if !are_within(piece, len) {
            for index in piece {
                check_index(index.wide(), len, axis)?;
            }
        }
    }
    Ok(())
}

multiversion! {
    /// Whether each index addresses an element of an axis of length `len`.
    pub(super) fn are_within<I: Index>(indices: &[I], len: usize) -> bool {
        let bound = if len > i64::MAX as usize { i64::MAX } else { len as i64 };
        let mut all = true;
        for i in 0..indices.len() {
            let index = indices[i].wide();
            all &= (index >= -bound) & (index < bound);
        }
        all
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
