//! `Cast` between all dtypes.
//!
//! Floats become integers by truncation, and saturate (NaN gives 0). Integers become integers by wrapping. A boolean is
//! 1 for every value that is not zero, NaN included, and converts to other types as a `u8` does. Floats that become
//! narrower are rounded once, to nearest even.

use crate::Exec;
use crate::compiled::compiled_numbers;
use crate::element::{Element, Float, Number, bf16, f16, halves};
use crate::error::Result;
use crate::multiversion::multiversion;
use crate::split::{GRAIN, tiles};

/// An element that converts to `T`.
pub trait CastTo<T>: Element {
    /// Whether the loop is also compiled for wider instruction sets, at the price of two more copies.
    const WIDE: bool;
    /// Converts one element.
    fn cast(self) -> T;
    /// [`cast`], compiled in this crate.
    #[doc(hidden)]
    fn cast_all(exec: &Exec, x: &[Self], y: &mut [T]) -> Result;
    /// [`cast`] of a few elements on the calling thread, compiled in this crate.
    #[doc(hidden)]
    fn cast_few(x: &[Self], y: &mut [T]);
}

/// The bodies of [`CastTo::cast_all`] and [`CastTo::cast_few`].
macro_rules! cast_all {
    ($to:ty) => {
        fn cast_all(exec: &Exec, x: &[Self], y: &mut [$to]) -> Result {
            cast_any(exec, x, y)
        }
        fn cast_few(x: &[Self], y: &mut [$to]) {
            cast_tile(x, y)
        }
    };
}

macro_rules! by_as {
    ($wide:literal: $($from:ty => $($to:ty)*;)*) => {$($(
        impl CastTo<$to> for $from {
            const WIDE: bool = $wide;
            cast_all!($to);
            #[inline(always)]
            fn cast(self) -> $to {
                self as $to
            }
        }
    )*)*};
}
by_as! {
    true:
    i8 => f32;
    u8 => f32;
}
by_as! {
    false:
    f32 => f32 f64 i16 i32 i64 u16 u32 u64;
    f64 => f32 f64 i8 i16 i32 i64 u8 u16 u32 u64;
    i8 => f64 i8 i16 i32 i64 u8 u16 u32 u64;
    i16 => f32 f64 i8 i16 i32 i64 u8 u16 u32 u64;
    i32 => f32 f64 i8 i16 i32 i64 u8 u16 u32 u64;
    i64 => f32 f64 i8 i16 i32 i64 u8 u16 u32 u64;
    u8 => f64 i8 i16 i32 i64 u8 u16 u32 u64;
    u16 => f32 f64 i8 i16 i32 i64 u8 u16 u32 u64;
    u32 => f32 f64 i8 i16 i32 i64 u8 u16 u32 u64;
    u64 => f32 f64 i8 i16 i32 i64 u8 u16 u32 u64;
}

/// `as` in loops of few bits, which the compiler does not make vectors of: it is written by operations that have vectors.
macro_rules! to_bytes {
    ($($to:ty: $low:literal to $high:literal;)*) => {$(
        impl CastTo<$to> for f32 {
            const WIDE: bool = true;
            cast_all!($to);
            #[inline(always)]
            fn cast(self) -> $to {
                // A number plus 2^23 has no fraction, and 1.5 * 2^23 keeps the bits of a whole number lowest.
                const ONES: f32 = 8_388_608.0;
                let x = if self.is_nan() { 0.0 } else { self };
                let x = if x > $low { x } else { $low };
                let x = if x < $high { x } else { $high };
                let whole = (x.abs() + ONES) - ONES;
                let whole = if whole > x.abs() { whole - 1.0 } else { whole };
                (whole.copysign(x) + 1.5 * ONES).to_bits() as $to
            }
        }
    )*};
}
to_bytes! {
    i8: -128.0 to 127.0;
    u8: 0.0 to 255.0;
}

macro_rules! halves {
    ($half:ty, $widen:path, $narrow:path, $from_f64:path, $other:ty) => {
        halves!(@from $half, $widen, f32 f64 i8 i16 i32 i64 u8 u16 u32 u64);
        halves!(@to $half, $narrow, f32 i8 i16 i32 i64 u8 u16 u32 u64);
        impl CastTo<$half> for f64 {
            const WIDE: bool = true;
            cast_all!($half);
            #[inline(always)]
            fn cast(self) -> $half {
                $from_f64(self)
            }
        }
        impl CastTo<$half> for $half {
            const WIDE: bool = true;
            cast_all!($half);
            #[inline(always)]
            fn cast(self) -> $half {
                self
            }
        }
        impl CastTo<$half> for $other {
            const WIDE: bool = true;
            cast_all!($half);
            #[inline(always)]
            fn cast(self) -> $half {
                $narrow(self.widen())
            }
        }
    };
    (@from $half:ty, $widen:path, $($to:ty)*) => {$(
        impl CastTo<$to> for $half {
            const WIDE: bool = true;
            cast_all!($to);
            #[inline(always)]
            fn cast(self) -> $to {
                $widen(self) as $to
            }
        }
    )*};
    // Integers are converted by way of f32, as numpy and ONNX Runtime do.
    (@to $half:ty, $narrow:path, $($from:ty)*) => {$(
        impl CastTo<$half> for $from {
            const WIDE: bool = true;
            cast_all!($half);
            #[inline(always)]
            fn cast(self) -> $half {
                $narrow(self as f32)
            }
        }
    )*};
}
halves!(
    f16,
    halves::f16_to_f32,
    halves::f32_to_f16,
    halves::f64_to_f16,
    bf16
);
halves!(
    bf16,
    halves::bf16_to_f32,
    halves::f32_to_bf16,
    halves::f64_to_bf16,
    f16
);

#[inline(always)]
fn tile<A: CastTo<B>, B: Element>(x: &[A], y: &mut [B]) {
    let n = x.len().min(y.len());
    let (x, y) = (&x[..n], &mut y[..n]);
    for i in 0..n {
        y[i] = x[i].cast();
    }
}

multiversion! {
    fn tile_wide<A: CastTo<B>, B: Element>(x: &[A], y: &mut [B]) {
        tile(x, y)
    }
}

fn cast_tile<A: CastTo<B>, B: Element>(x: &[A], y: &mut [B]) {
    match A::WIDE {
        true => tile_wide(x, y),
        false => tile(x, y),
    }
}

fn cast_any<A: CastTo<B>, B: Element>(exec: &Exec, x: &[A], y: &mut [B]) -> Result {
    assert_eq!(x.len(), y.len(), "cast operand and result");
    Ok(tiles(exec, y, 1, GRAIN, |range, part| {
        cast_tile(&x[range], part)
    })?)
}

fn cast_to_bool_any<A: Number>(exec: &Exec, x: &[A], y: &mut [u8]) -> Result {
    assert_eq!(x.len(), y.len(), "cast operand and result");
    Ok(tiles(exec, y, 1, GRAIN, |range, part| {
        for (x, y) in x[range].iter().zip(part) {
            *y = u8::from(*x != A::ZERO);
        }
    })?)
}

compiled_numbers! {
    /// Conversion of a type to booleans.
    trait BoolKernels {
        fn cast_to_bool(exec: &Exec, x: &[Self], y: &mut [u8]) = cast_to_bool_any;
    }
}

/// `y[i]` becomes `x[i]`, converted; both slices have the same length.
pub fn cast<A: CastTo<B>, B: Element>(exec: &Exec, x: &[A], y: &mut [B]) -> Result {
    A::cast_all(exec, x, y)
}

/// Widens numbers exactly; both slices have the same length. A signalling NaN may become a quiet one, which [`cast`] keeps.
pub fn widen<T: Float>(exec: &Exec, x: &[T], y: &mut [T::Wide]) -> Result {
    assert_eq!(x.len(), y.len(), "operand and result of widening");
    Ok(tiles(exec, y, 1, GRAIN, |range, part| {
        T::widen_run(&x[range], part)
    })?)
}

/// Rounds numbers once; both slices have the same length.
pub fn narrow<T: Float>(exec: &Exec, x: &[T::Wide], y: &mut [T]) -> Result {
    assert_eq!(x.len(), y.len(), "operand and result of narrowing");
    Ok(tiles(exec, y, 1, GRAIN, |range, part| {
        T::narrow_run(&x[range], part)
    })?)
}

/// `y[i] = (x[i] != 0)`; both slices have the same length.
pub fn cast_to_bool<A: Number>(exec: &Exec, x: &[A], y: &mut [u8]) -> Result {
    A::cast_to_bool(exec, x, y)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{bits, each_exec, exec, random};

    #[test]
    fn runs_have_the_bits_of_casts() {
        fn check<T: Float<Wide = f32> + CastTo<f32>>(all: Vec<T>)
        where
            f32: CastTo<T>,
        {
            each_exec(|exec| {
                let (mut wide, mut want) = (vec![7.0f32; all.len()], vec![0.0f32; all.len()]);
                widen(exec, &all, &mut wide).unwrap();
                cast(exec, &all, &mut want).unwrap();
                assert_eq!(bits(&wide), bits(&want));
                // Between two numbers of 16 bits, and beyond them.
                let x: Vec<f32> = want.iter().map(|x| x * 1.000_3).collect();
                let (mut got, mut want) = (vec![T::ONE; x.len()], vec![T::ZERO; x.len()]);
                narrow(exec, &x, &mut got).unwrap();
                cast(exec, &x, &mut want).unwrap();
                assert_eq!(bits(&got), bits(&want));
            });
        }
        check((0..=u16::MAX).map(f16::from_bits).collect());
        check((0..=u16::MAX).map(bf16::from_bits).collect());
    }

    fn check<A: CastTo<B> + Number, B: Number>() {
        for scale in [100.0, 1e6] {
            let x: Vec<A> = random(33_001, scale, 5);
            each_exec(|exec| {
                let mut y = vec![B::ZERO; x.len() - 1];
                cast(exec, &x[1..], &mut y).unwrap();
                for (x, y) in x[1..].iter().zip(&y) {
                    if A::INTEGER && B::INTEGER {
                        let fits = B::from_f64(x.to_f64()).to_f64() == x.to_f64();
                        assert!(!fits || y.to_f64() == x.to_f64(), "{x:?} {y:?}");
                    } else {
                        assert_eq!(bits(&[*y]), bits(&[B::from_f64(x.to_f64())]), "{x:?}");
                    }
                }
            });
        }
    }

    macro_rules! all_pairs {
        ($($a:ty)*) => { $(all_pairs!(@from $a, f32 f64 f16 bf16 i8 i16 i32 i64 u8 u16 u32 u64);)* };
        (@from $a:ty, $($b:ty)*) => { $(check::<$a, $b>();)* };
    }

    #[test]
    fn all_pairs() {
        all_pairs!(f32 f64 f16 bf16 i8 i16 i32 i64 u8 u16 u32 u64);
    }

    #[test]
    fn edges() {
        let mut y = [0i8; 6];
        cast(
            &exec(),
            &[1e9f32, -1e9, f32::NAN, -1.9, f32::INFINITY, 2.9],
            &mut y,
        )
        .unwrap();
        assert_eq!(y, [127, -128, 0, -1, 127, 2]);
        // All numbers of few bits, and those next to where they become another.
        let x: Vec<f32> = (-40_000..40_000).map(|i| i as f32 / 64.0).collect();
        let x: Vec<f32> = x
            .iter()
            .flat_map(|x| [x.next_down(), *x, x.next_up()])
            .collect();
        let (mut signed, mut unsigned) = (vec![0i8; x.len()], vec![0u8; x.len()]);
        cast(&exec(), &x, &mut signed).unwrap();
        cast(&exec(), &x, &mut unsigned).unwrap();
        for ((x, signed), unsigned) in x.iter().zip(signed).zip(unsigned) {
            assert_eq!((signed, unsigned), (*x as i8, *x as u8), "{x}");
        }
        let mut y = [0u8; 3];
        cast(&exec(), &[-1i64, 256, 300], &mut y).unwrap();
        assert_eq!(y, [255, 0, 44]);
        let mut y = [9u8; 5];
        cast_to_bool(&exec(), &[0.0f32, -0.0, f32::NAN, 1e-45, 0.5], &mut y).unwrap();
        assert_eq!(y, [0, 0, 1, 1, 1]);
    }
}
