//! Elements in another order.
//!
//! Made from the registry by `tests/op_api`, which also checks that it follows it: with
//! `CONVOKE_WRITE_OPS=1` in the environment it writes this file.

use convoke_common::error::Result;

use crate::tensor::args::{Axes, OptHostArg};
use crate::tensor::{Tensor, call};

/// Elements in another order.
impl Tensor {
    /// \[N, C, H, W\] to \[N, C/b/b, H*b, W*b\] for blocks of b by b.
    ///
    /// - `self`: operand input, any dtype
    /// - `blocksize`: the length of a block's sides
    /// - `mode`: `DCR`, or `CRD` where a channel's block is its fastest part; by default `DCR`
    #[track_caller]
    pub fn depth_to_space<'a>(
        &self,
        blocksize: i64,
        mode: impl Into<Option<&'a str>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("blocksize", call::int(blocksize)),
            ("mode", call::text(mode)),
        ]);
        let operands = [call::strict(self)];
        call::one("DepthToSpace", attrs, &operands)
    }

    /// The first sequence_lens\[b\] steps of every sequence reversed, same shape.
    ///
    /// - `self`: operand input, any dtype
    /// - `sequence_lens`: operand sequence_lens, i64
    /// - `batch_axis`: the axis of sequences, 0 or 1; by default 1
    /// - `time_axis`: the axis of steps, 1 or 0; by default 0
    #[track_caller]
    pub fn reverse_sequence(
        &self,
        sequence_lens: &Tensor,
        batch_axis: impl Into<Option<i64>>,
        time_axis: impl Into<Option<i64>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("batch_axis", call::int(batch_axis)),
            ("time_axis", call::int(time_axis)),
        ]);
        let operands = [call::strict(self), call::strict(sequence_lens)];
        call::one("ReverseSequence", attrs, &operands)
    }

    /// \[N, C, H, W\] to \[N, C*b*b, H/b, W/b\] for blocks of b by b.
    ///
    /// - `self`: operand input, any dtype
    /// - `blocksize`: the length of a block's sides
    /// - `mode`: `DCR`, or `CRD` where a channel's block is its fastest part; by default `DCR`
    #[track_caller]
    pub fn space_to_depth<'a>(
        &self,
        blocksize: i64,
        mode: impl Into<Option<&'a str>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("blocksize", call::int(blocksize)),
            ("mode", call::text(mode)),
        ]);
        let operands = [call::strict(self)];
        call::one("SpaceToDepth", attrs, &operands)
    }

    /// The operand with its axes permuted, reversed by default.
    ///
    /// - `self`: operand input, any dtype, narrow ones too
    /// - `perm`: which axis of the operand each axis of the result is; by default all reversed
    #[track_caller]
    pub fn transpose(&self, perm: impl Into<Axes>) -> Result<Tensor> {
        let attrs = call::attrs([("perm", call::axes(perm))]);
        let operands = [call::strict(self)];
        call::one("Transpose", attrs, &operands)
    }

    /// The triangle above (or below) diagonal k of the last two axes; the rest is zero.
    ///
    /// - `self`: operand input, any dtype
    /// - `k`: operand k, i64, may be left out
    /// - `upper`: the upper triangle instead of the lower; by default true
    #[track_caller]
    pub fn trilu<'a>(
        &self,
        k: impl Into<OptHostArg<'a>>,
        upper: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("upper", call::flag(upper))]);
        let operands = [call::strict(self), call::optional_host(k)?];
        call::one("Trilu", attrs, &operands)
    }
}
