//! The methods of all ops of the registry. Made from it by `tests/op_api`, which also checks that they follow
//! it: with `CONVOKE_WRITE_OPS=1` in the environment it writes this file.

use convoke_common::error::Result;
use convoke_common::{DType, Tensor as HostTensor};

use super::Tensor;
use super::args::{Arg, Axes, HostArg, OptArg, OptHostArg};
use super::call;
use crate::device::Device;

/// Ops of the registry.
impl Tensor {
    /// |x| of X, any shape.
    ///
    /// - `self`: operand X, numbers
    #[track_caller]
    pub fn abs(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Abs", attrs, &operands)
    }

    /// Arccosine of X, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn acos(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Acos", attrs, &operands)
    }

    /// Inverse hyperbolic cosine of X, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn acosh(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Acosh", attrs, &operands)
    }

    /// A + B, broadcast.
    ///
    /// - `self`: operand A, numbers
    /// - `b`: operand B, numbers
    ///
    /// Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn add<'a>(&self, b: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(b)];
        call::one("Add", attrs, &operands)
    }

    /// A and B, broadcast.
    ///
    /// - `self`: operand A, bool
    /// - `b`: operand B, bool
    ///
    /// Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn and<'a>(&self, b: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(b)];
        call::one("And", attrs, &operands)
    }

    /// Index of the maximum along an axis.
    ///
    /// - `self`: operand data, numbers
    /// - `with`: further attributes
    #[track_caller]
    pub fn arg_max(&self, with: impl Into<Option<options::ArgMax>>) -> Result<Tensor> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            ("axis", call::int(with.axis)),
            ("keepdims", call::flag(with.keepdims)),
            ("select_last_index", call::flag(with.select_last_index)),
        ]);
        let operands = [call::strict(self)];
        call::one("ArgMax", attrs, &operands)
    }

    /// Index of the minimum along an axis.
    ///
    /// - `self`: operand data, numbers
    /// - `with`: further attributes
    #[track_caller]
    pub fn arg_min(&self, with: impl Into<Option<options::ArgMin>>) -> Result<Tensor> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            ("axis", call::int(with.axis)),
            ("keepdims", call::flag(with.keepdims)),
            ("select_last_index", call::flag(with.select_last_index)),
        ]);
        let operands = [call::strict(self)];
        call::one("ArgMin", attrs, &operands)
    }

    /// Arcsine of X, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn asin(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Asin", attrs, &operands)
    }

    /// Inverse hyperbolic sine of X, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn asinh(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Asinh", attrs, &operands)
    }

    /// Arctangent of X, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn atan(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Atan", attrs, &operands)
    }

    /// Inverse hyperbolic tangent of X, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn atanh(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Atanh", attrs, &operands)
    }

    /// Mean of every window of X \[N, C, ..\].
    ///
    /// - `self`: operand X, floats
    /// - `kernel_shape`: extents of the window, one per spatial axis
    /// - `with`: further attributes
    #[track_caller]
    pub fn average_pool(
        &self,
        kernel_shape: impl Into<Vec<i64>>,
        with: impl Into<Option<options::AveragePool>>,
    ) -> Result<Tensor> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            ("kernel_shape", call::ints(kernel_shape)),
            ("auto_pad", call::text(with.auto_pad.as_deref())),
            ("ceil_mode", call::flag(with.ceil_mode)),
            ("dilations", call::list(with.dilations)),
            ("pads", call::list(with.pads)),
            ("strides", call::list(with.strides)),
            ("count_include_pad", call::flag(with.count_include_pad)),
        ]);
        let operands = [call::strict(self)];
        call::one("AveragePool", attrs, &operands)
    }

    /// X \[N, C, ..\] normalised per channel by given mean and variance, times scale plus B.
    ///
    /// - `self`: operand X, floats
    /// - `scale`: operand scale, floats
    /// - `b`: operand B, floats
    /// - `mean`: operand mean, floats
    /// - `var`: operand var, floats
    /// - `epsilon`: what keeps the division from zero; by default 0.00001
    #[track_caller]
    pub fn batch_normalization(
        &self,
        scale: &Tensor,
        b: &Tensor,
        mean: &Tensor,
        var: &Tensor,
        epsilon: impl Into<Option<f32>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("epsilon", call::float(epsilon))]);
        let operands = [
            call::strict(self),
            call::strict(scale),
            call::strict(b),
            call::strict(mean),
            call::strict(var),
        ];
        call::one("BatchNormalization", attrs, &operands)
    }

    /// A shifted by B bits, broadcast.
    ///
    /// - `self`: operand A, integers
    /// - `b`: operand B, integers
    /// - `direction`: `LEFT` or `RIGHT`
    ///
    /// Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn bit_shift<'a>(&self, b: impl Into<Arg<'a>>, direction: &str) -> Result<Tensor> {
        let attrs = call::attrs([("direction", call::text(direction))]);
        let operands = [call::joint(self), call::joint(b)];
        call::one("BitShift", attrs, &operands)
    }

    /// Bitwise A and B, broadcast.
    ///
    /// - `self`: operand A, integers
    /// - `b`: operand B, integers
    ///
    /// Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn bitwise_and<'a>(&self, b: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(b)];
        call::one("BitwiseAnd", attrs, &operands)
    }

    /// Bitwise complement of X, any shape.
    ///
    /// - `self`: operand X, integers
    #[track_caller]
    pub fn bitwise_not(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("BitwiseNot", attrs, &operands)
    }

    /// Bitwise A or B, broadcast.
    ///
    /// - `self`: operand A, integers
    /// - `b`: operand B, integers
    ///
    /// Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn bitwise_or<'a>(&self, b: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(b)];
        call::one("BitwiseOr", attrs, &operands)
    }

    /// Bitwise A exclusive-or B, broadcast.
    ///
    /// - `self`: operand A, integers
    /// - `b`: operand B, integers
    ///
    /// Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn bitwise_xor<'a>(&self, b: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(b)];
        call::one("BitwiseXor", attrs, &operands)
    }

    /// X with elements of dtype `to`, any shape.
    ///
    /// - `self`: operand X, any dtype
    /// - `to`: the dtype of the result
    #[track_caller]
    pub fn cast(&self, to: DType) -> Result<Tensor> {
        let attrs = call::attrs([("to", call::dtype(to))]);
        let operands = [call::strict(self)];
        call::one("Cast", attrs, &operands)
    }

    /// X with elements of the dtype of a second operand, any shape.
    ///
    /// - `self`: operand X, any dtype
    /// - `target_type`: operand target_type, any dtype
    #[track_caller]
    pub fn cast_like(&self, target_type: &Tensor) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self), call::strict(target_type)];
        call::one("CastLike", attrs, &operands)
    }

    /// Rounds x towards plus infinity, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn ceil(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Ceil", attrs, &operands)
    }

    /// max(0, x) + min(0, alpha * (e^(x/alpha) - 1)), any shape.
    ///
    /// - `self`: operand X, floats
    /// - `alpha`: a factor of the formula; by default 1
    #[track_caller]
    pub fn celu(&self, alpha: impl Into<Option<f32>>) -> Result<Tensor> {
        let attrs = call::attrs([("alpha", call::float(alpha))]);
        let operands = [call::strict(self)];
        call::one("Celu", attrs, &operands)
    }

    /// X limited to min and max, scalars, any shape.
    ///
    /// - `self`: operand X, numbers
    /// - `min`: operand min, numbers, may be left out
    /// - `max`: operand max, numbers, may be left out
    ///
    /// Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn clip<'a>(
        &self,
        min: impl Into<OptArg<'a>>,
        max: impl Into<OptArg<'a>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [
            call::joint(self),
            call::optional_joint(min),
            call::optional_joint(max),
        ];
        call::one("Clip", attrs, &operands)
    }

    /// The slices along `axis`, or the elements, where the condition holds.
    ///
    /// - `self`: operand input, any dtype
    /// - `condition`: operand condition, bool
    /// - `axis`: the axis, from the end where negative; by default all axes flattened
    #[track_caller]
    pub fn compress<'a>(
        &self,
        condition: impl Into<HostArg<'a>>,
        axis: impl Into<Option<i64>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("axis", call::int(axis))]);
        let operands = [call::strict(self), call::host(condition)?];
        call::one("Compress", attrs, &operands)
    }

    /// The operands one after the other along `axis`.
    ///
    /// - `data`: operand data, any dtype
    /// - `axis`: the axis, from the end where negative
    ///
    /// Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn concat(data: &[&Tensor], axis: i64) -> Result<Tensor> {
        let attrs = call::attrs([("axis", call::int(axis))]);
        let operands: Vec<_> = data.iter().map(|t| call::joint(*t)).collect();
        call::one("Concat", attrs, &operands)
    }

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

    /// Cosine of X, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn cos(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Cos", attrs, &operands)
    }

    /// Hyperbolic cosine of X, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn cosh(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Cosh", attrs, &operands)
    }

    /// Running sum along an axis, same shape.
    ///
    /// - `self`: operand x, floats, i32, i64, u32, u64
    /// - `axis`: operand axis, i32, i64
    /// - `exclusive`: an element does not count in its own sum; by default false
    /// - `reverse`: sums run from the end; by default false
    #[track_caller]
    pub fn cum_sum<'a>(
        &self,
        axis: impl Into<HostArg<'a>>,
        exclusive: impl Into<Option<bool>>,
        reverse: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("exclusive", call::flag(exclusive)),
            ("reverse", call::flag(reverse)),
        ]);
        let operands = [call::strict(self), call::host(axis)?];
        call::one("CumSum", attrs, &operands)
    }

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

    /// A / B, broadcast; integers truncate.
    ///
    /// - `self`: operand A, numbers
    /// - `b`: operand B, numbers
    ///
    /// Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn div<'a>(&self, b: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(b)];
        call::one("Div", attrs, &operands)
    }

    /// X itself, as in inference; optionally a mask of all true.
    ///
    /// - `self`: operand X, floats
    /// - `ratio`: operand ratio, floats, may be left out
    /// - `training_mode`: operand training_mode, bool, may be left out
    #[track_caller]
    pub fn dropout<'a>(
        &self,
        ratio: Option<&Tensor>,
        training_mode: impl Into<OptHostArg<'a>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [
            call::strict(self),
            call::optional(ratio),
            call::optional_host(training_mode)?,
        ];
        call::one("Dropout", attrs, &operands)
    }

    /// X itself, as in inference; optionally a mask of all true.
    /// Both outputs are given, as a tuple of two.
    ///
    /// - `self`: operand X, floats
    /// - `ratio`: operand ratio, floats, may be left out
    /// - `training_mode`: operand training_mode, bool, may be left out
    #[track_caller]
    pub fn dropout_with_mask<'a>(
        &self,
        ratio: Option<&Tensor>,
        training_mode: impl Into<OptHostArg<'a>>,
    ) -> Result<(Tensor, Tensor)> {
        let attrs = call::attrs([]);
        let operands = [
            call::strict(self),
            call::optional(ratio),
            call::optional_host(training_mode)?,
        ];
        call::two("Dropout", attrs, &operands)
    }

    /// x, or alpha * (e^x - 1) below zero, any shape.
    ///
    /// - `self`: operand X, floats
    /// - `alpha`: a factor of the formula; by default 1
    #[track_caller]
    pub fn elu(&self, alpha: impl Into<Option<f32>>) -> Result<Tensor> {
        let attrs = call::attrs([("alpha", call::float(alpha))]);
        let operands = [call::strict(self)];
        call::one("Elu", attrs, &operands)
    }

    /// A = B, broadcast.
    ///
    /// - `self`: operand A, any dtype
    /// - `b`: operand B, any dtype
    ///
    /// Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn equal<'a>(&self, b: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(b)];
        call::one("Equal", attrs, &operands)
    }

    /// Error function of X, any shape.
    ///
    /// - `self`: operand X, numbers
    #[track_caller]
    pub fn erf(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Erf", attrs, &operands)
    }

    /// e to the power x, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn exp(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Exp", attrs, &operands)
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

    /// A matrix of the operand's shape with ones on diagonal `k`.
    ///
    /// - `self`: operand data, any dtype
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
    /// - `self`: operand data, any dtype
    /// - `axis`: the axis, from the end where negative; by default 1
    #[track_caller]
    pub fn flatten(&self, axis: impl Into<Option<i64>>) -> Result<Tensor> {
        let attrs = call::attrs([("axis", call::int(axis))]);
        let operands = [call::strict(self)];
        call::one("Flatten", attrs, &operands)
    }

    /// Rounds x towards minus infinity, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn floor(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Floor", attrs, &operands)
    }

    /// Slices of the data along `axis` at the indices.
    ///
    /// - `self`: operand data, any dtype
    /// - `indices`: operand indices, i32, i64
    /// - `axis`: the axis, from the end where negative; by default 0
    #[track_caller]
    pub fn gather(&self, indices: &Tensor, axis: impl Into<Option<i64>>) -> Result<Tensor> {
        let attrs = call::attrs([("axis", call::int(axis))]);
        let operands = [call::strict(self), call::strict(indices)];
        call::one("Gather", attrs, &operands)
    }

    /// For every index, the element at its place with the coordinate along `axis` replaced.
    ///
    /// - `self`: operand data, any dtype
    /// - `indices`: operand indices, i32, i64
    /// - `axis`: the axis, from the end where negative; by default 0
    #[track_caller]
    pub fn gather_elements(
        &self,
        indices: &Tensor,
        axis: impl Into<Option<i64>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("axis", call::int(axis))]);
        let operands = [call::strict(self), call::strict(indices)];
        call::one("GatherElements", attrs, &operands)
    }

    /// Slices of the data at coordinates, the last axis of the indices.
    ///
    /// - `self`: operand data, any dtype
    /// - `indices`: operand indices, i64
    /// - `batch_dims`: leading axes that data and indices share; by default 0
    #[track_caller]
    pub fn gather_nd(
        &self,
        indices: &Tensor,
        batch_dims: impl Into<Option<i64>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("batch_dims", call::int(batch_dims))]);
        let operands = [call::strict(self), call::strict(indices)];
        call::one("GatherND", attrs, &operands)
    }

    /// x times the normal distribution's cumulative function, any shape.
    ///
    /// - `self`: operand X, floats
    /// - `approximate`: `none` or `tanh`; by default `none`
    #[track_caller]
    pub fn gelu<'a>(&self, approximate: impl Into<Option<&'a str>>) -> Result<Tensor> {
        let attrs = call::attrs([("approximate", call::text(approximate))]);
        let operands = [call::strict(self)];
        call::one("Gelu", attrs, &operands)
    }

    /// alpha * A \[M, K\] times B \[K, N\], either transposed on demand, plus beta * C: \[M, N\].
    ///
    /// - `self`: operand A, floats, i32, i64, u32, u64
    /// - `b`: operand B, floats, i32, i64, u32, u64
    /// - `c`: operand C, floats, i32, i64, u32, u64, may be left out
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

    /// Mean over the spatial axes: \[N, C, 1, ..\].
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn global_average_pool(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("GlobalAveragePool", attrs, &operands)
    }

    /// p-norm over the spatial axes: \[N, C, 1, ..\].
    ///
    /// - `self`: operand X, floats
    /// - `p`: the norm; by default 2
    #[track_caller]
    pub fn global_lp_pool(&self, p: impl Into<Option<i64>>) -> Result<Tensor> {
        let attrs = call::attrs([("p", call::int(p))]);
        let operands = [call::strict(self)];
        call::one("GlobalLpPool", attrs, &operands)
    }

    /// Maximum over the spatial axes: \[N, C, 1, ..\].
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn global_max_pool(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("GlobalMaxPool", attrs, &operands)
    }

    /// A > B, broadcast.
    ///
    /// - `self`: operand A, numbers
    /// - `b`: operand B, numbers
    ///
    /// Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn greater<'a>(&self, b: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(b)];
        call::one("Greater", attrs, &operands)
    }

    /// A >= B, broadcast.
    ///
    /// - `self`: operand A, numbers
    /// - `b`: operand B, numbers
    ///
    /// Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn greater_or_equal<'a>(&self, b: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(b)];
        call::one("GreaterOrEqual", attrs, &operands)
    }

    /// X \[N, C, ..\] normalised per instance and group of channels, times scale \[C\] plus bias \[C\].
    ///
    /// - `self`: operand X, floats
    /// - `scale`: operand scale, floats
    /// - `bias`: operand bias, floats
    /// - `num_groups`: groups of channels
    /// - `epsilon`: what keeps the division from zero; by default 0.00001
    #[track_caller]
    pub fn group_normalization(
        &self,
        scale: &Tensor,
        bias: &Tensor,
        num_groups: i64,
        epsilon: impl Into<Option<f32>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("num_groups", call::int(num_groups)),
            ("epsilon", call::float(epsilon)),
        ]);
        let operands = [call::strict(self), call::strict(scale), call::strict(bias)];
        call::one("GroupNormalization", attrs, &operands)
    }

    /// clamp(alpha * x + beta, 0, 1), any shape.
    ///
    /// - `self`: operand X, floats
    /// - `alpha`: a factor of the formula; by default 0.2
    /// - `beta`: a factor of the formula; by default 0.5
    #[track_caller]
    pub fn hard_sigmoid(
        &self,
        alpha: impl Into<Option<f32>>,
        beta: impl Into<Option<f32>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("alpha", call::float(alpha)), ("beta", call::float(beta))]);
        let operands = [call::strict(self)];
        call::one("HardSigmoid", attrs, &operands)
    }

    /// x * clamp(x / 6 + 0.5, 0, 1) of X, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn hard_swish(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("HardSwish", attrs, &operands)
    }

    /// 1 at the first maximum along an axis, else 0, any shape.
    ///
    /// - `self`: operand X, floats
    /// - `axis`: the axis, from the end where negative; by default -1
    #[track_caller]
    pub fn hardmax(&self, axis: impl Into<Option<i64>>) -> Result<Tensor> {
        let attrs = call::attrs([("axis", call::int(axis))]);
        let operands = [call::strict(self)];
        call::one("Hardmax", attrs, &operands)
    }

    /// X itself.
    ///
    /// - `self`: operand X, any dtype
    #[track_caller]
    pub fn identity(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Identity", attrs, &operands)
    }

    /// X \[N, C, ..\] normalised per instance and channel, times scale plus B.
    ///
    /// - `self`: operand X, floats
    /// - `scale`: operand scale, floats
    /// - `b`: operand B, floats
    /// - `epsilon`: what keeps the division from zero; by default 0.00001
    #[track_caller]
    pub fn instance_normalization(
        &self,
        scale: &Tensor,
        b: &Tensor,
        epsilon: impl Into<Option<f32>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("epsilon", call::float(epsilon))]);
        let operands = [call::strict(self), call::strict(scale), call::strict(b)];
        call::one("InstanceNormalization", attrs, &operands)
    }

    /// Whether x is infinite, by sign, any shape.
    ///
    /// - `self`: operand X, floats
    /// - `detect_negative`: minus infinity counts; by default true
    /// - `detect_positive`: plus infinity counts; by default true
    #[track_caller]
    pub fn is_inf(
        &self,
        detect_negative: impl Into<Option<bool>>,
        detect_positive: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("detect_negative", call::flag(detect_negative)),
            ("detect_positive", call::flag(detect_positive)),
        ]);
        let operands = [call::strict(self)];
        call::one("IsInf", attrs, &operands)
    }

    /// Whether x is not a number, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn is_nan(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("IsNaN", attrs, &operands)
    }

    /// X \[N, C, ..\] over a power of the squares of neighbouring channels.
    ///
    /// - `self`: operand X, floats
    /// - `size`: channels of a window
    /// - `with`: further attributes
    #[track_caller]
    pub fn lrn(&self, size: i64, with: impl Into<Option<options::LRN>>) -> Result<Tensor> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            ("size", call::int(size)),
            ("alpha", call::float(with.alpha)),
            ("beta", call::float(with.beta)),
            ("bias", call::float(with.bias)),
        ]);
        let operands = [call::strict(self)];
        call::one("LRN", attrs, &operands)
    }

    /// X normalised over the axes from `axis`, times Scale plus B; optionally mean and 1/deviation.
    ///
    /// - `self`: operand X, floats
    /// - `scale`: operand Scale, floats
    /// - `b`: operand B, floats, may be left out
    /// - `axis`: the axis, from the end where negative; by default -1
    /// - `epsilon`: what keeps the division from zero; by default 0.00001
    #[track_caller]
    pub fn layer_normalization(
        &self,
        scale: &Tensor,
        b: Option<&Tensor>,
        axis: impl Into<Option<i64>>,
        epsilon: impl Into<Option<f32>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("axis", call::int(axis)), ("epsilon", call::float(epsilon))]);
        let operands = [call::strict(self), call::strict(scale), call::optional(b)];
        call::one("LayerNormalization", attrs, &operands)
    }

    /// X normalised over the axes from `axis`, times Scale plus B; optionally mean and 1/deviation.
    /// All three outputs are given, as a tuple of three.
    ///
    /// - `self`: operand X, floats
    /// - `scale`: operand Scale, floats
    /// - `b`: operand B, floats, may be left out
    /// - `axis`: the axis, from the end where negative; by default -1
    /// - `epsilon`: what keeps the division from zero; by default 0.00001
    #[track_caller]
    pub fn layer_normalization_with_statistics(
        &self,
        scale: &Tensor,
        b: Option<&Tensor>,
        axis: impl Into<Option<i64>>,
        epsilon: impl Into<Option<f32>>,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        let attrs = call::attrs([("axis", call::int(axis)), ("epsilon", call::float(epsilon))]);
        let operands = [call::strict(self), call::strict(scale), call::optional(b)];
        call::three("LayerNormalization", attrs, &operands)
    }

    /// x, or alpha * x below zero, any shape.
    ///
    /// - `self`: operand X, floats
    /// - `alpha`: a factor of the formula; by default 0.01
    #[track_caller]
    pub fn leaky_relu(&self, alpha: impl Into<Option<f32>>) -> Result<Tensor> {
        let attrs = call::attrs([("alpha", call::float(alpha))]);
        let operands = [call::strict(self)];
        call::one("LeakyRelu", attrs, &operands)
    }

    /// A < B, broadcast.
    ///
    /// - `self`: operand A, numbers
    /// - `b`: operand B, numbers
    ///
    /// Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn less<'a>(&self, b: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(b)];
        call::one("Less", attrs, &operands)
    }

    /// A <= B, broadcast.
    ///
    /// - `self`: operand A, numbers
    /// - `b`: operand B, numbers
    ///
    /// Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn less_or_equal<'a>(&self, b: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(b)];
        call::one("LessOrEqual", attrs, &operands)
    }

    /// Natural logarithm of X, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn log(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Log", attrs, &operands)
    }

    /// x minus ln of the sum of e^x along an axis, any shape.
    ///
    /// - `self`: operand X, floats
    /// - `axis`: the axis, from the end where negative; by default -1
    #[track_caller]
    pub fn log_softmax(&self, axis: impl Into<Option<i64>>) -> Result<Tensor> {
        let attrs = call::attrs([("axis", call::int(axis))]);
        let operands = [call::strict(self)];
        call::one("LogSoftmax", attrs, &operands)
    }

    /// X over its p-norm along an axis, any shape.
    ///
    /// - `self`: operand X, floats
    /// - `axis`: the axis, from the end where negative; by default -1
    /// - `p`: the norm; by default 2
    #[track_caller]
    pub fn lp_normalization(
        &self,
        axis: impl Into<Option<i64>>,
        p: impl Into<Option<i64>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("axis", call::int(axis)), ("p", call::int(p))]);
        let operands = [call::strict(self)];
        call::one("LpNormalization", attrs, &operands)
    }

    /// p-norm of every window of X \[N, C, ..\].
    ///
    /// - `self`: operand X, floats
    /// - `kernel_shape`: extents of the window, one per spatial axis
    /// - `with`: further attributes
    #[track_caller]
    pub fn lp_pool(
        &self,
        kernel_shape: impl Into<Vec<i64>>,
        with: impl Into<Option<options::LpPool>>,
    ) -> Result<Tensor> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            ("kernel_shape", call::ints(kernel_shape)),
            ("auto_pad", call::text(with.auto_pad.as_deref())),
            ("ceil_mode", call::flag(with.ceil_mode)),
            ("dilations", call::list(with.dilations)),
            ("pads", call::list(with.pads)),
            ("strides", call::list(with.strides)),
            ("p", call::int(with.p)),
        ]);
        let operands = [call::strict(self)];
        call::one("LpPool", attrs, &operands)
    }

    /// A \[.., M, K\] times B \[.., K, N\], batches broadcast: \[.., M, N\].
    ///
    /// - `self`: operand A, floats, i32, i64, u32, u64
    /// - `b`: operand B, floats, i32, i64, u32, u64
    #[track_caller]
    pub fn matmul(&self, b: &Tensor) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self), call::strict(b)];
        call::one("MatMul", attrs, &operands)
    }

    /// The greatest of the operands, broadcast.
    ///
    /// - `data`: operand data, numbers
    ///
    /// Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn max_op(data: &[&Tensor]) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands: Vec<_> = data.iter().map(|t| call::joint(*t)).collect();
        call::one("Max", attrs, &operands)
    }

    /// Greatest element of every window of X \[N, C, ..\]; optionally its flat index.
    ///
    /// - `self`: operand X, floats, i8, u8
    /// - `kernel_shape`: extents of the window, one per spatial axis
    /// - `with`: further attributes
    #[track_caller]
    pub fn max_pool(
        &self,
        kernel_shape: impl Into<Vec<i64>>,
        with: impl Into<Option<options::MaxPool>>,
    ) -> Result<Tensor> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            ("kernel_shape", call::ints(kernel_shape)),
            ("auto_pad", call::text(with.auto_pad.as_deref())),
            ("ceil_mode", call::flag(with.ceil_mode)),
            ("dilations", call::list(with.dilations)),
            ("pads", call::list(with.pads)),
            ("strides", call::list(with.strides)),
            ("storage_order", call::flag(with.storage_order)),
        ]);
        let operands = [call::strict(self)];
        call::one("MaxPool", attrs, &operands)
    }

    /// Greatest element of every window of X \[N, C, ..\]; optionally its flat index.
    /// Both outputs are given, as a tuple of two.
    ///
    /// - `self`: operand X, floats, i8, u8
    /// - `kernel_shape`: extents of the window, one per spatial axis
    /// - `with`: further attributes
    #[track_caller]
    pub fn max_pool_with_indices(
        &self,
        kernel_shape: impl Into<Vec<i64>>,
        with: impl Into<Option<options::MaxPool>>,
    ) -> Result<(Tensor, Tensor)> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            ("kernel_shape", call::ints(kernel_shape)),
            ("auto_pad", call::text(with.auto_pad.as_deref())),
            ("ceil_mode", call::flag(with.ceil_mode)),
            ("dilations", call::list(with.dilations)),
            ("pads", call::list(with.pads)),
            ("strides", call::list(with.strides)),
            ("storage_order", call::flag(with.storage_order)),
        ]);
        let operands = [call::strict(self)];
        call::two("MaxPool", attrs, &operands)
    }

    /// The mean of the operands, broadcast.
    ///
    /// - `data`: operand data, floats
    ///
    /// Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn mean_op(data: &[&Tensor]) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands: Vec<_> = data.iter().map(|t| call::joint(*t)).collect();
        call::one("Mean", attrs, &operands)
    }

    /// X minus its mean over `axes`, over its deviation, any shape.
    ///
    /// - `self`: operand X, floats
    /// - `axes`: the axes; by default all but the second
    #[track_caller]
    pub fn mean_variance_normalization(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        let attrs = call::attrs([("axes", call::axes(axes))]);
        let operands = [call::strict(self)];
        call::one("MeanVarianceNormalization", attrs, &operands)
    }

    /// The least of the operands, broadcast.
    ///
    /// - `data`: operand data, numbers
    ///
    /// Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn min_op(data: &[&Tensor]) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands: Vec<_> = data.iter().map(|t| call::joint(*t)).collect();
        call::one("Min", attrs, &operands)
    }

    /// x * tanh(softplus(x)) of X, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn mish(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Mish", attrs, &operands)
    }

    /// The remainder of A / B, of B's sign or with `fmod` of A's, broadcast.
    ///
    /// - `self`: operand A, numbers
    /// - `b`: operand B, numbers
    /// - `fmod`: the remainder has A's sign; by default false
    ///
    /// Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn mod_<'a>(&self, b: impl Into<Arg<'a>>, fmod: impl Into<Option<bool>>) -> Result<Tensor> {
        let attrs = call::attrs([("fmod", call::flag(fmod))]);
        let operands = [call::joint(self), call::joint(b)];
        call::one("Mod", attrs, &operands)
    }

    /// A * B, broadcast.
    ///
    /// - `self`: operand A, numbers
    /// - `b`: operand B, numbers
    ///
    /// Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn mul<'a>(&self, b: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(b)];
        call::one("Mul", attrs, &operands)
    }

    /// -x of X, any shape.
    ///
    /// - `self`: operand X, floats, i8, i16, i32, i64
    #[track_caller]
    pub fn neg(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Neg", attrs, &operands)
    }

    /// Coordinates of the elements other than zero: i64 \[rank, count\].
    ///
    /// - `self`: operand X, any dtype
    #[track_caller]
    pub fn nonzero(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("NonZero", attrs, &operands)
    }

    /// Logical not of X, any shape.
    ///
    /// - `self`: operand X, bool
    #[track_caller]
    pub fn not(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Not", attrs, &operands)
    }

    /// values\[1\] where the coordinate along a new axis of length `depth` is the index, else values\[0\].
    ///
    /// - `self`: operand indices, numbers
    /// - `depth`: operand depth, numbers
    /// - `values`: operand values, any dtype
    /// - `axis`: the axis, from the end where negative; by default -1
    #[track_caller]
    pub fn one_hot_op<'a>(
        &self,
        depth: impl Into<HostArg<'a>>,
        values: &Tensor,
        axis: impl Into<Option<i64>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("axis", call::int(axis))]);
        let operands = [call::strict(self), call::host(depth)?, call::strict(values)];
        call::one("OneHot", attrs, &operands)
    }

    /// A or B, broadcast.
    ///
    /// - `self`: operand A, bool
    /// - `b`: operand B, bool
    ///
    /// Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn or<'a>(&self, b: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(b)];
        call::one("Or", attrs, &operands)
    }

    /// x, or slope * x below zero; the slope broadcasts to X.
    ///
    /// - `self`: operand X, floats, i32, i64, u32, u64
    /// - `slope`: operand slope, floats, i32, i64, u32, u64
    ///
    /// Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn prelu<'a>(&self, slope: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(slope)];
        call::one("PRelu", attrs, &operands)
    }

    /// The operand with elements added, or removed, before and after the given axes.
    ///
    /// - `self`: operand data, any dtype
    /// - `pads`: operand pads, i64
    /// - `constant_value`: operand constant_value, any dtype, may be left out
    /// - `axes`: operand axes, i32, i64, may be left out
    /// - `mode`: `constant`, `reflect`, `edge` or `wrap`; by default `constant`
    ///
    /// Operands are brought to one dtype, see [`Arg`].
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

    /// X to the power Y, broadcast, of X's dtype.
    ///
    /// - `self`: operand X, floats, i32, i64
    /// - `y`: operand Y, numbers
    ///
    /// Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn pow<'a>(&self, y: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(y)];
        call::one("Pow", attrs, &operands)
    }

    /// X over its root mean square over the axes from `axis`, times scale.
    ///
    /// - `self`: operand X, floats
    /// - `scale`: operand scale, floats
    /// - `axis`: the axis, from the end where negative; by default -1
    /// - `epsilon`: what keeps the division from zero; by default 0.00001
    #[track_caller]
    pub fn rms_normalization(
        &self,
        scale: &Tensor,
        axis: impl Into<Option<i64>>,
        epsilon: impl Into<Option<f32>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("axis", call::int(axis)), ("epsilon", call::float(epsilon))]);
        let operands = [call::strict(self), call::strict(scale)];
        call::one("RMSNormalization", attrs, &operands)
    }

    /// 1 / x of X, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn reciprocal(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Reciprocal", attrs, &operands)
    }

    /// Sum of magnitudes over axes.
    ///
    /// - `self`: operand data, floats, i32, i64, u32, u64
    /// - `axes`: operand axes, i64, may be left out
    /// - `keepdims`: reduced axes stay, with length 1; by default true
    /// - `noop_with_empty_axes`: no axes means nothing is reduced; by default false
    #[track_caller]
    pub fn reduce_l1<'a>(
        &self,
        axes: impl Into<OptHostArg<'a>>,
        keepdims: impl Into<Option<bool>>,
        noop_with_empty_axes: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("keepdims", call::flag(keepdims)),
            ("noop_with_empty_axes", call::flag(noop_with_empty_axes)),
        ]);
        let operands = [call::strict(self), call::optional_host(axes)?];
        call::one("ReduceL1", attrs, &operands)
    }

    /// Root of the sum of squares over axes.
    ///
    /// - `self`: operand data, floats, i32, i64, u32, u64
    /// - `axes`: operand axes, i64, may be left out
    /// - `keepdims`: reduced axes stay, with length 1; by default true
    /// - `noop_with_empty_axes`: no axes means nothing is reduced; by default false
    #[track_caller]
    pub fn reduce_l2<'a>(
        &self,
        axes: impl Into<OptHostArg<'a>>,
        keepdims: impl Into<Option<bool>>,
        noop_with_empty_axes: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("keepdims", call::flag(keepdims)),
            ("noop_with_empty_axes", call::flag(noop_with_empty_axes)),
        ]);
        let operands = [call::strict(self), call::optional_host(axes)?];
        call::one("ReduceL2", attrs, &operands)
    }

    /// Logarithm of the sum over axes.
    ///
    /// - `self`: operand data, floats, i32, i64, u32, u64
    /// - `axes`: operand axes, i64, may be left out
    /// - `keepdims`: reduced axes stay, with length 1; by default true
    /// - `noop_with_empty_axes`: no axes means nothing is reduced; by default false
    #[track_caller]
    pub fn reduce_log_sum<'a>(
        &self,
        axes: impl Into<OptHostArg<'a>>,
        keepdims: impl Into<Option<bool>>,
        noop_with_empty_axes: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("keepdims", call::flag(keepdims)),
            ("noop_with_empty_axes", call::flag(noop_with_empty_axes)),
        ]);
        let operands = [call::strict(self), call::optional_host(axes)?];
        call::one("ReduceLogSum", attrs, &operands)
    }

    /// Logarithm of the sum of e^x over axes.
    ///
    /// - `self`: operand data, floats, i32, i64, u32, u64
    /// - `axes`: operand axes, i64, may be left out
    /// - `keepdims`: reduced axes stay, with length 1; by default true
    /// - `noop_with_empty_axes`: no axes means nothing is reduced; by default false
    #[track_caller]
    pub fn reduce_log_sum_exp<'a>(
        &self,
        axes: impl Into<OptHostArg<'a>>,
        keepdims: impl Into<Option<bool>>,
        noop_with_empty_axes: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("keepdims", call::flag(keepdims)),
            ("noop_with_empty_axes", call::flag(noop_with_empty_axes)),
        ]);
        let operands = [call::strict(self), call::optional_host(axes)?];
        call::one("ReduceLogSumExp", attrs, &operands)
    }

    /// Maximum over axes.
    ///
    /// - `self`: operand data, floats, i32, i64, u32, u64, i8, u8, bool
    /// - `axes`: operand axes, i64, may be left out
    /// - `keepdims`: reduced axes stay, with length 1; by default true
    /// - `noop_with_empty_axes`: no axes means nothing is reduced; by default false
    #[track_caller]
    pub fn reduce_max<'a>(
        &self,
        axes: impl Into<OptHostArg<'a>>,
        keepdims: impl Into<Option<bool>>,
        noop_with_empty_axes: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("keepdims", call::flag(keepdims)),
            ("noop_with_empty_axes", call::flag(noop_with_empty_axes)),
        ]);
        let operands = [call::strict(self), call::optional_host(axes)?];
        call::one("ReduceMax", attrs, &operands)
    }

    /// Mean over axes.
    ///
    /// - `self`: operand data, floats, i32, i64, u32, u64
    /// - `axes`: operand axes, i64, may be left out
    /// - `keepdims`: reduced axes stay, with length 1; by default true
    /// - `noop_with_empty_axes`: no axes means nothing is reduced; by default false
    #[track_caller]
    pub fn reduce_mean<'a>(
        &self,
        axes: impl Into<OptHostArg<'a>>,
        keepdims: impl Into<Option<bool>>,
        noop_with_empty_axes: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("keepdims", call::flag(keepdims)),
            ("noop_with_empty_axes", call::flag(noop_with_empty_axes)),
        ]);
        let operands = [call::strict(self), call::optional_host(axes)?];
        call::one("ReduceMean", attrs, &operands)
    }

    /// Minimum over axes.
    ///
    /// - `self`: operand data, floats, i32, i64, u32, u64, i8, u8, bool
    /// - `axes`: operand axes, i64, may be left out
    /// - `keepdims`: reduced axes stay, with length 1; by default true
    /// - `noop_with_empty_axes`: no axes means nothing is reduced; by default false
    #[track_caller]
    pub fn reduce_min<'a>(
        &self,
        axes: impl Into<OptHostArg<'a>>,
        keepdims: impl Into<Option<bool>>,
        noop_with_empty_axes: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("keepdims", call::flag(keepdims)),
            ("noop_with_empty_axes", call::flag(noop_with_empty_axes)),
        ]);
        let operands = [call::strict(self), call::optional_host(axes)?];
        call::one("ReduceMin", attrs, &operands)
    }

    /// Product over axes.
    ///
    /// - `self`: operand data, floats, i32, i64, u32, u64
    /// - `axes`: operand axes, i64, may be left out
    /// - `keepdims`: reduced axes stay, with length 1; by default true
    /// - `noop_with_empty_axes`: no axes means nothing is reduced; by default false
    #[track_caller]
    pub fn reduce_prod<'a>(
        &self,
        axes: impl Into<OptHostArg<'a>>,
        keepdims: impl Into<Option<bool>>,
        noop_with_empty_axes: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("keepdims", call::flag(keepdims)),
            ("noop_with_empty_axes", call::flag(noop_with_empty_axes)),
        ]);
        let operands = [call::strict(self), call::optional_host(axes)?];
        call::one("ReduceProd", attrs, &operands)
    }

    /// Sum over axes.
    ///
    /// - `self`: operand data, floats, i32, i64, u32, u64
    /// - `axes`: operand axes, i64, may be left out
    /// - `keepdims`: reduced axes stay, with length 1; by default true
    /// - `noop_with_empty_axes`: no axes means nothing is reduced; by default false
    #[track_caller]
    pub fn reduce_sum<'a>(
        &self,
        axes: impl Into<OptHostArg<'a>>,
        keepdims: impl Into<Option<bool>>,
        noop_with_empty_axes: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("keepdims", call::flag(keepdims)),
            ("noop_with_empty_axes", call::flag(noop_with_empty_axes)),
        ]);
        let operands = [call::strict(self), call::optional_host(axes)?];
        call::one("ReduceSum", attrs, &operands)
    }

    /// Sum of squares over axes.
    ///
    /// - `self`: operand data, floats, i32, i64, u32, u64
    /// - `axes`: operand axes, i64, may be left out
    /// - `keepdims`: reduced axes stay, with length 1; by default true
    /// - `noop_with_empty_axes`: no axes means nothing is reduced; by default false
    #[track_caller]
    pub fn reduce_sum_square<'a>(
        &self,
        axes: impl Into<OptHostArg<'a>>,
        keepdims: impl Into<Option<bool>>,
        noop_with_empty_axes: impl Into<Option<bool>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("keepdims", call::flag(keepdims)),
            ("noop_with_empty_axes", call::flag(noop_with_empty_axes)),
        ]);
        let operands = [call::strict(self), call::optional_host(axes)?];
        call::one("ReduceSumSquare", attrs, &operands)
    }

    /// max(x, 0) of X, any shape.
    ///
    /// - `self`: operand X, floats, i8, i16, i32, i64
    #[track_caller]
    pub fn relu(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Relu", attrs, &operands)
    }

    /// The operand under the given shape; 0 copies a dimension, -1 follows from the rest.
    ///
    /// - `self`: operand data, any dtype
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

    /// Rounds x to the nearest, ties to even, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn round(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Round", attrs, &operands)
    }

    /// The data with elements replaced or combined at indices along `axis`.
    ///
    /// - `self`: operand data, any dtype
    /// - `indices`: operand indices, i32, i64
    /// - `updates`: operand updates, any dtype
    /// - `axis`: the axis, from the end where negative; by default 0
    /// - `reduction`: `none`, `add`, `mul`, `max` or `min`; by default `none`
    #[track_caller]
    pub fn scatter_elements<'a>(
        &self,
        indices: &Tensor,
        updates: &Tensor,
        axis: impl Into<Option<i64>>,
        reduction: impl Into<Option<&'a str>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("axis", call::int(axis)),
            ("reduction", call::text(reduction)),
        ]);
        let operands = [
            call::strict(self),
            call::strict(indices),
            call::strict(updates),
        ];
        call::one("ScatterElements", attrs, &operands)
    }

    /// The data with slices replaced or combined at coordinates.
    ///
    /// - `self`: operand data, any dtype
    /// - `indices`: operand indices, i64
    /// - `updates`: operand updates, any dtype
    /// - `reduction`: `none`, `add`, `mul`, `max` or `min`; by default `none`
    #[track_caller]
    pub fn scatter_nd<'a>(
        &self,
        indices: &Tensor,
        updates: &Tensor,
        reduction: impl Into<Option<&'a str>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("reduction", call::text(reduction))]);
        let operands = [
            call::strict(self),
            call::strict(indices),
            call::strict(updates),
        ];
        call::one("ScatterND", attrs, &operands)
    }

    /// gamma * x, or gamma * alpha * (e^x - 1) below zero, any shape.
    ///
    /// - `self`: operand X, floats
    /// - `alpha`: a factor of the formula; by default 1.6732632
    /// - `gamma`: a factor of the formula; by default 1.050701
    #[track_caller]
    pub fn selu(
        &self,
        alpha: impl Into<Option<f32>>,
        gamma: impl Into<Option<f32>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([("alpha", call::float(alpha)), ("gamma", call::float(gamma))]);
        let operands = [call::strict(self)];
        call::one("Selu", attrs, &operands)
    }

    /// Dimensions `start..end` of the operand, as i64.
    ///
    /// - `self`: operand data, any dtype
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

    /// 1 / (1 + e^-x) of X, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn sigmoid(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Sigmoid", attrs, &operands)
    }

    /// -1, 0 or 1 by the sign of x, any shape.
    ///
    /// - `self`: operand X, numbers
    #[track_caller]
    pub fn sign(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Sign", attrs, &operands)
    }

    /// Sine of X, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn sin(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Sin", attrs, &operands)
    }

    /// Hyperbolic sine of X, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn sinh(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Sinh", attrs, &operands)
    }

    /// Number of elements of the operand, an i64 scalar.
    ///
    /// - `self`: operand data, any dtype
    #[track_caller]
    pub fn size_op(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Size", attrs, &operands)
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

    /// e^x over its sum along an axis, any shape.
    ///
    /// - `self`: operand X, floats
    /// - `axis`: the axis, from the end where negative; by default -1
    #[track_caller]
    pub fn softmax(&self, axis: impl Into<Option<i64>>) -> Result<Tensor> {
        let attrs = call::attrs([("axis", call::int(axis))]);
        let operands = [call::strict(self)];
        call::one("Softmax", attrs, &operands)
    }

    /// ln(1 + e^x) of X, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn softplus(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Softplus", attrs, &operands)
    }

    /// x / (1 + |x|) of X, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn softsign(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Softsign", attrs, &operands)
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

    /// Square root of X, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn sqrt(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Sqrt", attrs, &operands)
    }

    /// The operand without the given axes of length 1, or without all such axes.
    ///
    /// - `self`: operand data, any dtype
    /// - `axes`: operand axes, i64, may be left out
    #[track_caller]
    pub fn squeeze<'a>(&self, axes: impl Into<OptHostArg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self), call::optional_host(axes)?];
        call::one("Squeeze", attrs, &operands)
    }

    /// A - B, broadcast.
    ///
    /// - `self`: operand A, numbers
    /// - `b`: operand B, numbers
    ///
    /// Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn sub<'a>(&self, b: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(b)];
        call::one("Sub", attrs, &operands)
    }

    /// The sum of the operands, broadcast.
    ///
    /// - `data`: operand data, floats
    ///
    /// Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn sum_op(data: &[&Tensor]) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands: Vec<_> = data.iter().map(|t| call::joint(*t)).collect();
        call::one("Sum", attrs, &operands)
    }

    /// x * sigmoid(alpha * x), any shape.
    ///
    /// - `self`: operand X, floats
    /// - `alpha`: a factor of the formula; by default 1
    #[track_caller]
    pub fn swish(&self, alpha: impl Into<Option<f32>>) -> Result<Tensor> {
        let attrs = call::attrs([("alpha", call::float(alpha))]);
        let operands = [call::strict(self)];
        call::one("Swish", attrs, &operands)
    }

    /// Tangent of X, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn tan(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Tan", attrs, &operands)
    }

    /// Hyperbolic tangent of X, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn tanh(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Tanh", attrs, &operands)
    }

    /// x above alpha, else 0, any shape.
    ///
    /// - `self`: operand X, floats
    /// - `alpha`: a factor of the formula; by default 1
    #[track_caller]
    pub fn thresholded_relu(&self, alpha: impl Into<Option<f32>>) -> Result<Tensor> {
        let attrs = call::attrs([("alpha", call::float(alpha))]);
        let operands = [call::strict(self)];
        call::one("ThresholdedRelu", attrs, &operands)
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

    /// The K largest (or smallest) elements along `axis`, and their indices.
    /// Both outputs are given, as a tuple of two.
    ///
    /// - `self`: operand X, numbers
    /// - `k`: operand K, i64
    /// - `axis`: the axis, from the end where negative; by default -1
    /// - `largest`: the largest instead of the smallest; by default true
    #[track_caller]
    pub fn top_k<'a>(
        &self,
        k: impl Into<HostArg<'a>>,
        axis: impl Into<Option<i64>>,
        largest: impl Into<Option<bool>>,
    ) -> Result<(Tensor, Tensor)> {
        let attrs = call::attrs([("axis", call::int(axis)), ("largest", call::flag(largest))]);
        let operands = [call::strict(self), call::host(k)?];
        call::two("TopK", attrs, &operands)
    }

    /// The operand with its axes permuted, reversed by default.
    ///
    /// - `self`: operand input, any dtype
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

    /// The operand with axes of length 1 inserted.
    ///
    /// - `self`: operand data, any dtype
    /// - `axes`: operand axes, i64
    #[track_caller]
    pub fn unsqueeze<'a>(&self, axes: impl Into<HostArg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self), call::host(axes)?];
        call::one("Unsqueeze", attrs, &operands)
    }

    /// X where the condition holds, else Y, all broadcast.
    ///
    /// - `self`: operand condition, bool
    /// - `x`: operand X, any dtype
    /// - `y`: operand Y, any dtype
    ///
    /// Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn where_<'a>(&self, x: impl Into<Arg<'a>>, y: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self), call::joint(x), call::joint(y)];
        call::one("Where", attrs, &operands)
    }

    /// A exclusive-or B, broadcast.
    ///
    /// - `self`: operand A, bool
    /// - `b`: operand B, bool
    ///
    /// Operands are brought to one dtype, see [`Arg`].
    #[track_caller]
    pub fn xor<'a>(&self, b: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(b)];
        call::one("Xor", attrs, &operands)
    }
}

/// Ops of the registry that make a tensor from nothing of a device.
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

    /// A tensor of the given shape, normal around `mean` with standard deviation `scale`, drawn as
    /// `PhiloxUniform`.
    ///
    /// - `shape`: operand shape, i64
    /// - `seed`: operand seed, i64
    /// - `dtype`: the dtype of the result
    /// - `mean`: the mean; by default 0
    /// - `scale`: the standard deviation; by default 1
    #[track_caller]
    pub fn philox_normal<'a>(
        &self,
        shape: impl Into<HostArg<'a>>,
        seed: impl Into<HostArg<'a>>,
        dtype: DType,
        mean: impl Into<Option<f32>>,
        scale: impl Into<Option<f32>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("dtype", call::dtype(dtype)),
            ("mean", call::float(mean)),
            ("scale", call::float(scale)),
        ]);
        let operands = [call::host(shape)?, call::host(seed)?];
        call::create(self, "PhiloxNormal", attrs, &operands)
    }

    /// A tensor of the given shape, uniform in \[low, high), drawn from `seed`, an i64 key and stream of
    /// shape \[2\].
    ///
    /// - `shape`: operand shape, i64
    /// - `seed`: operand seed, i64
    /// - `dtype`: the dtype of the result
    /// - `low`: the begin of the interval; by default 0
    /// - `high`: the end of the interval; by default 1
    #[track_caller]
    pub fn philox_uniform<'a>(
        &self,
        shape: impl Into<HostArg<'a>>,
        seed: impl Into<HostArg<'a>>,
        dtype: DType,
        low: impl Into<Option<f32>>,
        high: impl Into<Option<f32>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("dtype", call::dtype(dtype)),
            ("low", call::float(low)),
            ("high", call::float(high)),
        ]);
        let operands = [call::host(shape)?, call::host(seed)?];
        call::create(self, "PhiloxUniform", attrs, &operands)
    }

    /// start, start + delta, .. before limit.
    ///
    /// - `start`: operand start, floats, i16, i32, i64
    /// - `limit`: operand limit, floats, i16, i32, i64
    /// - `delta`: operand delta, floats, i16, i32, i64
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

/// Attributes of ops that have many: what is `None`, or an empty list, is the op's default.
pub mod options {
    /// Attributes of [`Tensor::arg_max`](super::Tensor::arg_max).
    #[derive(Debug, Clone, Default, PartialEq)]
    pub struct ArgMax {
        /// The axis, from the end where negative; by default 0.
        pub axis: Option<i64>,
        /// Reduced axes stay, with length 1; by default true.
        pub keepdims: Option<bool>,
        /// Of equal elements the last counts; by default false.
        pub select_last_index: Option<bool>,
    }

    /// Attributes of [`Tensor::arg_min`](super::Tensor::arg_min).
    #[derive(Debug, Clone, Default, PartialEq)]
    pub struct ArgMin {
        /// The axis, from the end where negative; by default 0.
        pub axis: Option<i64>,
        /// Reduced axes stay, with length 1; by default true.
        pub keepdims: Option<bool>,
        /// Of equal elements the last counts; by default false.
        pub select_last_index: Option<bool>,
    }

    /// Attributes of [`Tensor::average_pool`](super::Tensor::average_pool).
    #[derive(Debug, Clone, Default, PartialEq)]
    pub struct AveragePool {
        /// `NOTSET`, `SAME_UPPER`, `SAME_LOWER` or `VALID`; by default `NOTSET`.
        pub auto_pad: Option<String>,
        /// Windows at the end may reach beyond it; by default false.
        pub ceil_mode: Option<bool>,
        /// Steps inside a window, one per spatial axis; by default all 1.
        pub dilations: Vec<i64>,
        /// Padding before every spatial axis, then behind every one; by default all 0.
        pub pads: Vec<i64>,
        /// Steps of the window, one per spatial axis; by default all 1.
        pub strides: Vec<i64>,
        /// Padding counts in the mean; by default false.
        pub count_include_pad: Option<bool>,
    }

    /// Attributes of [`Tensor::conv`](super::Tensor::conv).
    #[derive(Debug, Clone, Default, PartialEq)]
    pub struct Conv {
        /// `NOTSET`, `SAME_UPPER`, `SAME_LOWER` or `VALID`; by default `NOTSET`.
        pub auto_pad: Option<String>,
        /// Steps inside a window, one per spatial axis; by default all 1.
        pub dilations: Vec<i64>,
        /// Groups of channels; by default 1.
        pub group: Option<i64>,
        /// Extents of the window, one per spatial axis; by default W's.
        pub kernel_shape: Vec<i64>,
        /// Padding before every spatial axis, then behind every one; by default all 0.
        pub pads: Vec<i64>,
        /// Steps of the window, one per spatial axis; by default all 1.
        pub strides: Vec<i64>,
    }

    /// Attributes of [`Tensor::gemm`](super::Tensor::gemm).
    #[derive(Debug, Clone, Default, PartialEq)]
    pub struct Gemm {
        /// A factor of the formula; by default 1.
        pub alpha: Option<f32>,
        /// A factor of the formula; by default 1.
        pub beta: Option<f32>,
        /// A is transposed first; by default false.
        pub trans_a: Option<bool>,
        /// B is transposed first; by default false.
        pub trans_b: Option<bool>,
    }

    /// Attributes of [`Tensor::lrn`](super::Tensor::lrn).
    #[derive(Debug, Clone, Default, PartialEq)]
    pub struct LRN {
        /// A factor of the formula; by default 0.0001.
        pub alpha: Option<f32>,
        /// The power; by default 0.75.
        pub beta: Option<f32>,
        /// What is added to the sum of squares, times alpha; by default 1.
        pub bias: Option<f32>,
    }

    /// Attributes of [`Tensor::lp_pool`](super::Tensor::lp_pool).
    #[derive(Debug, Clone, Default, PartialEq)]
    pub struct LpPool {
        /// `NOTSET`, `SAME_UPPER`, `SAME_LOWER` or `VALID`; by default `NOTSET`.
        pub auto_pad: Option<String>,
        /// Windows at the end may reach beyond it; by default false.
        pub ceil_mode: Option<bool>,
        /// Steps inside a window, one per spatial axis; by default all 1.
        pub dilations: Vec<i64>,
        /// Padding before every spatial axis, then behind every one; by default all 0.
        pub pads: Vec<i64>,
        /// Steps of the window, one per spatial axis; by default all 1.
        pub strides: Vec<i64>,
        /// The norm; by default 2.
        pub p: Option<i64>,
    }

    /// Attributes of [`Tensor::max_pool`](super::Tensor::max_pool).
    #[derive(Debug, Clone, Default, PartialEq)]
    pub struct MaxPool {
        /// `NOTSET`, `SAME_UPPER`, `SAME_LOWER` or `VALID`; by default `NOTSET`.
        pub auto_pad: Option<String>,
        /// Windows at the end may reach beyond it; by default false.
        pub ceil_mode: Option<bool>,
        /// Steps inside a window, one per spatial axis; by default all 1.
        pub dilations: Vec<i64>,
        /// Padding before every spatial axis, then behind every one; by default all 0.
        pub pads: Vec<i64>,
        /// Steps of the window, one per spatial axis; by default all 1.
        pub strides: Vec<i64>,
        /// Indices are those of column-major order; by default false.
        pub storage_order: Option<bool>,
    }
}
