//! Blocks of outputs by AVX-512 VNNI: a vector has sixteen outputs of a row, and each of its lanes the four inputs of a step.
//!
//! The input is read in place, with masks for the padding: a window would be read before the processor has written it.

use std::arch::x86_64::*;

use super::{Block, Patch, Rows};
use crate::quantised::requantise::RowCoding;

/// Outputs of a vector.
pub(super) const LANES: usize = 16;
/// Output rows that are computed at once. Planes of 7, 14, 28, 56 and 112 rows are multiples of it.
const ROWS: usize = 7;
/// Most steps of a row of taps.
pub(super) const STEPS: usize = 8;
/// Bytes that stand for a row of the padding: as far as the steps of a row of taps reach, at the widest dilation.
pub(super) const PADDING: usize = STEPS * 4 * 21 + 64;

/// The columns of a vector of outputs: for each step of a row of taps, the first column of its inputs, which may be in the
/// padding, and the bytes from it on that exist.
struct Columns {
    first: [isize; STEPS],
    masks: [u64; STEPS],
    steps: usize,
}

impl Columns {
    fn new(p: &Patch<'_>, x: usize) -> Columns {
        let s = &p.plan.shape;
        let steps = s.kernel[2].div_ceil(4);
        let (mut first, mut masks) = ([0; STEPS], [0; STEPS]);
        for (step, (first, mask)) in first.iter_mut().zip(&mut masks).enumerate().take(steps) {
            let left = (p.x + x) * s.stride[2] + 4 * step * s.dilation[2];
            let below = |end: usize| match end.saturating_sub(left) {
                64.. => u64::MAX,
                bytes => (1 << bytes) - 1,
            };
            *first = left as isize - s.pad[2] as isize;
            *mask = below(s.input[2] + s.pad[2]) & !below(s.pad[2]);
        }
        Columns {
            first,
            masks,
            steps,
        }
    }
}

/// Computes the outputs of a block.
///
/// # Safety
/// The processor has the instructions, the shape is one that [`Form::serves`](super::Form::serves), and nobody else touches
/// the outputs.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi")]
pub(super) unsafe fn block(p: &Patch<'_>, b: &Block<'_>) {
    let s = &p.plan.shape;
    // SAFETY: the caller's contract.
    unsafe {
        match ((LANES - 1) * s.stride[2] + 3 * s.dilation[2] < 32, p.flip) {
            (true, 0) => block_of::<false, false>(p, b),
            (true, _) => block_of::<false, true>(p, b),
            (false, 0) => block_of::<true, false>(p, b),
            (false, _) => block_of::<true, true>(p, b),
        }
    }
}

/// The body of [`block`], where vectors of outputs have the inputs of a step in 64 bytes if `WIDE`, else in 32.
///
/// # Safety
/// The contract is that of [`block`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi")]
unsafe fn block_of<const WIDE: bool, const SIGNED: bool>(p: &Patch<'_>, b: &Block<'_>) {
    let s = &p.plan.shape;
    let mut lanes = [0u8; 64];
    for (i, input) in lanes.iter_mut().enumerate() {
        *input = (i / 4 * s.stride[2] + i % 4 * s.dilation[2]) as u8;
    }
    // SAFETY: the array has 64 bytes.
    let lanes = unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) };
    for x in (0..b.cols).step_by(LANES) {
        let columns = Columns::new(p, x);
        let mut row = 0;
        while row < b.rows {
            // SAFETY: the caller's contract.
            row += unsafe {
                match b.rows - row {
                    ROWS.. => rows::<ROWS, WIDE, SIGNED>(p, b, lanes, &columns, (row, x)),
                    3.. => rows::<3, WIDE, SIGNED>(p, b, lanes, &columns, (row, x)),
                    _ => rows::<1, WIDE, SIGNED>(p, b, lanes, &columns, (row, x)),
                }
            };
        }
    }
}

/// Computes a vector of outputs from column `x` on in each of `R` rows from `row` on, and returns `R`.
///
/// # Safety
/// The contract is that of [`block`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi")]
unsafe fn rows<const R: usize, const WIDE: bool, const SIGNED: bool>(
    p: &Patch<'_>,
    b: &Block<'_>,
    lanes: __m512i,
    columns: &Columns,
    (row, x): (usize, usize),
) -> usize {
    let s = &p.plan.shape;
    let [_, height, width] = s.input;
    let padding = _mm512_set1_epi8((p.padding ^ p.flip) as i8);
    let flip = _mm512_set1_epi8(p.flip as i8);
    let row_of_padding = p.row_of_padding.as_ptr().wrapping_offset(-columns.first[0]);
    let mut sums = [_mm512_set1_epi32(b.constant); R];
    let mut taps = b.steps.taps.as_ptr();
    for channel in 0..s.group_in() {
        let plane = p.planes.as_ptr().wrapping_add(channel * s.in_plane());
        for i in 0..s.kernel[1] {
            let y = ((p.y + row) * s.stride[1] + i * s.dilation[1]).wrapping_sub(s.pad[1]);
            let mut starts = [row_of_padding; R];
            for r in 0..R {
                let y = y.wrapping_add(r * s.stride[1]);
                if y < height {
                    starts[r] = plane.wrapping_add(y * width);
                }
            }
            for (first, mask) in columns.first.iter().zip(&columns.masks).take(columns.steps) {
                // SAFETY: a filter has as many taps as the loops have turns.
                let tap = _mm512_set1_epi32(unsafe { taps.read() });
                taps = taps.wrapping_add(1);
                for r in 0..R {
                    let from = starts[r].wrapping_offset(*first).cast();
                    // SAFETY: the mask covers codes of a row of the input only, or bytes of the row of padding.
                    let codes = unsafe {
                        match WIDE {
                            true => _mm512_mask_loadu_epi8(padding, *mask, from),
                            false => _mm512_castsi256_si512(_mm256_mask_loadu_epi8(
                                _mm512_castsi512_si256(padding),
                                *mask as u32,
                                from,
                            )),
                        }
                    };
                    let codes = match SIGNED {
                        true => _mm512_xor_si512(codes, flip),
                        false => codes,
                    };
                    let codes = _mm512_permutexvar_epi8(lanes, codes);
                    sums[r] = _mm512_dpbusd_epi32(sums[r], codes, tap);
                }
            }
        }
    }
    let mask = ((1u32 << LANES.min(b.cols - x)) - 1) as __mmask16;
    // SAFETY: the mask covers outputs of the block.
    unsafe {
        match b.out {
            Rows::Sums { start, pitch } => {
                for (r, sum) in sums.into_iter().enumerate() {
                    let to = start.wrapping_add((row + r) * pitch + x);
                    _mm512_mask_storeu_epi32(to, mask, sum);
                }
            }
            Rows::Codes { start, pitch, how } => {
                for (r, sum) in sums.into_iter().enumerate() {
                    let to = start.wrapping_add((row + r) * pitch + x);
                    _mm_mask_storeu_epi8(to.cast(), mask, codes(how, sum));
                }
            }
        }
    }
    R
}

/// The codes of sums.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn codes(how: &RowCoding, sums: __m512i) -> __m128i {
    let sums = _mm512_add_epi32(sums, _mm512_set1_epi32(how.bias));
    let x = _mm512_mul_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(how.factor));
    let x = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x);
    let x = _mm512_add_ps(x, _mm512_set1_ps(how.zero));
    // Both give their second operand where one is no number.
    let x = _mm512_max_ps(x, _mm512_set1_ps(how.low));
    let x = _mm512_min_ps(x, _mm512_set1_ps(how.high));
    _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x))
}
