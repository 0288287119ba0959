//! Rust's operators on tensors.

use std::ops;

use convoke_common::error::Result;
use convoke_graph::DType;

use super::Tensor;
use super::args::{Arg, ArgKind, Scalar};
use super::call;

macro_rules! binary {
    ($($trait:ident, $method:ident, $issue:ident;)*) => {$(
        /// An operator issues an op, which may fail: its result is a `Result`, as in `((&a + &b)? * 2.0)?`. Either side
        /// may be a number of the program; operands are brought to one dtype, see [`Arg`].
        ///
        /// `/` and `%` of integers truncate, as Rust's do; [`Tensor::mod_`] is numpy's remainder. `&`, `|`, `^` and `!`
        /// are logical on bools and bitwise on integers.
        impl<'a, R: Into<Arg<'a>>> ops::$trait<R> for &Tensor {
            type Output = Result<Tensor>;
            /// Issues the op.
            #[track_caller]
            fn $method(self, other: R) -> Result<Tensor> {
                $issue(self.into(), other.into())
            }
        }
        impl<'a, R: Into<Arg<'a>>> ops::$trait<R> for Tensor {
            type Output = Result<Tensor>;
            /// Issues the op.
            #[track_caller]
            fn $method(self, other: R) -> Result<Tensor> {
                $issue((&self).into(), other.into())
            }
        }
        impl ops::$trait<Tensor> for &Tensor {
            type Output = Result<Tensor>;
            /// Issues the op.
            #[track_caller]
            fn $method(self, other: Tensor) -> Result<Tensor> {
                $issue(self.into(), (&other).into())
            }
        }
        impl ops::$trait<Tensor> for Tensor {
            type Output = Result<Tensor>;
            /// Issues the op.
            #[track_caller]
            fn $method(self, other: Tensor) -> Result<Tensor> {
                $issue((&self).into(), (&other).into())
            }
        }
    )*};
}
binary! {
    Add, add, add;
    Sub, sub, sub;
    Mul, mul, mul;
    Div, div, div;
    Rem, rem, rem;
    BitAnd, bitand, and;
    BitOr, bitor, or;
    BitXor, bitxor, xor;
}

/// Operators with the number on the left, as in `1.0 / &a`.
macro_rules! left {
    ($($trait:ident, $method:ident, $issue:ident, $number:ty;)*) => {$(
        impl ops::$trait<&Tensor> for $number {
            type Output = Result<Tensor>;
            /// Issues the op.
            #[track_caller]
            fn $method(self, other: &Tensor) -> Result<Tensor> {
                $issue(Scalar::from(self).into(), other.into())
            }
        }
        impl ops::$trait<Tensor> for $number {
            type Output = Result<Tensor>;
            /// Issues the op.
            #[track_caller]
            fn $method(self, other: Tensor) -> Result<Tensor> {
                $issue(Scalar::from(self).into(), (&other).into())
            }
        }
    )*};
}
macro_rules! numbers {
    ($($number:ty),*) => {$(
        left! {
            Add, add, add, $number;
            Sub, sub, sub, $number;
            Mul, mul, mul, $number;
            Div, div, div, $number;
            Rem, rem, rem, $number;
        }
    )*};
}
numbers!(f32, f64, i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! arithmetic {
    ($($name:ident, $op:literal;)*) => {$(
        #[track_caller]
        fn $name(a: Arg<'_>, b: Arg<'_>) -> Result<Tensor> {
            call::one($op, call::attrs([]), &[call::joint(a), call::joint(b)])
        }
    )*};
}
arithmetic! {
    add, "Add";
    sub, "Sub";
    mul, "Mul";
    div, "Div";
}

/// The remainder with the dividend's sign.
#[track_caller]
fn rem(a: Arg<'_>, b: Arg<'_>) -> Result<Tensor> {
    let attrs = call::attrs([("fmod", call::flag(true))]);
    call::one("Mod", attrs, &[call::joint(a), call::joint(b)])
}

/// Whether all operands are bools, so that the logical op is issued and not the bitwise one.
fn logical(operands: [&Arg<'_>; 2]) -> bool {
    operands.iter().all(|arg| match arg.0 {
        ArgKind::Tensor(t) => t.dtype() == DType::Bool,
        ArgKind::Scalar(s) => matches!(s, Scalar::Bool(_)),
        ArgKind::None => true,
    })
}

macro_rules! bits {
    ($($name:ident, $on_bools:literal, $on_integers:literal;)*) => {$(
        #[track_caller]
        fn $name(a: Arg<'_>, b: Arg<'_>) -> Result<Tensor> {
            let op = if logical([&a, &b]) { $on_bools } else { $on_integers };
            call::one(op, call::attrs([]), &[call::joint(a), call::joint(b)])
        }
    )*};
}
bits! {
    and, "And", "BitwiseAnd";
    or, "Or", "BitwiseOr";
    xor, "Xor", "BitwiseXor";
}

impl ops::Neg for &Tensor {
    type Output = Result<Tensor>;
    /// Issues the op.
    #[track_caller]
    fn neg(self) -> Result<Tensor> {
        Tensor::neg(self)
    }
}

impl ops::Neg for Tensor {
    type Output = Result<Tensor>;
    /// Issues the op.
    #[track_caller]
    fn neg(self) -> Result<Tensor> {
        Tensor::neg(&self)
    }
}

impl ops::Not for &Tensor {
    type Output = Result<Tensor>;
    /// Issues the op.
    #[track_caller]
    fn not(self) -> Result<Tensor> {
        match self.dtype() {
            DType::Bool => Tensor::not(self),
            _ => self.bitwise_not(),
        }
    }
}

impl ops::Not for Tensor {
    type Output = Result<Tensor>;
    /// Issues the op.
    #[track_caller]
    fn not(self) -> Result<Tensor> {
        !&self
    }
}
