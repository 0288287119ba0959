//! Products of matrices.
//!
//! Made from the registry by `tests/op_api`, which also checks that it follows it: with
//! `CONVOKE_WRITE_OPS=1` in the environment it writes this file.

use convoke_common::error::Result;

use crate::tensor::options;
use crate::tensor::{Tensor, call};

/// Products of matrices.
impl Tensor {
    /// Determinants of the matrices X \[.., M, M\]: \[..\].
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn det(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Det", attrs, &operands)
    }

    /// alpha * A \[M, K\] times B \[K, N\], either transposed on demand, plus beta * C: \[M, N\].
    ///
    /// - `self`: operand A, numbers
    /// - `b`: operand B, numbers
    /// - `c`: operand C, numbers, may be left out
    /// - `with`: further attributes
    #[track_caller]
    pub fn gemm(
        &self,
        b: &Tensor,
        c: Option<&Tensor>,
        with: impl Into<Option<options::Gemm>>,
    ) -> Result<Tensor> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            ("alpha", call::float(with.alpha)),
            ("beta", call::float(with.beta)),
            ("transA", call::flag(with.trans_a)),
            ("transB", call::flag(with.trans_b)),
        ]);
        let operands = [call::strict(self), call::strict(b), call::optional(c)];
        call::one("Gemm", attrs, &operands)
    }

    /// Inverses of the matrices X \[.., M, M\]: \[.., M, M\]. Where a pivot is zero, elements are not
    /// finite; rounding may hide that a matrix is singular.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn inverse(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Inverse", attrs, &operands)
    }

    /// A \[.., M, K\] times B \[.., K, N\], batches broadcast: \[.., M, N\].
    ///
    /// - `self`: operand A, numbers
    /// - `b`: operand B, numbers
    #[track_caller]
    pub fn matmul(&self, b: &Tensor) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self), call::strict(b)];
        call::one("MatMul", attrs, &operands)
    }
}
