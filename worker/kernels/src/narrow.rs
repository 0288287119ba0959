//! Conversions from and to elements of eight bits or less that kernels do not compute with: packed integers, and floats
//! of eight or four bits.
//!
//! ```text
//! narrow -> codes of a block -> i8 or f32 -> any element
//! any element -> f32, or i64 of the integer part -> codes of a block -> narrow
//! ```
//!
//! Invariants
//! 1. An integer is reduced to its low bits. A float's fraction is cut off before; where nothing that fits 64 bits is left,
//!    it gives zero.
//! 2. Bits of the last byte that belong to no element are zero.

pub use convoke_functions::narrow::{
    Narrow, NarrowFloat, NarrowInt, NarrowRounding, PowerRounding,
};
use convoke_functions::packed;

use crate::Exec;
use crate::cast::CastTo;
use crate::element::{Element, bf16, f16, halves};
use crate::error::Result;
use crate::split::{GRAIN, tiles};

/// Elements that are converted at a time; whole bytes of any packed type.
const BLOCK: usize = 256;

/// An element type that narrow ones are made of.
pub trait Narrowed: Element {
    /// The number as f32, such that rounding it again rounds once.
    fn to_f32(self) -> f32;
    /// The number without its fraction; 0 where that is beyond 64 bits.
    fn to_int(self) -> i64;
}

/// An integer of this magnitude as f32, rounded to odd: an inexact one is truncated, and its last bit is set.
fn odd(magnitude: u64) -> f32 {
    let lost = (u64::BITS - magnitude.leading_zeros()).saturating_sub(f32::MANTISSA_DIGITS);
    let kept = magnitude >> lost;
    let exact = kept << lost == magnitude;
    let scale = f32::from_bits((lost + 127) << (f32::MANTISSA_DIGITS - 1));
    (kept | u64::from(!exact)) as f32 * scale
}

macro_rules! narrowed_ints {
    ($to_f32:expr; $($t:ty)*) => {$(
        impl Narrowed for $t {
            fn to_f32(self) -> f32 {
                $to_f32(self.into())
            }
            fn to_int(self) -> i64 {
                self as i64
            }
        }
    )*};
}
narrowed_ints!(|x: i64| odd(x.unsigned_abs()).copysign(if x < 0 { -1.0 } else { 1.0 }); i8 i16 i32 i64);
narrowed_ints!(odd; u8 u16 u32 u64);

macro_rules! narrowed_floats {
    ($($t:ty, $to_f32:expr;)*) => {$(
        impl Narrowed for $t {
            fn to_f32(self) -> f32 {
                $to_f32(self)
            }
            fn to_int(self) -> i64 {
                let x = f64::from(self);
                match x.abs() < i64::MAX as f64 {
                    true => x as i64,
                    false => 0,
                }
            }
        }
    )*};
}
narrowed_floats! {
    f32, |x| x;
    f64, halves::f64_to_f32_odd;
    f16, halves::f16_to_f32;
    bf16, halves::bf16_to_f32;
}

/// Reads the codes from element `first` on of `x` as numbers and hands them on in blocks, with their number in `0..len`.
fn blocks<T: Default + Copy>(
    bits: usize,
    (x, first, len): (&[u8], usize, usize),
    decode: impl Fn(u8) -> T,
    mut each: impl FnMut(usize, &[T]),
) {
    let (mut codes, mut numbers) = ([0u8; BLOCK], [T::default(); BLOCK]);
    for start in (0..len).step_by(BLOCK) {
        let n = BLOCK.min(len - start);
        packed::unpack(bits, x, first + start, &mut codes[..n]);
        for (number, code) in numbers.iter_mut().zip(&codes[..n]) {
            *number = decode(*code);
        }
        each(start, &numbers[..n]);
    }
}

/// `y[i]` becomes element `i` of `x`, whose elements are of type `from`.
pub fn widen<B: Element>(exec: &Exec, from: Narrow, x: &[u8], y: &mut [B]) -> Result
where
    i8: CastTo<B>,
    f32: CastTo<B>,
{
    check_length(from, x, y.len());
    Ok(tiles(exec, y, 1, GRAIN, |range, part| {
        let given = (x, range.start, part.len());
        match from {
            Narrow::Int(int) => blocks(
                int.bits.into(),
                given,
                |c| int.decode(c),
                |at, numbers| i8::cast_few(numbers, &mut part[at..at + numbers.len()]),
            ),
            Narrow::Float(float) => blocks(
                float.bits(),
                given,
                |c| float.decode(c),
                |at, numbers| f32::cast_few(numbers, &mut part[at..at + numbers.len()]),
            ),
        }
    })?)
}

/// `y[i]` becomes whether element `i` of `x` is not zero.
pub fn widen_to_bool(exec: &Exec, from: Narrow, x: &[u8], y: &mut [u8]) -> Result {
    check_length(from, x, y.len());
    let nonzero = |code: u8| match from {
        Narrow::Int(int) => u8::from(int.decode(code) != 0),
        Narrow::Float(float) => u8::from(float.decode(code) != 0.),
    };
    Ok(tiles(exec, y, 1, GRAIN, |range, part| {
        let given = (x, range.start, part.len());
        blocks(from.bits(), given, nonzero, |at, bits| {
            part[at..at + bits.len()].copy_from_slice(bits)
        })
    })?)
}

/// The elements of `x`, converted to type `to`, fill `y`.
pub fn narrow<A: Narrowed>(
    exec: &Exec,
    x: &[A],
    to: Narrow,
    how: NarrowRounding,
    y: &mut [u8],
) -> Result {
    check_length(to, y, x.len());
    let (bits, per) = (to.bits(), packed::per_byte(to.bits()));
    Ok(tiles(exec, y, 1, GRAIN, |range, part| {
        let x = &x[range.start * per..(range.end * per).min(x.len())];
        for (x, part) in x.chunks(BLOCK).zip(part.chunks_mut(BLOCK / per)) {
            let mut codes = [0u8; BLOCK];
            match to {
                Narrow::Int(_) => codes
                    .iter_mut()
                    .zip(x)
                    .for_each(|(c, x)| *c = x.to_int() as u8),
                Narrow::Float(float) => codes
                    .iter_mut()
                    .zip(x)
                    .for_each(|(c, x)| *c = float.encode(x.to_f32(), how)),
            }
            packed::pack(bits, &codes[..x.len()], part);
        }
    })?)
}

/// The elements of `x`, which are of type `from`, converted to type `to`, fill `y`, which has room for `len`.
pub fn renarrow(
    exec: &Exec,
    (from, x): (Narrow, &[u8]),
    (to, y): (Narrow, &mut [u8]),
    len: usize,
    how: NarrowRounding,
) -> Result {
    check_length(from, x, len);
    check_length(to, y, len);
    let per = packed::per_byte(to.bits());
    Ok(tiles(exec, y, 1, GRAIN, |range, part| {
        let first = range.start * per;
        let given = (x, first, (range.end * per).min(len) - first);
        let code = |code: u8| match (from, to) {
            (Narrow::Int(from), Narrow::Int(_)) => from.decode(code) as u8,
            (Narrow::Int(from), Narrow::Float(to)) => to.encode(from.decode(code).into(), how),
            (Narrow::Float(from), Narrow::Int(_)) => from.decode(code).to_int() as u8,
            (Narrow::Float(from), Narrow::Float(to)) => to.encode(from.decode(code), how),
        };
        blocks(from.bits(), given, code, |at, codes| {
            packed::pack(to.bits(), codes, &mut part[at / per..]);
        })
    })?)
}

fn check_length(of: Narrow, bytes: &[u8], elements: usize) {
    let per = packed::per_byte(of.bits());
    assert_eq!(
        bytes.len(),
        elements.div_ceil(per),
        "bytes of narrow elements"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{each_exec, exec};

    const I4: Narrow = Narrow::Int(NarrowInt {
        bits: 4,
        signed: true,
    });
    const U2: Narrow = Narrow::Int(NarrowInt {
        bits: 2,
        signed: false,
    });
    const F4: Narrow = Narrow::Float(NarrowFloat::F4E2M1);
    const E5: Narrow = Narrow::Float(NarrowFloat::F8E5M2);
    const NEAREST: NarrowRounding = NarrowRounding {
        saturate: true,
        power: PowerRounding::Up,
    };

    fn to<A: Narrowed>(x: &[A], to: Narrow) -> Vec<u8> {
        let mut y = vec![0xff; x.len().div_ceil(packed::per_byte(to.bits()))];
        narrow(&exec(), x, to, NEAREST, &mut y).unwrap();
        y
    }

    fn back(from: Narrow, x: &[u8], n: usize) -> Vec<f32> {
        let mut y = vec![0f32; n];
        widen(&exec(), from, x, &mut y).unwrap();
        y
    }

    #[test]
    fn integers_keep_their_low_bits() {
        // What ml_dtypes 0.6 gives for int4 and uint2.
        let x = [-9f32, -8.9, -1.5, -0.5, 1.9, 7.9, 8., 15.9, 1e30, f32::NAN];
        let int4 = [7., -8., -1., 0., 1., 7., -8., -1., 0., 0.];
        assert_eq!(back(I4, &to(&x, I4), x.len()), int4);
        let wide = [-200i32, -9, 8, 200, 16, 255];
        assert_eq!(back(I4, &to(&wide, I4), 6), [-8., 7., -8., -8., 0., -1.]);
        assert_eq!(back(U2, &to(&wide, U2), 6), [0., 3., 0., 0., 0., 3.]);
        assert_eq!(to(&[u64::MAX, 1, 1], I4), [0x1f, 0x01]);
    }

    #[test]
    fn doubles_are_rounded_once() {
        // Half way between 1 and 1.25, and a little more than that.
        let x = [1.125f64, 1.125 + 1e-12];
        assert_eq!(back(E5, &to(&x, E5), 2), [1., 1.25]);
    }

    #[test]
    fn integers_are_rounded_once() {
        const E8: Narrow = Narrow::Float(NarrowFloat::F8E8M0);
        fn check<A: Narrowed>(x: A, exponents: [u8; 3]) {
            let powers = [
                PowerRounding::Down,
                PowerRounding::Nearest,
                PowerRounding::Up,
            ];
            for (power, exponent) in powers.into_iter().zip(exponents) {
                let how = NarrowRounding { power, ..NEAREST };
                let mut y = [0];
                narrow(&exec(), &[x], E8, how, &mut y).unwrap();
                assert_eq!(y, [127 + exponent], "{x:?} {power:?}");
            }
        }
        check(1i8, [0, 0, 0]);
        check(3i16, [1, 2, 2]);
        check((1i32 << 24) + 1, [24, 24, 25]);
        check(i32::MAX, [30, 31, 31]);
        check((1i64 << 40) + 1, [40, 40, 41]);
        check((3i64 << 40) - 1, [41, 41, 42]);
        check(u64::MAX, [63, 64, 64]);
        check(1u64 << 63, [63, 63, 63]);
    }

    #[test]
    fn any_length_is_converted_on_any_number_of_threads() {
        for n in [0, 1, 3, 255, 257, 100_003] {
            let x: Vec<i32> = (0..n).map(|i| (i * 7) % 16 - 8).collect();
            each_exec(|exec| {
                let mut four = vec![0xff; x.len().div_ceil(2)];
                narrow(exec, &x, I4, NEAREST, &mut four).unwrap();
                let mut same = vec![9i32; x.len()];
                widen(exec, I4, &four, &mut same).unwrap();
                assert_eq!(same, x);
                let mut two = vec![0xff; x.len().div_ceil(4)];
                renarrow(exec, (I4, &four), (U2, &mut two), x.len(), NEAREST).unwrap();
                assert_eq!(two, to(&x, U2), "{n}");
                let mut float = vec![0xff; x.len().div_ceil(2)];
                renarrow(exec, (I4, &four), (F4, &mut float), x.len(), NEAREST).unwrap();
                assert_eq!(float, to(&x, F4), "{n}");
                let mut bits = vec![9; x.len()];
                widen_to_bool(exec, I4, &four, &mut bits).unwrap();
                assert!(bits.iter().zip(&x).all(|(b, x)| *b == u8::from(*x != 0)));
            });
        }
    }
}
