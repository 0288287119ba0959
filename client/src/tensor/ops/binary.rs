//! Elementwise ops of several tensors, broadcast.
//!
//! Made from the registry by `tests/op_api`, which also checks that it follows it: with
//! `CONVOKE_WRITE_OPS=1` in the environment it writes this file.

use convoke_common::error::Result;

use crate::tensor::args::Arg;
use crate::tensor::{Tensor, call};

/// Elementwise ops of several tensors, broadcast.
impl Tensor {
    /// A + B, broadcast.
    ///
    /// - `self`: operand A, numbers
    /// - `b`: operand B, numbers
    ///
    /// Operands are brought to one dtype, see [`Arg`](crate::Arg).
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
    /// Operands are brought to one dtype, see [`Arg`](crate::Arg).
    #[track_caller]
    pub fn and<'a>(&self, b: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(b)];
        call::one("And", attrs, &operands)
    }

    /// A shifted by B bits, broadcast.
    ///
    /// - `self`: operand A, integers
    /// - `b`: operand B, integers
    /// - `direction`: `LEFT` or `RIGHT`
    ///
    /// Operands are brought to one dtype, see [`Arg`](crate::Arg).
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
    /// Operands are brought to one dtype, see [`Arg`](crate::Arg).
    #[track_caller]
    pub fn bitwise_and<'a>(&self, b: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(b)];
        call::one("BitwiseAnd", attrs, &operands)
    }

    /// Bitwise A or B, broadcast.
    ///
    /// - `self`: operand A, integers
    /// - `b`: operand B, integers
    ///
    /// Operands are brought to one dtype, see [`Arg`](crate::Arg).
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
    /// Operands are brought to one dtype, see [`Arg`](crate::Arg).
    #[track_caller]
    pub fn bitwise_xor<'a>(&self, b: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(b)];
        call::one("BitwiseXor", attrs, &operands)
    }

    /// A / B, broadcast; integers truncate.
    ///
    /// - `self`: operand A, numbers
    /// - `b`: operand B, numbers
    ///
    /// Operands are brought to one dtype, see [`Arg`](crate::Arg).
    #[track_caller]
    pub fn div<'a>(&self, b: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(b)];
        call::one("Div", attrs, &operands)
    }

    /// A = B, broadcast.
    ///
    /// - `self`: operand A, any dtype
    /// - `b`: operand B, any dtype
    ///
    /// Operands are brought to one dtype, see [`Arg`](crate::Arg).
    #[track_caller]
    pub fn equal<'a>(&self, b: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(b)];
        call::one("Equal", attrs, &operands)
    }

    /// A > B, broadcast.
    ///
    /// - `self`: operand A, numbers
    /// - `b`: operand B, numbers
    ///
    /// Operands are brought to one dtype, see [`Arg`](crate::Arg).
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
    /// Operands are brought to one dtype, see [`Arg`](crate::Arg).
    #[track_caller]
    pub fn greater_or_equal<'a>(&self, b: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(b)];
        call::one("GreaterOrEqual", attrs, &operands)
    }

    /// A < B, broadcast.
    ///
    /// - `self`: operand A, numbers
    /// - `b`: operand B, numbers
    ///
    /// Operands are brought to one dtype, see [`Arg`](crate::Arg).
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
    /// Operands are brought to one dtype, see [`Arg`](crate::Arg).
    #[track_caller]
    pub fn less_or_equal<'a>(&self, b: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(b)];
        call::one("LessOrEqual", attrs, &operands)
    }

    /// The greatest of the operands, broadcast.
    ///
    /// - `data`: operand data, numbers
    ///
    /// Operands are brought to one dtype, see [`Arg`](crate::Arg).
    #[track_caller]
    pub fn max_op(data: &[&Tensor]) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands: Vec<_> = data.iter().map(|t| call::joint(*t)).collect();
        call::one("Max", attrs, &operands)
    }

    /// The mean of the operands, broadcast.
    ///
    /// - `data`: operand data, floats
    ///
    /// Operands are brought to one dtype, see [`Arg`](crate::Arg).
    #[track_caller]
    pub fn mean_op(data: &[&Tensor]) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands: Vec<_> = data.iter().map(|t| call::joint(*t)).collect();
        call::one("Mean", attrs, &operands)
    }

    /// The least of the operands, broadcast.
    ///
    /// - `data`: operand data, numbers
    ///
    /// Operands are brought to one dtype, see [`Arg`](crate::Arg).
    #[track_caller]
    pub fn min_op(data: &[&Tensor]) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands: Vec<_> = data.iter().map(|t| call::joint(*t)).collect();
        call::one("Min", attrs, &operands)
    }

    /// The remainder of A / B, of B's sign or with `fmod` of A's, broadcast.
    ///
    /// - `self`: operand A, numbers
    /// - `b`: operand B, numbers
    /// - `fmod`: the remainder has A's sign; by default false
    ///
    /// Operands are brought to one dtype, see [`Arg`](crate::Arg).
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
    /// Operands are brought to one dtype, see [`Arg`](crate::Arg).
    #[track_caller]
    pub fn mul<'a>(&self, b: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(b)];
        call::one("Mul", attrs, &operands)
    }

    /// A or B, broadcast.
    ///
    /// - `self`: operand A, bool
    /// - `b`: operand B, bool
    ///
    /// Operands are brought to one dtype, see [`Arg`](crate::Arg).
    #[track_caller]
    pub fn or<'a>(&self, b: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(b)];
        call::one("Or", attrs, &operands)
    }

    /// x, or slope * x below zero; the slope broadcasts to X.
    ///
    /// - `self`: operand X, numbers
    /// - `slope`: operand slope, numbers
    ///
    /// Operands are brought to one dtype, see [`Arg`](crate::Arg).
    #[track_caller]
    pub fn prelu<'a>(&self, slope: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(slope)];
        call::one("PRelu", attrs, &operands)
    }

    /// X to the power Y, broadcast, of X's dtype.
    ///
    /// - `self`: operand X, numbers
    /// - `y`: operand Y, numbers
    ///
    /// Operands are brought to one dtype, see [`Arg`](crate::Arg).
    #[track_caller]
    pub fn pow<'a>(&self, y: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(y)];
        call::one("Pow", attrs, &operands)
    }

    /// A - B, broadcast.
    ///
    /// - `self`: operand A, numbers
    /// - `b`: operand B, numbers
    ///
    /// Operands are brought to one dtype, see [`Arg`](crate::Arg).
    #[track_caller]
    pub fn sub<'a>(&self, b: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(b)];
        call::one("Sub", attrs, &operands)
    }

    /// The sum of the operands, broadcast.
    ///
    /// - `data`: operand data, numbers
    ///
    /// Operands are brought to one dtype, see [`Arg`](crate::Arg).
    #[track_caller]
    pub fn sum_op(data: &[&Tensor]) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands: Vec<_> = data.iter().map(|t| call::joint(*t)).collect();
        call::one("Sum", attrs, &operands)
    }

    /// X where the condition holds, else Y, all broadcast.
    ///
    /// - `self`: operand condition, bool
    /// - `x`: operand X, any dtype
    /// - `y`: operand Y, any dtype
    ///
    /// Operands are brought to one dtype, see [`Arg`](crate::Arg).
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
    /// Operands are brought to one dtype, see [`Arg`](crate::Arg).
    #[track_caller]
    pub fn xor<'a>(&self, b: impl Into<Arg<'a>>) -> Result<Tensor> {
        let attrs = call::attrs([]);
        let operands = [call::joint(self), call::joint(b)];
        call::one("Xor", attrs, &operands)
    }
}
