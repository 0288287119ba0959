//! Other elementwise ops of one tensor.
//!
//! Made from the registry by `tests/op_api`, which also checks that it follows it: with
//! `CONVOKE_WRITE_OPS=1` in the environment it writes this file.

use convoke_common::error::Result;
use convoke_graph::DType;

use crate::tensor::args::{OptArg, OptHostArg};
use crate::tensor::{Tensor, call};

/// Other elementwise ops of one tensor.
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

    /// The bits of X as elements of another dtype of the same size, any shape.
    ///
    /// - `self`: operand X, any dtype
    /// - `to`: the dtype of the result
    #[track_caller]
    pub fn bit_cast(&self, to: DType) -> Result<Tensor> {
        let attrs = call::attrs([("to", call::dtype(to))]);
        let operands = [call::strict(self)];
        call::one("BitCast", attrs, &operands)
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
    /// - `self`: operand X, any dtype, narrow ones too
    /// - `to`: the dtype of the result
    #[track_caller]
    pub fn cast(&self, to: DType) -> Result<Tensor> {
        let attrs = call::attrs([("to", call::dtype(to))]);
        let operands = [call::strict(self)];
        call::one("Cast", attrs, &operands)
    }

    /// X with elements of the dtype of a second operand, any shape.
    ///
    /// - `self`: operand X, any dtype, narrow ones too
    /// - `target_type`: operand target_type, any dtype, narrow ones too
    #[track_caller]
    pub fn cast_like(&self, target_type: &Tensor) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self), call::strict(target_type)];
        call::one("CastLike", attrs, &operands)
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

    /// Error function of X, any shape.
    ///
    /// - `self`: operand X, numbers
    #[track_caller]
    pub fn erf(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Erf", attrs, &operands)
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

    /// X itself.
    ///
    /// - `self`: operand X, any dtype, narrow ones too
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

    /// max(x, 0) of X, any shape.
    ///
    /// - `self`: operand X, numbers
    #[track_caller]
    pub fn relu(&self) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::strict(self)];
        call::one("Relu", attrs, &operands)
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
}
