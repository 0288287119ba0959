//! Transforms of signals, and sums of overlapping blocks.
//!
//! Made from the registry by `tests/op_api`, which also checks that it follows it: with
//! `CONVOKE_WRITE_OPS=1` in the environment it writes this file.

use convoke_common::error::Result;

use crate::tensor::args::{HostArg, OptHostArg};
use crate::tensor::options;
use crate::tensor::{Tensor, call};

/// Transforms of signals, and sums of overlapping blocks.
impl Tensor {
    /// Images \[N, C, ..\] as the sums of overlapping blocks, the columns of \[N, C * block, positions\].
    ///
    /// - `self`: operand input, numbers
    /// - `image_shape`: operand image_shape, i64
    /// - `block_shape`: operand block_shape, i64
    /// - `with`: further attributes
    #[track_caller]
    pub fn col2im<'a>(
        &self,
        image_shape: impl Into<HostArg<'a>>,
        block_shape: impl Into<HostArg<'a>>,
        with: impl Into<Option<options::Col2Im>>,
    ) -> Result<Tensor> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            ("dilations", call::list(with.dilations)),
            ("pads", call::list(with.pads)),
            ("strides", call::list(with.strides)),
        ]);
        let operands = [
            call::strict(self),
            call::host(image_shape)?,
            call::host(block_shape)?,
        ];
        call::one("Col2Im", attrs, &operands)
    }

    /// The discrete Fourier transform of \[.., 1\] or \[.., 2\] along an axis, the last but one by default.
    ///
    /// - `self`: operand input, floats
    /// - `dft_length`: operand dft_length, i32, i64, may be left out
    /// - `axis`: operand axis, i64, may be left out
    /// - `inverse`: the inverse transform; by default false
    /// - `onesided`: the spectrum of a real signal is given by its first half; by default false
    #[track_caller]
    pub fn dft<'a>(
        &self,
        dft_length: impl Into<OptHostArg<'a>>,
        axis: impl Into<OptHostArg<'a>>,
        inverse: impl Into<Option<bool>>,
        onesided: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("inverse", call::flag(inverse)),
            ("onesided", call::flag(onesided)),
        ]);
        let operands = [
            call::strict(self),
            call::optional_host(dft_length)?,
            call::optional_host(axis)?,
        ];
        call::one("DFT", attrs, &operands)
    }
}
