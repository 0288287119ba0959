//! Functions of one float.
//!
//! Made from the registry by `tests/op_api`, which also checks that it follows it: with
//! `CONVOKE_WRITE_OPS=1` in the environment it writes this file.

use convoke_common::error::Result;

use crate::tensor::{Tensor, call};

/// Functions of one float.
impl Tensor {
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

    /// 1 / x of X, any shape.
    ///
    /// - `self`: operand X, floats
    #[track_caller]
    pub fn reciprocal(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Reciprocal", attrs, &operands)
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
