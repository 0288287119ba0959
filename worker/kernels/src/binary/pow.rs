//! Powers whose base and exponent differ in type.

use crate::Exec;
use crate::compiled::compiled_numbers;
use crate::element::Number;
use crate::error::Result;
use crate::shape::{Operand, Walk, count};
use crate::split::{GRAIN, tiles};

fn pow_mixed_any<T: Number>(
    exec: &Exec,
    a: Operand<T>,
    b: Operand<f64>,
    y: &mut [T],
    y_shape: &[usize],
) -> Result {
    assert_eq!(y.len(), count(y_shape), "result of shape {y_shape:?}");
    let walk = Walk::broadcast(y_shape, [a.shape, b.shape])?;
    let steps = walk.inner().map(|step| step as usize);
    Ok(tiles(exec, y, 1, GRAIN, |range, part| {
        let mut runs = walk.runs(range);
        while let Some(r) = runs.next_run() {
            for (i, y) in part[r.start..r.start + r.len].iter_mut().enumerate() {
                *y = power(
                    a.data[r.offset[0] + i * steps[0]],
                    b.data[r.offset[1] + i * steps[1]],
                );
            }
        }
    })?)
}

fn power<T: Number>(base: T, exponent: f64) -> T {
    let whole = exponent >= 0.0 && exponent.floor() == exponent;
    if !T::INTEGER || !whole {
        return T::from_f64(libm::pow(base.to_f64(), exponent));
    }
    let (mut base, mut exponent, mut y) = (base, exponent as u64, T::ONE);
    while exponent != 0 {
        if exponent & 1 == 1 {
            y = T::mul(y, base);
        }
        base = T::mul(base, base);
        exponent >>= 1;
    }
    y
}

compiled_numbers! {
    /// Mixed powers of a type.
    trait PowKernels {
        fn pow_mixed(exec: &Exec, a: Operand<Self>, b: Operand<f64>, y: &mut [Self], shape: &[usize]) = pow_mixed_any;
    }
}

/// `y = a^b` for exponents of another dtype, which are given as `f64`; both operands broadcast to `y_shape`. The power
/// is computed in `f64` and rounded (or truncated and saturated) to the base's type; an integer to a whole power that
/// is not negative is a product that wraps. For operands of equal types [`super::Arith::Pow`] is faster.
pub fn pow_mixed<T: Number>(
    exec: &Exec,
    a: Operand<T>,
    b: Operand<f64>,
    y: &mut [T],
    y_shape: &[usize],
) -> Result {
    T::pow_mixed(exec, a, b, y, y_shape)
}
