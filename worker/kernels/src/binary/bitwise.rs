//! Logical functions of booleans, and functions of the bits of integers.

use super::{BinaryFn, binary_functions, map};
use crate::Exec;
use crate::compiled::compiled_integers;
use crate::element::Integer;
use crate::error::Result;
use crate::shape::Operand;

/// A function of two booleans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Logic {
    And,
    Or,
    Xor,
}

/// A function of the bits of two integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Bitwise {
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
}

binary_functions! { Integer => T, wide false;
    And(a, b) T::and(a, b);
    Or(a, b) T::or(a, b);
    Xor(a, b) T::xor(a, b);
    ShiftLeft(a, b) T::shl(a, b);
    ShiftRight(a, b) T::shr(a, b);
}

/// `y = op(a, b)` on booleans of value 0 or 1, both broadcast to `y_shape`.
pub fn logic(
    exec: &Exec,
    op: Logic,
    a: Operand<u8>,
    b: Operand<u8>,
    y: &mut [u8],
    y_shape: &[usize],
) -> Result {
    match op {
        Logic::And => map(exec, And, a, b, y, y_shape),
        Logic::Or => map(exec, Or, a, b, y, y_shape),
        Logic::Xor => map(exec, Xor, a, b, y, y_shape),
    }
}
fn bitwise_any<T: Integer>(
    exec: &Exec,
    op: Bitwise,
    a: Operand<T>,
    b: Operand<T>,
    y: &mut [T],
    y_shape: &[usize],
) -> Result {
    match op {
        Bitwise::And => map(exec, And, a, b, y, y_shape),
        Bitwise::Or => map(exec, Or, a, b, y, y_shape),
        Bitwise::Xor => map(exec, Xor, a, b, y, y_shape),
        Bitwise::ShiftLeft => map(exec, ShiftLeft, a, b, y, y_shape),
        Bitwise::ShiftRight => map(exec, ShiftRight, a, b, y, y_shape),
    }
}

compiled_integers! {
    /// The bit operations of a type.
    trait BitwiseKernels {
        fn bitwise(exec: &Exec, op: Bitwise, a: Operand<Self>, b: Operand<Self>, y: &mut [Self], y_shape: &[usize]) = bitwise_any;
    }
}

/// `y = op(a, b)` on integers, both broadcast to `y_shape`.
pub fn bitwise<T: Integer>(
    exec: &Exec,
    op: Bitwise,
    a: Operand<T>,
    b: Operand<T>,
    y: &mut [T],
    y_shape: &[usize],
) -> Result {
    T::bitwise(exec, op, a, b, y, y_shape)
}
