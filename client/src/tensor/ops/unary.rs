//! Elementwise ops of one tensor.
//!
//! Made from the registry by `tests/op_api`, which also checks that it follows it: with
//! `CONVOKE_WRITE_OPS=1` in the environment it writes this file.

use convoke_common::error::Result;
use convoke_graph::DType;

use crate::tensor::args::{OptArg, OptHostArg};
use crate::tensor::{Tensor, call};

/// Elementwise ops of one tensor.
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

    /// Bitwise complement of X, any shape.
    ///
    /// - `self`: operand X, integers
    #[track_caller]
    pub fn bitwise_not(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("BitwiseNot", attrs, &operands)
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
    /// Operands are brought to one dtype, see [`Arg`](crate::Arg).
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

    /// Rounds x towards minus infinity, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn floor(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Floor", attrs, &operands)
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

    /// X itself.
    ///
    /// - `self`: operand X, any dtype
    #[track_caller]
    pub fn identity(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Identity", attrs, &operands)
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

    /// Natural logarithm of X, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn log(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Log", attrs, &operands)
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

    /// -x of X, any shape; unsigned integers wrap.
    ///
    /// - `self`: operand X, numbers
    #[track_caller]
    pub fn neg(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Neg", attrs, &operands)
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

    /// 1 / x of X, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn reciprocal(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Reciprocal", attrs, &operands)
    }

    /// max(x, 0) of X, any shape.
    ///
    /// - `self`: operand X, numbers
    #[track_caller]
    pub fn relu(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Relu", attrs, &operands)
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

    /// Square root of X, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn sqrt(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Sqrt", attrs, &operands)
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
}
