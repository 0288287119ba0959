//! Blocks of outputs by AVX2: a vector has eight outputs of a row, and each of its lanes the two inputs of a step, widened to
//! sixteen bits.

use std::arch::x86_64::*;

use super::{Block, Rows};
use crate::quantised::requantise::RowCoding;

/// Outputs of a vector.
pub(super) const LANES: usize = 8;

/// Computes a block.
///
/// # Safety
/// The window covers the inputs of all steps, and 32 bytes after each; the processor has the instructions; nobody else touches
/// the outputs.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn block(b: &Block<'_>) {
    let (taps, places) = (
        &b.steps.taps[..b.steps.count],
        &b.steps.places[..b.steps.count],
    );
    // Both halves take the inputs of four outputs from sixteen bytes of their own; 0x80 gives a zero.
    let mut inputs = [0x80u8; 16];
    for (output, input) in inputs.chunks_exact_mut(4).enumerate() {
        input[0] = (output * b.stride) as u8;
        input[2] = (output * b.stride + b.dilation) as u8;
    }
    // SAFETY: the array has sixteen bytes.
    let inputs = unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(inputs.as_ptr().cast())) };
    for row in 0..b.rows {
        for x in (0..b.cols).step_by(LANES) {
            let mut sums = _mm256_set1_epi32(b.constant);
            let start = b.window.wrapping_add(row * b.row + x * b.stride);
            for (tap, place) in taps.iter().zip(places) {
                let from = start.wrapping_add(*place);
                // SAFETY: the caller's contract.
                let codes = unsafe {
                    let low = _mm_loadu_si128(from.cast());
                    let high = _mm_loadu_si128(from.wrapping_add(LANES / 2 * b.stride).cast());
                    _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high)
                };
                let codes = _mm256_shuffle_epi8(codes, inputs);
                let products = _mm256_madd_epi16(codes, _mm256_set1_epi32(*tap));
                sums = _mm256_add_epi32(sums, products);
            }
            let there = LANES.min(b.cols - x);
            // SAFETY: as many outputs are written as the block has.
            unsafe {
                match b.out {
                    Rows::Sums { start, pitch } => {
                        let mut all = [0i32; LANES];
                        _mm256_storeu_si256(all.as_mut_ptr().cast(), sums);
                        let to = start.wrapping_add(row * pitch + x);
                        std::ptr::copy_nonoverlapping(all.as_ptr(), to, there);
                    }
                    Rows::Codes { start, pitch, how } => {
                        let (all, to) = (codes(how, sums), start.wrapping_add(row * pitch + x));
                        match there {
                            LANES => to.cast::<[u8; LANES]>().write_unaligned(all),
                            _ => std::ptr::copy_nonoverlapping(all.as_ptr(), to, there),
                        }
                    }
                }
            }
        }
    }
}

/// The codes of sums.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn codes(how: &RowCoding, sums: __m256i) -> [u8; LANES] {
    let sums = _mm256_add_epi32(sums, _mm256_set1_epi32(how.bias));
    let x = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(how.factor));
    let x = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x);
    let x = _mm256_add_ps(x, _mm256_set1_ps(how.zero));
    // Both give their second operand where one is no number.
    let x = _mm256_max_ps(x, _mm256_set1_ps(how.low));
    let x = _mm256_min_ps(x, _mm256_set1_ps(how.high));
    let x = _mm256_cvtps_epi32(x);
    // The low byte of each number, four at the start of each half.
    let low = _mm256_set1_epi32(0x0c08_0400);
    let x = _mm256_shuffle_epi8(x, low);
    let (low, high) = (_mm256_extract_epi32::<0>(x), _mm256_extract_epi32::<4>(x));
    let both = u64::from(low as u32) | u64::from(high as u32) << 32;
    both.to_le_bytes()
}
