//! `AveragePool` and `LpPool`.

use super::rows::{Pool, pool_planes};
use super::window::Window;
use crate::Exec;
use crate::compiled::compiled_floats;
use crate::element::{Float, canonical_nan};
use crate::error::Result;
use crate::math::Real;

#[derive(Clone, Copy)]
struct Average {
    include_pad: bool,
}

impl<T: Float> Pool<T> for Average {
    type OfNumbers = Self;
    #[inline(always)]
    fn of_numbers(self) -> Self {
        self
    }
    #[inline(always)]
    fn identity(self) -> T::Wide {
        Real::ZERO
    }
    #[inline(always)]
    fn push(self, acc: T::Wide, x: T::Wide) -> T::Wide {
        acc + x
    }
    #[inline(always)]
    fn finish(self, acc: T::Wide, inside: usize, padded: usize) -> T {
        let count = if self.include_pad { padded } else { inside };
        T::narrow(canonical_nan(acc / <T::Wide as Real>::from_usize(count)))
    }
}

/// The L2 norm: the square root of the sum of squares.
#[derive(Clone, Copy)]
struct L2;

impl<T: Float> Pool<T> for L2 {
    type OfNumbers = Self;
    #[inline(always)]
    fn of_numbers(self) -> Self {
        self
    }
    #[inline(always)]
    fn identity(self) -> T::Wide {
        Real::ZERO
    }
    #[inline(always)]
    fn push(self, acc: T::Wide, x: T::Wide) -> T::Wide {
        Real::mul_add(x, x, acc)
    }
    #[inline(always)]
    fn finish(self, acc: T::Wide, _: usize, _: usize) -> T {
        // In front of the root, which makes no NaN of a sum of squares: the compiler drops a check behind it.
        T::narrow(canonical_nan(acc).sqrt())
    }
}

/// The Lp norm: the p-th root of the sum of p-th powers.
#[derive(Clone, Copy)]
struct Lp {
    p: u32,
}

impl<T: Float> Pool<T> for Lp {
    const WIDE: bool = false;
    type OfNumbers = Self;
    #[inline(always)]
    fn of_numbers(self) -> Self {
        self
    }
    #[inline(always)]
    fn identity(self) -> T::Wide {
        Real::ZERO
    }
    #[inline(always)]
    fn push(self, acc: T::Wide, x: T::Wide) -> T::Wide {
        let magnitude = Real::abs(x);
        acc + if self.p == 1 {
            magnitude
        } else {
            Real::pow(magnitude, Real::from_f64(f64::from(self.p)))
        }
    }
    #[inline(always)]
    fn finish(self, acc: T::Wide, _: usize, _: usize) -> T {
        T::narrow(canonical_nan(if self.p == 1 {
            acc
        } else {
            Real::pow(acc, Real::from_f64(1.0 / f64::from(self.p)))
        }))
    }
}

fn average_pool_any<T: Float>(
    exec: &Exec,
    window: &Window,
    include_pad: bool,
    x: &[T],
    y: &mut [T],
) -> Result {
    pool_planes(exec, Average { include_pad }, window, x, y)
}

fn lp_pool_any<T: Float>(exec: &Exec, window: &Window, p: u32, x: &[T], y: &mut [T]) -> Result {
    match p {
        2 => pool_planes(exec, L2, window, x, y),
        _ => pool_planes(exec, Lp { p }, window, x, y),
    }
}

compiled_floats! {
    /// The pools of a floating-point type.
    trait AveragePoolKernels {
        fn average_pool(exec: &Exec, window: &Window, include_pad: bool, x: &[Self], y: &mut [Self])
            = average_pool_any;
        fn lp_pool(exec: &Exec, window: &Window, p: u32, x: &[Self], y: &mut [Self]) = lp_pool_any;
    }
}

/// Computes the mean over the window in each plane of `x`. With `include_pad`, taps in the padding count as zeros. Taps
/// beyond the padding, which `ceil_mode` lets the window reach, never count.
pub fn average_pool<T: Float>(
    exec: &Exec,
    window: &Window,
    include_pad: bool,
    x: &[T],
    y: &mut [T],
) -> Result {
    T::average_pool(exec, window, include_pad, x, y)
}

/// Computes the p-norm over the window in each plane of `x`; p is at least 1.
pub fn lp_pool<T: Float>(exec: &Exec, window: &Window, p: u32, x: &[T], y: &mut [T]) -> Result {
    T::lp_pool(exec, window, p, x, y)
}
