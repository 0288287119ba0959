//! Quantised numbers.
//!
//! Made from the registry by `tests/op_api`, which also checks that it follows it: with
//! `CONVOKE_WRITE_OPS=1` in the environment it writes this file.

use convoke_common::error::Result;

use crate::tensor::options;
use crate::tensor::{Tensor, call};

/// Quantised numbers.
impl Tensor {
    /// X \[N, C, ..\] convolved with W \[M, C/group, ..\], each less its zero point, as exact sums that
    /// wrap: \[N, M, ..\].
    ///
    /// - `self`: operand X, u8, i8
    /// - `w`: operand W, u8, i8
    /// - `x_zero_point`: operand x_zero_point, u8, i8, may be left out
    /// - `w_zero_point`: operand w_zero_point, u8, i8, may be left out
    /// - `with`: further attributes
    #[track_caller]
    pub fn conv_integer(
        &self,
        w: &Tensor,
        x_zero_point: Option<&Tensor>,
        w_zero_point: Option<&Tensor>,
        with: impl Into<Option<options::ConvInteger>>,
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
        let operands = [
            call::strict(self),
            call::strict(w),
            call::optional(x_zero_point),
            call::optional(w_zero_point),
        ];
        call::one("ConvInteger", attrs, &operands)
    }

    /// (x - zero point) * scale: the numbers that codes stand for.
    ///
    /// - `self`: operand x, any dtype
    /// - `x_scale`: operand x_scale, f32, f16, bf16, f8e8m0
    /// - `x_zero_point`: operand x_zero_point, any dtype, may be left out
    /// - `with`: further attributes
    #[track_caller]
    pub fn dequantize_linear(
        &self,
        x_scale: &Tensor,
        x_zero_point: Option<&Tensor>,
        with: impl Into<Option<options::DequantizeLinear>>,
    ) -> Result<Tensor> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            ("axis", call::int(with.axis)),
            ("block_size", call::int(with.block_size)),
            ("output_dtype", call::dtype(with.output_dtype)),
        ]);
        let operands = [
            call::strict(self),
            call::strict(x_scale),
            call::optional(x_zero_point),
        ];
        call::one("DequantizeLinear", attrs, &operands)
    }

    /// The codes of x from 0 to 255, with the scale and the zero point that x and 0 span.
    /// All three outputs are given, as a tuple of three.
    ///
    /// - `self`: operand x, f32
    #[track_caller]
    pub fn dynamic_quantize_linear(&self) -> Result<(Tensor, Tensor, Tensor)> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::three("DynamicQuantizeLinear", attrs, &operands)
    }

    /// A \[.., M, K\] times B \[.., K, N\], each less its zero point, as exact sums that wrap: \[.., M, N\].
    ///
    /// - `self`: operand A, u8, i8
    /// - `b`: operand B, u8, i8
    /// - `a_zero_point`: operand a_zero_point, u8, i8, may be left out
    /// - `b_zero_point`: operand b_zero_point, u8, i8, may be left out
    #[track_caller]
    pub fn matmul_integer(
        &self,
        b: &Tensor,
        a_zero_point: Option<&Tensor>,
        b_zero_point: Option<&Tensor>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [
            call::strict(self),
            call::strict(b),
            call::optional(a_zero_point),
            call::optional(b_zero_point),
        ];
        call::one("MatMulInteger", attrs, &operands)
    }

    /// A \[.., K\] times weights \[K, N\], of which each column's blocks are codes of a few bits, plus bias:
    /// \[.., N\].
    ///
    /// - `self`: operand A, f32, f16, bf16
    /// - `b`: operand B, u8, i8, u4, i4, u2, i2
    /// - `scales`: operand scales, f32, f16, bf16
    /// - `zero_points`: operand zero_points, u8, i8, f32, f16, bf16, may be left out
    /// - `bias`: operand bias, f32, f16, bf16, may be left out
    /// - `k`: rows of the weights
    /// - `n`: columns of the weights
    /// - `block_size`: weights of a column that share a scale
    /// - `bits`: bits of a weight: 2, 4 or 8; by default 4
    #[track_caller]
    pub fn matmul_n_bits(
        &self,
        b: &Tensor,
        scales: &Tensor,
        zero_points: Option<&Tensor>,
        bias: Option<&Tensor>,
        k: i64,
        n: i64,
        block_size: i64,
        bits: impl Into<Option<i64>>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([
            ("K", call::int(k)),
            ("N", call::int(n)),
            ("block_size", call::int(block_size)),
            ("bits", call::int(bits)),
        ]);
        let operands = [
            call::strict(self),
            call::strict(b),
            call::strict(scales),
            call::optional(zero_points),
            call::optional(bias),
        ];
        call::one("MatMulNBits", attrs, &operands)
    }

    /// The codes of X \[N, C, ..\] convolved with W \[M, C/group, ..\], plus bias \[M\] in units of both
    /// scales: \[N, M, ..\].
    ///
    /// - `self`: operand x, u8, i8
    /// - `x_scale`: operand x_scale, f32, f16, bf16
    /// - `x_zero_point`: operand x_zero_point, u8, i8
    /// - `w`: operand w, u8, i8
    /// - `w_scale`: operand w_scale, f32, f16, bf16
    /// - `w_zero_point`: operand w_zero_point, u8, i8
    /// - `y_scale`: operand y_scale, f32, f16, bf16
    /// - `y_zero_point`: operand y_zero_point, u8, i8
    /// - `b`: operand B, i32, may be left out
    /// - `with`: further attributes
    #[track_caller]
    pub fn q_linear_conv(
        &self,
        x_scale: &Tensor,
        x_zero_point: &Tensor,
        w: &Tensor,
        w_scale: &Tensor,
        w_zero_point: &Tensor,
        y_scale: &Tensor,
        y_zero_point: &Tensor,
        b: Option<&Tensor>,
        with: impl Into<Option<options::QLinearConv>>,
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
        let operands = [
            call::strict(self),
            call::strict(x_scale),
            call::strict(x_zero_point),
            call::strict(w),
            call::strict(w_scale),
            call::strict(w_zero_point),
            call::strict(y_scale),
            call::strict(y_zero_point),
            call::optional(b),
        ];
        call::one("QLinearConv", attrs, &operands)
    }

    /// The codes of a \[.., M, K\] times b \[.., K, N\], plus bias \[N\] in units of both scales: \[.., M,
    /// N\].
    ///
    /// - `self`: operand a, u8, i8
    /// - `a_scale`: operand a_scale, f32, f16, bf16
    /// - `a_zero_point`: operand a_zero_point, u8, i8
    /// - `b`: operand b, u8, i8
    /// - `b_scale`: operand b_scale, f32, f16, bf16
    /// - `b_zero_point`: operand b_zero_point, u8, i8
    /// - `y_scale`: operand y_scale, f32, f16, bf16
    /// - `y_zero_point`: operand y_zero_point, u8, i8
    /// - `bias`: operand bias, i32, may be left out
    #[track_caller]
    pub fn q_linear_matmul(
        &self,
        a_scale: &Tensor,
        a_zero_point: &Tensor,
        b: &Tensor,
        b_scale: &Tensor,
        b_zero_point: &Tensor,
        y_scale: &Tensor,
        y_zero_point: &Tensor,
        bias: Option<&Tensor>,
    ) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [
            call::strict(self),
            call::strict(a_scale),
            call::strict(a_zero_point),
            call::strict(b),
            call::strict(b_scale),
            call::strict(b_zero_point),
            call::strict(y_scale),
            call::strict(y_zero_point),
            call::optional(bias),
        ];
        call::one("QLinearMatMul", attrs, &operands)
    }

    /// x / scale, rounded half to even, plus the zero point: codes, saturated.
    ///
    /// - `self`: operand x, f32, f16, bf16, i32
    /// - `y_scale`: operand y_scale, f32, f16, bf16, i32, f8e8m0
    /// - `y_zero_point`: operand y_zero_point, u8, i8, u16, i16, u4, i4, u2, i2, f8e4m3fn, f8e4m3fnuz,
    ///   f8e5m2, f8e5m2fnuz, f4e2m1, may be left out
    /// - `with`: further attributes
    #[track_caller]
    pub fn quantize_linear(
        &self,
        y_scale: &Tensor,
        y_zero_point: Option<&Tensor>,
        with: impl Into<Option<options::QuantizeLinear>>,
    ) -> Result<Tensor> {
        let with = with.into().unwrap_or_default();
        let attrs = call::attrs([
            ("axis", call::int(with.axis)),
            ("block_size", call::int(with.block_size)),
            ("output_dtype", call::dtype(with.output_dtype)),
            ("precision", call::dtype(with.precision)),
            ("saturate", call::flag(with.saturate)),
        ]);
        let operands = [
            call::strict(self),
            call::strict(y_scale),
            call::optional(y_zero_point),
        ];
        call::one("QuantizeLinear", attrs, &operands)
    }
}
