//! Arithmetic on elements.

use super::kernels::{FloatKernels, IntegerKernels, NumberKernels};
use super::{Element, bf16, f16, halves, runs};
use crate::math::Real;
use crate::multiversion::multiversion;

/// An element with arithmetic. Every dtype has arithmetic; booleans count as `u8`.
pub trait Number: Element + NumberKernels {
    /// The type that operators compute in: `f32` for `f16` and `bf16`, else the type itself.
    type Wide: Number<Wide = Self::Wide>;
    /// The integer type of [`Number::rank`].
    type Rank: Ord + Copy;
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// Identity of the maximum: -inf, or the least integer.
    const LOWEST: Self;
    /// Identity of the minimum: +inf, or the greatest integer.
    const HIGHEST: Self;
    /// Whether this is an integer type.
    const INTEGER: bool;

    /// Converts to the computing type, exactly.
    fn widen(self) -> Self::Wide;
    /// Converts from the computing type, rounding once.
    fn narrow(x: Self::Wide) -> Self;
    /// The elements in the computing type, which are written to the start of `room` where that is another type; `room` has
    /// room for all of `x`.
    fn widened<'a>(x: &'a [Self], room: &'a mut [Self::Wide]) -> &'a [Self::Wide];
    /// Converts to the nearest `f64`.
    fn to_f64(self) -> f64;
    /// Converts from `f64`: a float is rounded, an integer truncated and saturated.
    fn from_f64(x: f64) -> Self;
    /// a + b.
    fn add(a: Self, b: Self) -> Self;
    /// a - b.
    fn sub(a: Self, b: Self) -> Self;
    /// a * b.
    fn mul(a: Self, b: Self) -> Self;
    /// a * b + c, rounded once.
    fn fma(a: Self, b: Self, c: Self) -> Self;
    /// a / b. Integers truncate, and give 0 for b = 0, which operators exclude beforehand.
    fn div(a: Self, b: Self) -> Self;
    /// Remainder with the sign of the divisor (Python's `%`).
    fn modulo(a: Self, b: Self) -> Self;
    /// Remainder with the sign of the dividend (C's `fmod`).
    fn fmod(a: Self, b: Self) -> Self;
    /// a^b; integers wrap, and truncate negative powers.
    fn pow(a: Self, b: Self) -> Self;
    /// -a.
    fn neg(a: Self) -> Self;
    /// |a|.
    fn abs(a: Self) -> Self;
    /// Whether the element is NaN.
    fn is_nan(self) -> bool;
    /// An integer that orders elements as their values are ordered: both zeros have the same, and NaN has the largest.
    fn rank(self) -> Self::Rank;

    /// The smaller of both; NaN if either is NaN.
    #[inline(always)]
    fn min(a: Self, b: Self) -> Self {
        if (a < b) | a.is_nan() { a } else { b }
    }
    /// The larger of both; NaN if either is NaN.
    #[inline(always)]
    fn max(a: Self, b: Self) -> Self {
        if (a > b) | a.is_nan() { a } else { b }
    }
    /// The sign as -1, 0 or 1; NaN stays NaN.
    #[inline(always)]
    fn sign(a: Self) -> Self {
        let y = if a > Self::ZERO { Self::ONE } else { a };
        if a < Self::ZERO {
            Self::neg(Self::ONE)
        } else {
            y
        }
    }
}

/// Replaces every NaN by the canonical one. Of two NaN operands the processor keeps the first, and where operands
/// commute the compiler decides in each loop which operand is first; without this function, bits would depend on the
/// loop.
#[inline(always)]
pub(crate) fn canonical_nan<T: Number>(x: T) -> T {
    if x.is_nan() { T::from_f64(f64::NAN) } else { x }
}

/// A floating-point element.
pub trait Float: Number<Wide: Real> + FloatKernels {
    /// The same slice in the computing type, where that is the element type itself; `None` for the other types.
    fn as_wide_mut(slice: &mut [Self]) -> Option<&mut [Self::Wide]>;
    /// As [`Float::as_wide_mut`], for reading.
    fn as_wide(slice: &[Self]) -> Option<&[Self::Wide]>;
    /// The same slice in the element type, where that is the computing type itself; `None` for the other types.
    fn of_wide_mut(slice: &mut [Self::Wide]) -> Option<&mut [Self]>;
    /// Widens a run; both slices have the same length. A signalling NaN may become a quiet one.
    fn widen_run(x: &[Self], y: &mut [Self::Wide]);
    /// Narrows a run, rounding once; both slices have the same length.
    fn narrow_run(x: &[Self::Wide], y: &mut [Self]);
    /// Rounds a run to values of this type, as [`Float::narrow_run`] followed by [`Float::widen_run`] does.
    fn round_run(y: &mut [Self::Wide]);
}

/// An integer element.
pub trait Integer: Number<Wide = Self> + IntegerKernels {
    /// Bitwise and.
    fn and(a: Self, b: Self) -> Self;
    /// Bitwise or.
    fn or(a: Self, b: Self) -> Self;
    /// Bitwise exclusive or.
    fn xor(a: Self, b: Self) -> Self;
    /// Bitwise complement.
    fn not(a: Self) -> Self;
    /// a << b; 0 once every bit is shifted out.
    fn shl(a: Self, b: Self) -> Self;
    /// a >> b; 0 (or the sign) once every bit is shifted out.
    fn shr(a: Self, b: Self) -> Self;
}

/// The rank of a float among all floats of its type: its bits as the integer `$bits`; for a negative float, the negative of
/// its magnitude's bits.
macro_rules! rank {
    ($x:expr, $bits:ty) => {{
        let bits = $x.to_bits() as $bits;
        if Number::is_nan($x) {
            <$bits>::MAX
        } else if bits < 0 {
            <$bits>::MIN.wrapping_sub(bits)
        } else {
            bits
        }
    }};
}

macro_rules! native_float {
    ($t:ty, $bits:ty) => {
        impl Number for $t {
            type Wide = $t;
            type Rank = $bits;
            const ZERO: $t = 0.0;
            const ONE: $t = 1.0;
            const LOWEST: $t = <$t>::NEG_INFINITY;
            const HIGHEST: $t = <$t>::INFINITY;
            const INTEGER: bool = false;
            #[inline(always)]
            fn widen(self) -> $t {
                self
            }
            #[inline(always)]
            fn narrow(x: $t) -> $t {
                x
            }
            #[inline(always)]
            fn widened<'a>(x: &'a [$t], _: &'a mut [$t]) -> &'a [$t] {
                x
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn from_f64(x: f64) -> $t {
                x as $t
            }
            #[inline(always)]
            fn add(a: $t, b: $t) -> $t {
                a + b
            }
            #[inline(always)]
            fn sub(a: $t, b: $t) -> $t {
                a - b
            }
            #[inline(always)]
            fn mul(a: $t, b: $t) -> $t {
                a * b
            }
            #[inline(always)]
            fn fma(a: $t, b: $t, c: $t) -> $t {
                a.mul_add(b, c)
            }
            #[inline(always)]
            fn div(a: $t, b: $t) -> $t {
                a / b
            }
            #[inline(always)]
            fn modulo(a: $t, b: $t) -> $t {
                let r = Real::fmod(a, b);
                let r = if r != 0.0 && (r < 0.0) != (b < 0.0) {
                    r + b
                } else {
                    r
                };
                if r == 0.0 { Real::copysign(r, b) } else { r }
            }
            #[inline(always)]
            fn fmod(a: $t, b: $t) -> $t {
                Real::fmod(a, b)
            }
            #[inline(always)]
            fn pow(a: $t, b: $t) -> $t {
                Real::pow(a, b)
            }
            #[inline(always)]
            fn neg(a: $t) -> $t {
                -a
            }
            #[inline(always)]
            fn abs(a: $t) -> $t {
                a.abs()
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                <$t>::is_nan(self)
            }
            #[inline(always)]
            fn rank(self) -> $bits {
                rank!(self, $bits)
            }
        }
        impl Float for $t {
            #[inline(always)]
            fn as_wide_mut(slice: &mut [$t]) -> Option<&mut [$t]> {
                Some(slice)
            }
            #[inline(always)]
            fn as_wide(slice: &[$t]) -> Option<&[$t]> {
                Some(slice)
            }
            #[inline(always)]
            fn of_wide_mut(slice: &mut [$t]) -> Option<&mut [$t]> {
                Some(slice)
            }
            fn widen_run(x: &[$t], y: &mut [$t]) {
                y.copy_from_slice(x);
            }
            fn narrow_run(x: &[$t], y: &mut [$t]) {
                y.copy_from_slice(x);
            }
            fn round_run(_: &mut [$t]) {}
        }
    };
}
native_float!(f32, i32);
native_float!(f64, i64);

macro_rules! half_float {
    ($t:ty, $widen:path, $narrow:path, $from_f64:path, $widen_run:path, $narrow_run:path, $round_run:path) => {
        impl Number for $t {
            type Wide = f32;
            type Rank = i16;
            const ZERO: $t = <$t>::ZERO;
            const ONE: $t = <$t>::ONE;
            const LOWEST: $t = <$t>::NEG_INFINITY;
            const HIGHEST: $t = <$t>::INFINITY;
            const INTEGER: bool = false;
            #[inline(always)]
            fn widen(self) -> f32 {
                $widen(self)
            }
            #[inline(always)]
            fn narrow(x: f32) -> $t {
                $narrow(x)
            }
            #[inline(always)]
            fn widened<'a>(x: &'a [$t], room: &'a mut [f32]) -> &'a [f32] {
                let room = &mut room[..x.len()];
                $widen_run(x, room);
                room
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from($widen(self))
            }
            #[inline(always)]
            fn from_f64(x: f64) -> $t {
                $from_f64(x)
            }
            #[inline(always)]
            fn neg(a: $t) -> $t {
                <$t>::from_bits(a.to_bits() ^ 0x8000)
            }
            #[inline(always)]
            fn abs(a: $t) -> $t {
                <$t>::from_bits(a.to_bits() & 0x7fff)
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                $widen(self).is_nan()
            }
            #[inline(always)]
            fn rank(self) -> i16 {
                rank!(self, i16)
            }
            #[inline(always)]
            fn fma(a: $t, b: $t, c: $t) -> $t {
                $narrow($widen(a).mul_add($widen(b), $widen(c)))
            }
            half_float!(@binary $t, $widen, $narrow, add sub mul div modulo fmod pow min max);
            #[inline(always)]
            fn sign(a: $t) -> $t {
                $narrow(<f32 as Number>::sign($widen(a)))
            }
        }
        impl Float for $t {
            #[inline(always)]
            fn as_wide_mut(_: &mut [$t]) -> Option<&mut [f32]> {
                None
            }
            #[inline(always)]
            fn as_wide(_: &[$t]) -> Option<&[f32]> {
                None
            }
            #[inline(always)]
            fn of_wide_mut(_: &mut [f32]) -> Option<&mut [$t]> {
                None
            }
            fn widen_run(x: &[$t], y: &mut [f32]) {
                $widen_run(x, y);
            }
            fn narrow_run(x: &[f32], y: &mut [$t]) {
                $narrow_run(x, y);
            }
            fn round_run(y: &mut [f32]) {
                $round_run(y);
            }
        }
    };
    (@binary $t:ty, $widen:path, $narrow:path, $($op:ident)*) => {$(
        #[inline(always)]
        fn $op(a: $t, b: $t) -> $t {
            $narrow(<f32 as Number>::$op($widen(a), $widen(b)))
        }
    )*};
}
half_float!(
    f16,
    halves::f16_to_f32,
    halves::f32_to_f16,
    halves::f64_to_f16,
    runs::widen,
    runs::narrow,
    runs::round
);
half_float!(
    bf16,
    halves::bf16_to_f32,
    halves::f32_to_bf16,
    halves::f64_to_bf16,
    widen_loop,
    narrow_loop,
    round_loop::<bf16>
);

multiversion! {
    fn widen_loop<T: Number>(x: &[T], y: &mut [T::Wide]) {
        let n = x.len().min(y.len());
        let (x, y) = (&x[..n], &mut y[..n]);
        for i in 0..n {
            y[i] = x[i].widen();
        }
    }
}

multiversion! {
    fn round_loop<T: Number>(y: &mut [T::Wide]) {
        for i in 0..y.len() {
            y[i] = T::narrow(y[i]).widen();
        }
    }
}

multiversion! {
    fn narrow_loop<T: Number>(x: &[T::Wide], y: &mut [T]) {
        let n = x.len().min(y.len());
        let (x, y) = (&x[..n], &mut y[..n]);
        for i in 0..n {
            y[i] = T::narrow(x[i]);
        }
    }
}

macro_rules! integer {
    ($t:ty) => {
        impl Number for $t {
            type Wide = $t;
            type Rank = $t;
            const ZERO: $t = 0;
            const ONE: $t = 1;
            const LOWEST: $t = <$t>::MIN;
            const HIGHEST: $t = <$t>::MAX;
            const INTEGER: bool = true;
            #[inline(always)]
            fn widen(self) -> $t {
                self
            }
            #[inline(always)]
            fn narrow(x: $t) -> $t {
                x
            }
            #[inline(always)]
            fn widened<'a>(x: &'a [$t], _: &'a mut [$t]) -> &'a [$t] {
                x
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn from_f64(x: f64) -> $t {
                x as $t
            }
            #[inline(always)]
            fn add(a: $t, b: $t) -> $t {
                a.wrapping_add(b)
            }
            #[inline(always)]
            fn sub(a: $t, b: $t) -> $t {
                a.wrapping_sub(b)
            }
            #[inline(always)]
            fn mul(a: $t, b: $t) -> $t {
                a.wrapping_mul(b)
            }
            #[inline(always)]
            fn fma(a: $t, b: $t, c: $t) -> $t {
                a.wrapping_mul(b).wrapping_add(c)
            }
            #[inline(always)]
            fn div(a: $t, b: $t) -> $t {
                if b == 0 { 0 } else { a.wrapping_div(b) }
            }
            #[inline(always)]
            #[allow(unused_comparisons)]
            fn modulo(a: $t, b: $t) -> $t {
                let r = Self::fmod(a, b);
                if r != 0 && (r < 0) != (b < 0) {
                    r.wrapping_add(b)
                } else {
                    r
                }
            }
            #[inline(always)]
            fn fmod(a: $t, b: $t) -> $t {
                if b == 0 { 0 } else { a.wrapping_rem(b) }
            }
            #[inline(always)]
            #[allow(unused_comparisons)]
            fn pow(a: $t, b: $t) -> $t {
                if b < 0 {
                    let minus_one = a.wrapping_add(1) == 0;
                    return if a == 1 || (minus_one && b & 1 == 0) {
                        1
                    } else if minus_one {
                        a
                    } else {
                        0
                    };
                }
                let (mut base, mut exponent, mut y) = (a, b, 1 as $t);
                while exponent != 0 {
                    if exponent & 1 == 1 {
                        y = y.wrapping_mul(base);
                    }
                    base = base.wrapping_mul(base);
                    exponent >>= 1;
                }
                y
            }
            #[inline(always)]
            fn neg(a: $t) -> $t {
                a.wrapping_neg()
            }
            #[inline(always)]
            #[allow(unused_comparisons)]
            fn abs(a: $t) -> $t {
                if a < 0 { a.wrapping_neg() } else { a }
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                false
            }
            #[inline(always)]
            fn rank(self) -> $t {
                self
            }
        }
        impl Integer for $t {
            #[inline(always)]
            fn and(a: $t, b: $t) -> $t {
                a & b
            }
            #[inline(always)]
            fn or(a: $t, b: $t) -> $t {
                a | b
            }
            #[inline(always)]
            fn xor(a: $t, b: $t) -> $t {
                a ^ b
            }
            #[inline(always)]
            fn not(a: $t) -> $t {
                !a
            }
            #[inline(always)]
            #[allow(unused_comparisons)]
            fn shl(a: $t, b: $t) -> $t {
                if b < 0 || b as u64 >= <$t>::BITS as u64 {
                    0
                } else {
                    a << b
                }
            }
            #[inline(always)]
            #[allow(unused_comparisons)]
            fn shr(a: $t, b: $t) -> $t {
                if b < 0 || b as u64 >= <$t>::BITS as u64 {
                    if a < 0 { (0 as $t).wrapping_sub(1) } else { 0 }
                } else {
                    a >> b
                }
            }
        }
    };
}
integer!(i8);
integer!(i16);
integer!(i32);
integer!(i64);
integer!(u8);
integer!(u16);
integer!(u32);
integer!(u64);
