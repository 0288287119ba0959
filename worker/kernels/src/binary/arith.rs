//! Arithmetic on two operands of one type.

use super::block::RunArith;
use super::{
    BinaryFn, binary_functions, check_divisor, map, map_inplace, map_runs, map_runs_inplace,
};
use crate::Exec;
use crate::compiled::compiled_numbers;
use crate::element::{Number, canonical_nan};
use crate::error::Result;
use crate::shape::Operand;

/// A function of two elements of one type into that type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arith {
    /// a + b.
    Add,
    /// a - b.
    Sub,
    /// a * b.
    Mul,
    /// a / b; integers truncate toward zero.
    Div,
    /// Remainder with the sign of the divisor (`Mod` with `fmod = 0`).
    Mod,
    /// Remainder with the sign of the dividend (`Mod` with `fmod = 1`).
    Fmod,
    /// a^b.
    Pow,
    /// a where a >= 0, else a * b (`PRelu`, b is the slope).
    PRelu,
    /// The smaller of both; NaN if either is NaN.
    Min,
    /// The larger of both; NaN if either is NaN.
    Max,
}

// Integer loops are not compiled for wider instruction sets, because the baseline vectorizes them well enough.
binary_functions! { Number => T, wide !T::INTEGER;
    Add(a, b) canonical_nan(T::add(a, b));
    Sub(a, b) T::sub(a, b);
    Mul(a, b) canonical_nan(T::mul(a, b));
    Div(a, b) T::div(a, b);
    PRelu(a, b) canonical_nan(if a < T::ZERO { T::mul(a, b) } else { a });
    Min(a, b) T::min(a, b);
    Max(a, b) T::max(a, b);
}

binary_functions! { Number => T, wide false;
    Mod(a, b) T::modulo(a, b);
    Fmod(a, b) T::fmod(a, b);
}

binary_functions! { Number => T, wide !T::INTEGER && size_of::<T>() < 8;
    Pow(a, b) T::pow(a, b);
}

// These give the bits of `Pow` for exponents 2 and 3 (see `math::pow`), for loops whose exponent is constant.
binary_functions! { Number => T, wide !T::INTEGER;
    Square(a, _b) {
        let a = a.widen();
        T::narrow(T::Wide::mul(a, a))
    };
    Cube(a, _b) {
        let a = a.widen();
        T::narrow(T::Wide::mul(T::Wide::mul(a, a), a))
    };
}

/// The exponent of a power, where it is one constant for all elements and is 2 or 3.
pub(super) fn constant_exponent<T: Number>(op: Arith, b: &[T]) -> Option<u32> {
    match b {
        [b] if op == Arith::Pow => [2, 3].into_iter().find(|&n| b.to_f64() == f64::from(n)),
        _ => None,
    }
}

macro_rules! dispatch {
    ($op:expr, $call:ident ( $exec:expr, $($arg:expr),* )) => {
        match $op {
            Arith::Add => $call($exec, Add, $($arg),*),
            Arith::Sub => $call($exec, Sub, $($arg),*),
            Arith::Mul => $call($exec, Mul, $($arg),*),
            Arith::Div => $call($exec, Div, $($arg),*),
            Arith::Mod => $call($exec, Mod, $($arg),*),
            Arith::Fmod => $call($exec, Fmod, $($arg),*),
            Arith::Pow => $call($exec, Pow, $($arg),*),
            Arith::PRelu => $call($exec, PRelu, $($arg),*),
            Arith::Min => $call($exec, Min, $($arg),*),
            Arith::Max => $call($exec, Max, $($arg),*),
        }
    };
}

/// Calls a loop over a block with the function of `op`, which must not be a remainder.
macro_rules! dispatch_block {
    ($op:expr, $exponent:expr, $call:ident($($arg:expr),*)) => {{
        use $crate::binary::arith as f;
        match ($op, $exponent) {
            (Arith::Add, _) => $call(f::Add, $($arg),*),
            (Arith::Sub, _) => $call(f::Sub, $($arg),*),
            (Arith::Mul, _) => $call(f::Mul, $($arg),*),
            (Arith::Div, _) => $call(f::Div, $($arg),*),
            (Arith::Pow, Some(2)) => $call(f::Square, $($arg),*),
            (Arith::Pow, Some(_)) => $call(f::Cube, $($arg),*),
            (Arith::Pow, None) => $call(f::Pow, $($arg),*),
            (Arith::PRelu, _) => $call(f::PRelu, $($arg),*),
            (Arith::Min, _) => $call(f::Min, $($arg),*),
            (Arith::Max, _) => $call(f::Max, $($arg),*),
            (Arith::Mod | Arith::Fmod, _) => unreachable!("a remainder in a chain"),
        }
    }};
}
pub(super) use dispatch_block;

fn check<T: Number>(op: Arith, outputs: usize, b: &[T]) -> Result {
    match op {
        Arith::Div | Arith::Mod | Arith::Fmod => check_divisor(outputs, b),
        _ => Ok(()),
    }
}

fn arith_any<T: RunArith>(
    exec: &Exec,
    op: Arith,
    a: Operand<T>,
    b: Operand<T>,
    y: &mut [T],
    y_shape: &[usize],
) -> Result {
    check(op, y.len(), b.data)?;
    if let Some(done) = map_runs(exec, op, a, b, y, y_shape) {
        return done;
    }
    match constant_exponent(op, b.data) {
        Some(2) => return map(exec, Square, a, b, y, y_shape),
        Some(_) => return map(exec, Cube, a, b, y, y_shape),
        None => {}
    }
    dispatch!(op, map(exec, a, b, y, y_shape))
}

fn arith_inplace_any<T: RunArith>(
    exec: &Exec,
    op: Arith,
    y: &mut [T],
    y_shape: &[usize],
    b: Operand<T>,
) -> Result {
    check(op, y.len(), b.data)?;
    if let Some(done) = map_runs_inplace(exec, op, y, y_shape, b) {
        return done;
    }
    match constant_exponent(op, b.data) {
        Some(2) => return map_inplace(exec, Square, y, y_shape, b),
        Some(_) => return map_inplace(exec, Cube, y, y_shape, b),
        None => {}
    }
    dispatch!(op, map_inplace(exec, y, y_shape, b))
}

compiled_numbers! {
    /// The arithmetic kernels of a type.
    trait ArithKernels {
        fn arith(exec: &Exec, op: Arith, a: Operand<Self>, b: Operand<Self>, y: &mut [Self], shape: &[usize])
            = arith_any;
        fn arith_inplace(exec: &Exec, op: Arith, y: &mut [Self], shape: &[usize], b: Operand<Self>)
            = arith_inplace_any;
    }
}

/// `y = op(a, b)`, both broadcast to `y_shape`. An integer division by zero is an error.
pub fn arith<T: Number>(
    exec: &Exec,
    op: Arith,
    a: Operand<T>,
    b: Operand<T>,
    y: &mut [T],
    y_shape: &[usize],
) -> Result {
    T::arith(exec, op, a, b, y, y_shape)
}

/// `y = op(y, b)` with `b` broadcast to `y_shape`.
pub fn arith_inplace<T: Number>(
    exec: &Exec,
    op: Arith,
    y: &mut [T],
    y_shape: &[usize],
    b: Operand<T>,
) -> Result {
    T::arith_inplace(exec, op, y, y_shape, b)
}
