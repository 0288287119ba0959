//! Convolution.
//!
//! Made from the registry by `tests/op_api`, which also checks that it follows it: with
//! `CONVOKE_WRITE_OPS=1` in the environment it writes this file.

use convoke_common::error::Result;

use crate::tensor::options;
use crate::tensor::{Tensor, call};

/// Convolution.
impl Tensor {
    /// X \[N, C, ..\] convolved with W \[M, C/group, ..\], plus bias \[M\]: \[N, M, ..\].
    ///
    /// - `self`: operand X, floats
    /// - `w`: operand W, floats
    /// - `b`: operand B, floats, may be left out
    /// - `with`: further attributes
    #[track_caller]
    pub fn conv(
        &self,
        w: &Tensor,
        b: Option<&Tensor>,
        with: impl Into<Option<options::Conv>>,
    ) -> Result<Tensor> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            ("auto_pad", call::text(with.auto_pad.as_deref())),
            ("dilations", call::list(with.dilations)),
            ("group", call::int(with.group)),
            ("kernel_shape", call::list(with.kernel_shape)),
            ("pads", call::list(with.pads)),
            ("strides", call::list(with.strides)),
        ]);
        let operands = [call::strict(self), call::strict(w), call::optional(b)];
        call::one("Conv", attrs, &operands)
    }
}
