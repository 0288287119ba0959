//! Conversions of `f16` and `bf16`: branch-free, so that they vectorize and give equal bits everywhere.

use half::{bf16, f16};

/// Widens exactly.
#[inline(always)]
pub fn f16_to_f32(x: f16) -> f32 {
    // The sign goes to its place by extension, and the rest by the shift.
    let bits = ((i32::from(x.to_bits() as i16) << 13) as u32) & 0x8fff_e000;
    // 2^112 moves the exponent bias from 15 to 127, and normalizes subnormals on the way.
    let scaled = (f32::from_bits(bits) * f32::from_bits(0x7780_0000)).to_bits();
    let special = bits | 0x7f80_0000;
    let is_special = bits & 0x0f80_0000 == 0x0f80_0000;
    f32::from_bits(if is_special { special } else { scaled })
}

/// Rounds to nearest even; overflow gives infinity.
#[inline(always)]
pub fn f32_to_f16(x: f32) -> f16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // 0.5 aligns the subnormal unit 2^-24 with the last mantissa bit, so the addition rounds.
    let subnormal = (f32::from_bits(magnitude) + 0.5)
        .to_bits()
        .wrapping_sub(0x3f00_0000);
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_add(0xc800_0fff).wrapping_add(odd) >> 13;
    let nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
    let y = if magnitude < 0x3880_0000 {
        subnormal
    } else {
        normal
    };
    let y = if magnitude >= 0x4780_0000 { 0x7c00 } else { y };
    let y = if magnitude > 0x7f80_0000 { nan } else { y };
    f16::from_bits((y | sign) as u16)
}

/// Widens exactly.
#[inline(always)]
pub fn bf16_to_f32(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

/// Rounds to nearest even; overflow gives infinity.
#[inline(always)]
pub fn f32_to_bf16(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let nan = (bits >> 16) | 0x40;
    let y = if bits & 0x7fff_ffff > 0x7f80_0000 {
        nan
    } else {
        rounded
    };
    bf16::from_bits(y as u16)
}

/// Rounds to `f32` by round-to-odd, after which a second rounding to fewer bits gives the correctly rounded value.
#[inline(always)]
pub fn f64_to_f32_odd(x: f64) -> f32 {
    let nearest = x as f32;
    let back = f64::from(nearest);
    let bits = nearest.to_bits();
    let exact = back == x || x.is_nan();
    // An inexact value is truncated toward zero, and its last bit is set.
    let truncated = if back.abs() > x.abs() {
        bits.wrapping_sub(1)
    } else {
        bits
    };
    f32::from_bits(if exact { bits } else { truncated | 1 })
}

/// Rounds once to `f16`, by way of round-to-odd, so that no double rounding occurs.
#[inline(always)]
pub fn f64_to_f16(x: f64) -> f16 {
    f32_to_f16(f64_to_f32_odd(x))
}

/// Rounds once to `bf16`, by way of round-to-odd, so that no double rounding occurs.
#[inline(always)]
pub fn f64_to_bf16(x: f64) -> bf16 {
    f32_to_bf16(f64_to_f32_odd(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widening_is_exact_for_every_value() {
        for bits in 0..=u16::MAX {
            let (x, b) = (f16::from_bits(bits), bf16::from_bits(bits));
            let (got, want) = (f16_to_f32(x), x.to_f32_const());
            assert!(
                got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()),
                "{bits:#x}"
            );
            let (got, want) = (bf16_to_f32(b), b.to_f32_const());
            assert!(
                got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()),
                "{bits:#x}"
            );
            assert!(x.is_nan() || f32_to_f16(f16_to_f32(x)).to_bits() == bits);
            assert!(b.is_nan() || f32_to_bf16(bf16_to_f32(b)).to_bits() == bits);
            assert_eq!(x.is_nan(), f32_to_f16(f16_to_f32(x)).is_nan());
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_even() {
        for bits in (0..u32::MAX)
            .step_by(251)
            .chain(0x4780_0000 - 9000..0x4780_0000 + 10)
        {
            let x = f32::from_bits(bits);
            let (got, want) = (f32_to_f16(x), f16::from_f32_const(x));
            assert!(
                got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()),
                "{x:e}"
            );
            let (got, want) = (f32_to_bf16(x), bf16::from_f32_const(x));
            assert!(
                got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()),
                "{x:e}"
            );
        }
    }

    #[test]
    fn doubles_round_once() {
        // This value lies just above the middle between 1 and the next f16; rounding to f32 would move it to the
        // middle.
        let x = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
        assert_eq!(
            f64_to_f16(x).to_bits(),
            f16::from_f32_const(1.0).to_bits() + 1
        );
        assert_eq!(
            f64_to_f16(-x).to_bits(),
            f16::from_f32_const(-1.0).to_bits() + 1
        );
        let x = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
        assert_eq!(
            f64_to_bf16(x).to_bits(),
            bf16::from_f32_const(1.0).to_bits() + 1
        );
        assert_eq!(f64_to_f16(1e300), f16::INFINITY);
        assert_eq!(f64_to_bf16(-f64::INFINITY), bf16::NEG_INFINITY);
        assert!(f64_to_f16(f64::NAN).is_nan());
        assert_eq!(f64_to_f16(1e-300).to_bits(), 0);
    }
}
