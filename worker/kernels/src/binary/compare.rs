//! Comparisons into booleans.

use super::{BinaryFn, binary_functions, map};
use crate::Exec;
use crate::compiled::compiled_numbers;
use crate::element::Number;
use crate::error::Result;
use crate::shape::Operand;

/// A comparison; false where either operand is NaN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Compare {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

binary_functions! { Number => u8, wide !T::INTEGER;
    Equal(a, b) u8::from(a == b);
    Less(a, b) u8::from(a < b);
    LessOrEqual(a, b) u8::from(a <= b);
}
fn compare_any<T: Number>(
    exec: &Exec,
    op: Compare,
    a: Operand<T>,
    b: Operand<T>,
    y: &mut [u8],
    y_shape: &[usize],
) -> Result {
    match op {
        Compare::Equal => map(exec, Equal, a, b, y, y_shape),
        Compare::Less => map(exec, Less, a, b, y, y_shape),
        Compare::LessOrEqual => map(exec, LessOrEqual, a, b, y, y_shape),
        Compare::Greater => map(exec, Less, b, a, y, y_shape),
        Compare::GreaterOrEqual => map(exec, LessOrEqual, b, a, y, y_shape),
    }
}

compiled_numbers! {
    /// The comparisons of a type.
    trait CompareKernels {
        fn compare(exec: &Exec, op: Compare, a: Operand<Self>, b: Operand<Self>, y: &mut [u8], y_shape: &[usize]) = compare_any;
    }
}

/// `y = op(a, b)` as 0 or 1, both broadcast to `y_shape`. Booleans are compared as `u8`.
pub fn compare<T: Number>(
    exec: &Exec,
    op: Compare,
    a: Operand<T>,
    b: Operand<T>,
    y: &mut [u8],
    y_shape: &[usize],
) -> Result {
    T::compare(exec, op, a, b, y, y_shape)
}
