//! Conversions of runs of `f16`, by the processor's own instructions where it has them.
//!
//! Invariant: the bits are those of [`halves`], except that a signalling NaN becomes a quiet one where it is widened.
//! Every operation on it, and the conversion back, does that too.

use super::{f16, halves};
use crate::isa::Isa;

/// Widens a run exactly; both slices have the same length.
pub fn widen(x: &[f16], y: &mut [f32]) {
    match Isa::detect() {
        // SAFETY: `detect` found these features on this machine.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { x86::widen_avx512(x, y) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2Fma => unsafe { x86::widen_avx2(x, y) },
        _ => widen_each(x, y),
    }
}

/// Rounds a run to nearest even; both slices have the same length.
pub fn narrow(x: &[f32], y: &mut [f16]) {
    match Isa::detect() {
        // SAFETY: `detect` found these features on this machine.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { x86::narrow_avx512(x, y) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2Fma => unsafe { x86::narrow_avx2(x, y) },
        _ => narrow_each(x, y),
    }
}

/// Rounds a run to nearest even, to values that `f16` has.
pub fn round(y: &mut [f32]) {
    match Isa::detect() {
        // SAFETY: `detect` found these features on this machine.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { x86::round_avx512(y) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2Fma => unsafe { x86::round_avx2(y) },
        _ => round_each(y),
    }
}

#[inline(always)]
fn round_each(y: &mut [f32]) {
    for y in y {
        *y = halves::f16_to_f32(halves::f32_to_f16(*y));
    }
}

#[inline(always)]
fn widen_each(x: &[f16], y: &mut [f32]) {
    for (x, y) in x.iter().zip(y) {
        *y = halves::f16_to_f32(*x);
    }
}

#[inline(always)]
fn narrow_each(x: &[f32], y: &mut [f16]) {
    for (x, y) in x.iter().zip(y) {
        *y = halves::f32_to_f16(*x);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{f16, narrow_each, round_each, widen_each};

    /// Defines a loop over whole vectors of `$lanes` elements, with the rest converted one by one.
    macro_rules! by_vectors {
        ($name:ident, $features:literal, $lanes:literal, $from:ty, $to:ty, $rest:ident, |$x:ident, $y:ident| $convert:expr) => {
            #[target_feature(enable = $features)]
            pub fn $name(x: &[$from], y: &mut [$to]) {
                let (wholes, rest) = x.as_chunks::<$lanes>();
                let (results, rest_of_results) = y.as_chunks_mut::<$lanes>();
                for (x, y) in wholes.iter().zip(results) {
                    let ($x, $y) = (x.as_ptr(), y.as_mut_ptr());
                    // SAFETY: both pointers are valid for the lanes of a vector, and need no alignment.
                    unsafe { $convert }
                }
                $rest(rest, rest_of_results);
            }
        };
    }

    /// Defines a loop that replaces whole vectors of `$lanes` elements, and the rest one by one.
    macro_rules! replaced_by_vectors {
        ($name:ident, $features:literal, $lanes:literal, |$y:ident| $replace:expr) => {
            #[target_feature(enable = $features)]
            pub fn $name(y: &mut [f32]) {
                let (wholes, rest) = y.as_chunks_mut::<$lanes>();
                for y in wholes {
                    let $y = y.as_mut_ptr();
                    // SAFETY: the pointer is valid for the lanes of a vector, and needs no alignment.
                    unsafe { $replace }
                }
                round_each(rest);
            }
        };
    }

    replaced_by_vectors!(round_avx512, "avx512f,avx512vl,avx2,f16c", 16, |y| {
        let narrow = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm512_loadu_ps(y));
        _mm512_storeu_ps(y, _mm512_cvtph_ps(narrow))
    });
    replaced_by_vectors!(round_avx2, "avx2,f16c", 8, |y| {
        let narrow = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(y));
        _mm256_storeu_ps(y, _mm256_cvtph_ps(narrow))
    });

    by_vectors!(
        widen_avx512,
        "avx512f,avx512vl,avx2,f16c",
        16,
        f16,
        f32,
        widen_each,
        |x, y| {
            let narrow = _mm256_loadu_si256(x.cast());
            _mm512_storeu_ps(y, _mm512_cvtph_ps(narrow))
        }
    );
    by_vectors!(widen_avx2, "avx2,f16c", 8, f16, f32, widen_each, |x, y| {
        let narrow = _mm_loadu_si128(x.cast());
        _mm256_storeu_ps(y, _mm256_cvtph_ps(narrow))
    });
    by_vectors!(
        narrow_avx512,
        "avx512f,avx512vl,avx2,f16c",
        16,
        f32,
        f16,
        narrow_each,
        |x, y| {
            let narrow = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm512_loadu_ps(x));
            _mm256_storeu_si256(y.cast(), narrow)
        }
    );
    by_vectors!(
        narrow_avx2,
        "avx2,f16c",
        8,
        f32,
        f16,
        narrow_each,
        |x, y| {
            let narrow = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(x));
            _mm_storeu_si128(y.cast(), narrow)
        }
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    type Widen = fn(&[f16], &mut [f32]);
    type Narrow = fn(&[f32], &mut [f16]);
    type Round = fn(&mut [f32]);

    /// The conversions of every instruction set that this processor has.
    fn all() -> Vec<(Widen, Narrow, Round)> {
        let of = |isa| -> (Widen, Narrow, Round) {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => (
                    // SAFETY: `all_available` found these features on this machine.
                    |x, y| unsafe { x86::widen_avx512(x, y) },
                    // SAFETY: as above.
                    |x, y| unsafe { x86::narrow_avx512(x, y) },
                    // SAFETY: as above.
                    |y| unsafe { x86::round_avx512(y) },
                ),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2Fma => (
                    // SAFETY: as above.
                    |x, y| unsafe { x86::widen_avx2(x, y) },
                    // SAFETY: as above.
                    |x, y| unsafe { x86::narrow_avx2(x, y) },
                    // SAFETY: as above.
                    |y| unsafe { x86::round_avx2(y) },
                ),
                _ => (widen_each, narrow_each, round_each),
            }
        };
        Isa::all_available().map(of).collect()
    }

    #[test]
    fn every_value_widens_as_by_the_formula_and_comes_back() {
        let x: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        for (widen, narrow, _) in all() {
            // An odd start and length have a rest beside whole vectors.
            let x = &x[3..];
            let (mut y, mut back) = (vec![0.0; x.len()], vec![f16::ZERO; x.len()]);
            widen(x, &mut y);
            narrow(&y, &mut back);
            for ((x, y), back) in x.iter().zip(&y).zip(&back) {
                let want = halves::f16_to_f32(*x).to_bits();
                let quiet = if x.is_nan() { 1 << 22 } else { 0 };
                assert_eq!(y.to_bits() | quiet, want | quiet, "{x:?}");
                assert_eq!(back.to_bits(), halves::f32_to_f16(*y).to_bits(), "{x:?}");
            }
        }
    }

    #[test]
    fn numbers_narrow_as_by_the_formula() {
        let around = |middle: u32| (middle - 5000..middle + 5000).step_by(3);
        let edges = [
            0x3300_0000u32,
            0x3380_0000,
            0x3880_0000,
            0x477f_f000,
            0x7f80_0000,
        ];
        let bits = (0..u32::MAX)
            .step_by(65_521)
            .chain(edges.into_iter().flat_map(around));
        let x: Vec<f32> = bits.map(f32::from_bits).collect();
        for (_, narrow, round) in all() {
            let mut y = vec![f16::ZERO; x.len()];
            narrow(&x, &mut y);
            let mut rounded = x.clone();
            round(&mut rounded);
            for ((x, y), rounded) in x.iter().zip(&y).zip(&rounded) {
                assert_eq!(y.to_bits(), halves::f32_to_f16(*x).to_bits(), "{x:e}");
                let want = halves::f16_to_f32(*y).to_bits();
                assert_eq!(rounded.to_bits(), want, "{x:e}");
            }
        }
    }
}
