//! Shapes, and tensors of a shape.
//!
//! Made from the registry by `tests/op_api`, which also checks that it follows it: with
//! `CONVOKE_WRITE_OPS=1` in the environment it writes this file.

use convoke_common::error::Result;
use convoke_graph::{DType, Tensor as HostTensor};

use crate::device::Device;
use crate::tensor::args::{HostArg, OptHostArg};
use crate::tensor::{Tensor, call};

/// Shapes, and tensors of a shape.
impl Tensor {
    /// A matrix of the operand's shape with ones on diagonal `k`.
    ///
    /// - `self`: operand data, numbers, bool
    /// - `dtype`: the dtype of the result; by default the operand's
    /// - `k`: the diagonal, above the main one where positive; by default 0
    #[track_caller]
    pub fn eye_like(
        &self,
        dtype: impl Into<Option<DType>>,
        k: impl Into<Option<i64>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("dtype", call::dtype(dtype)), ("k", call::int(k))]);
        let operands = [call::strict(self)];
        call::one("EyeLike", attrs, &operands)
    }

    /// The operand as a matrix, split before `axis`.
    ///
    /// - `self`: operand data, any dtype, narrow ones too
    /// - `axis`: the axis, from the end where negative; by default 1
    #[track_caller]
    pub fn flatten(&self, axis: impl Into<Option<i64>>) -> Result<Tensor> {
        let attrs = call::attrs([("axis", call::int(axis))]);
        let operands = [call::strict(self)];
        call::one("Flatten", attrs, &operands)
    }

    /// The operand under the given shape; 0 copies a dimension, -1 follows from the rest.
    ///
    /// - `self`: operand data, any dtype, narrow ones too
    /// - `shape`: operand shape, i64
    /// - `allowzero`: a zero is a dimension of length 0 instead of a copy of the operand's; by default false
    #[track_caller]
    pub fn reshape_op<'a>(
        &self,
        shape: impl Into<HostArg<'a>>,
        allowzero: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("allowzero", call::flag(allowzero))]);
        let operands = [call::strict(self), call::host(shape)?];
        call::one("Reshape", attrs, &operands)
    }

    /// Dimensions `start..end` of the operand, as i64.
    ///
    /// - `self`: operand data, any dtype, narrow ones too
    /// - `start`: the first dimension; by default 0
    /// - `end`: the dimension to end before; by default the rank
    #[track_caller]
    pub fn shape_op(
        &self,
        start: impl Into<Option<i64>>,
        end: impl Into<Option<i64>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("start", call::int(start)), ("end", call::int(end))]);
        let operands = [call::strict(self)];
        call::one("Shape", attrs, &operands)
    }

    /// Number of elements of the operand, an i64 scalar.
    ///
    /// - `self`: operand data, any dtype, narrow ones too
    #[track_caller]
    pub fn size_op(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Size", attrs, &operands)
    }

    /// The operand without the given axes of length 1, or without all such axes.
    ///
    /// - `self`: operand data, any dtype, narrow ones too
    /// - `axes`: operand axes, i64, may be left out
    #[track_caller]
    pub fn squeeze<'a>(&self, axes: impl Into<OptHostArg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self), call::optional_host(axes)?];
        call::one("Squeeze", attrs, &operands)
    }

    /// The operand with axes of length 1 inserted.
    ///
    /// - `self`: operand data, any dtype, narrow ones too
    /// - `axes`: operand axes, i64
    #[track_caller]
    pub fn unsqueeze<'a>(&self, axes: impl Into<HostArg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self), call::host(axes)?];
        call::one("Unsqueeze", attrs, &operands)
    }
}

/// Shapes, and tensors of a shape.
impl Device {
    /// The tensor of attribute `value`.
    ///
    /// - `value`: the tensor
    #[track_caller]
    pub fn constant(&self, value: HostTensor) -> Result<Tensor> {
        let attrs = call::attrs([("value", call::value(value))]);
        let operands = [];
        call::create(self, "Constant", attrs, &operands)
    }

    /// A tensor of the given shape that repeats attribute `value`, f32 zero by default.
    ///
    /// - `input`: operand input, i64
    /// - `value`: a tensor of one element; by default f32 zero
    #[track_caller]
    pub fn constant_of_shape<'a>(
        &self,
        input: impl Into<HostArg<'a>>,
        value: impl Into<Option<HostTensor>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("value", call::value(value))]);
        let operands = [call::host(input)?];
        call::create(self, "ConstantOfShape", attrs, &operands)
    }

    /// start, start + delta, .. before limit.
    ///
    /// - `start`: operand start, numbers
    /// - `limit`: operand limit, numbers
    /// - `delta`: operand delta, numbers
    #[track_caller]
    pub fn range<'a>(
        &self,
        start: impl Into<HostArg<'a>>,
        limit: impl Into<HostArg<'a>>,
        delta: impl Into<HostArg<'a>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::host(start)?, call::host(limit)?, call::host(delta)?];
        call::create(self, "Range", attrs, &operands)
    }
}
