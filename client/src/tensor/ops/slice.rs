//! Parts of tensors, and tensors of parts.
//!
//! Made from the registry by `tests/op_api`, which also checks that it follows it: with
//! `CONVOKE_WRITE_OPS=1` in the environment it writes this file.

use convoke_common::error::Result;

use crate::tensor::args::{HostArg, OptArg, OptHostArg};
use crate::tensor::{Tensor, call};

/// Parts of tensors, and tensors of parts.
impl Tensor {
    /// The operands one after the other along `axis`.
    ///
    /// - `data`: operand data, any dtype
    /// - `axis`: the axis, from the end where negative
    ///
    /// Operands are brought to one dtype, see [`Arg`](crate::Arg).
    #[track_caller]
    pub fn concat(data: &[&Tensor], axis: i64) -> Result<Tensor> {
        let attrs = call::attrs([("axis", call::int(axis))]);
        let operands: Vec<_> = data.iter().map(|t| call::joint(*t)).collect();
        call::one("Concat", attrs, &operands)
    }

    /// The operand broadcast with the given shape.
    ///
    /// - `self`: operand data, any dtype
    /// - `shape`: operand shape, i64
    #[track_caller]
    pub fn expand<'a>(&self, shape: impl Into<HostArg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self), call::host(shape)?];
        call::one("Expand", attrs, &operands)
    }

    /// The operand with elements added, or removed, before and after the given axes.
    ///
    /// - `self`: operand data, any dtype, narrow ones too
    /// - `pads`: operand pads, i64
    /// - `constant_value`: operand constant_value, any dtype, narrow ones too, may be left out
    /// - `axes`: operand axes, i32, i64, may be left out
    /// - `mode`: `constant`, `reflect`, `edge` or `wrap`; by default `constant`
    ///
    /// Operands are brought to one dtype, see [`Arg`](crate::Arg).
    #[track_caller]
    pub fn pad<'a>(
        &self,
        pads: impl Into<HostArg<'a>>,
        constant_value: impl Into<OptArg<'a>>,
        axes: impl Into<OptHostArg<'a>>,
        mode: impl Into<Option<&'a str>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("mode", call::text(mode))]);
        let operands = [
            call::joint(self),
            call::host(pads)?,
            call::optional_joint(constant_value),
            call::optional_host(axes)?,
        ];
        call::one("Pad", attrs, &operands)
    }

    /// Every step-th element from start to end along the given axes.
    ///
    /// - `self`: operand data, any dtype
    /// - `starts`: operand starts, i32, i64
    /// - `ends`: operand ends, i32, i64
    /// - `axes`: operand axes, i32, i64, may be left out
    /// - `steps`: operand steps, i32, i64, may be left out
    #[track_caller]
    pub fn slice<'a>(
        &self,
        starts: impl Into<HostArg<'a>>,
        ends: impl Into<HostArg<'a>>,
        axes: impl Into<OptHostArg<'a>>,
        steps: impl Into<OptHostArg<'a>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [
            call::strict(self),
            call::host(starts)?,
            call::host(ends)?,
            call::optional_host(axes)?,
            call::optional_host(steps)?,
        ];
        call::one("Slice", attrs, &operands)
    }

    /// The operand cut along `axis` into parts of the given sizes, or into equal parts.
    ///
    /// - `self`: operand data, any dtype
    /// - `split`: operand split, i64, may be left out
    /// - `axis`: the axis, from the end where negative; by default 0
    /// - `outputs`: how many parts there are
    #[track_caller]
    pub fn split<'a>(
        &self,
        split: impl Into<OptHostArg<'a>>,
        axis: impl Into<Option<i64>>,
        outputs: usize,
    ) -> Result<Vec<Tensor>> {
        let attrs = call::attrs([("axis", call::int(axis))]);
        let operands = [call::strict(self), call::optional_host(split)?];
        Ok(call::several("Split", attrs, &operands, outputs)?.into_vec())
    }

    /// The operand repeated along every axis.
    ///
    /// - `self`: operand data, any dtype
    /// - `repeats`: operand repeats, i64
    #[track_caller]
    pub fn tile<'a>(&self, repeats: impl Into<HostArg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self), call::host(repeats)?];
        call::one("Tile", attrs, &operands)
    }
}
