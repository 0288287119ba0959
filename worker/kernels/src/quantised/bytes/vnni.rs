//! The dot products of AVX-512 VNNI.
//!
//! Within each lane of 128 bits the four vectors of a packed group have columns 0 to 3, 4 to 7, 8 to 11 and 12 to 15 of
//! the lane's sixteen. So have the sums, until they are stored: the lanes of four vectors are transposed then, which
//! gives four times sixteen columns in their order. Sums that become codes are not transposed: narrowing four vectors to bytes
//! within their lanes puts the columns in order.
//!
//! Where codes are made in registers and a panel has few columns, its lanes have 4, 8 or 12 columns each, of the 64 bytes of a row,
//! so that one, two or three vectors hold them.

use std::arch::x86_64::*;
use std::ops::Range;

use super::codings::InRegisters;
use super::columns::{Gathered, Panel};
use super::operands::packed_row;
use super::output::MOST_ROWS;
use super::product::{Product, SumRows};
use super::runs::PANEL;
use super::tile::{BlockRows, Dots, MakeCodes, Part};
use crate::quantised::interleave;

/// Vectors of sums in a row of a panel.
pub(super) const VECTORS: usize = PANEL / 16;

pub(super) type Sums = [__m512i; VECTORS];

pub(super) struct Vnni;

impl Dots for Vnni {
    const ROWS: usize = 6;
    const MAKE_CODES: Option<MakeCodes> = Some(make_codes);

    unsafe fn pack(
        p: &Product<'_>,
        panel: &Panel<'_>,
        rows: Range<usize>,
        order: Option<InRegisters<'_>>,
        to: *mut u8,
        sums: &mut [i32; PANEL],
    ) {
        // SAFETY: the caller keeps the same contract.
        unsafe {
            match order.map(vectors) {
                None => pack::<VECTORS, true>(p, panel, rows, to, sums),
                Some(1) => pack::<1, false>(p, panel, rows, to, sums),
                Some(2) => pack::<2, false>(p, panel, rows, to, sums),
                Some(3) => pack::<3, false>(p, panel, rows, to, sums),
                Some(_) => pack::<VECTORS, false>(p, panel, rows, to, sums),
            }
        }
    }

    unsafe fn add(
        part: &Part<'_>,
        p: &Product<'_>,
        row: usize,
        count: usize,
        columns: &Range<usize>,
        to: SumRows,
    ) {
        // SAFETY: the caller keeps the same contract.
        unsafe {
            match count {
                1 => add::<1>(part, p, row, columns, to),
                2 => add::<2>(part, p, row, columns, to),
                3 => add::<3>(part, p, row, columns, to),
                4 => add::<4>(part, p, row, columns, to),
                5 => add::<5>(part, p, row, columns, to),
                _ => add::<6>(part, p, row, columns, to),
            }
        }
    }
}

/// How many vectors have the columns of a panel whose codes are made in registers.
fn vectors(order: InRegisters<'_>) -> usize {
    order.columns.div_ceil(16)
}

/// The words that each of a vector's four lanes gets of a row, so that `V` vectors hold its columns.
const fn into_lanes<const V: usize>() -> [u32; 16] {
    let mut words = [0; 16];
    let mut i = 0;
    while i < 16 {
        words[i] = if i % 4 < V { V * (i / 4) + i % 4 } else { 0 } as u32;
        i += 1;
    }
    words
}

/// The words of a vector whose lanes were filled by [`into_lanes`], in the order of columns.
const fn from_lanes<const V: usize>() -> [u32; 16] {
    let mut words = [0; 16];
    let mut i = 0;
    while i < 4 * V {
        words[i] = (4 * (i / V) + i % V) as u32;
        i += 1;
    }
    words
}

/// The body of [`Dots::pack`]. The first `V` vectors of each group have the columns. With `ORDERED` the sums of the columns are in
/// their order, else as the vectors have them.
///
/// # Safety
/// The contract is that of [`Dots::pack`].
unsafe fn pack<const V: usize, const ORDERED: bool>(
    p: &Product<'_>,
    panel: &Panel<'_>,
    rows: Range<usize>,
    to: *mut u8,
    sums: &mut [i32; PANEL],
) {
    // SAFETY: the caller keeps the same contract, and permutations of bytes are there where they are used.
    unsafe {
        match panel.gathered() {
            Some(from) if permutes_bytes() => {
                pack_gathered::<V, ORDERED>(p, panel, &from, rows, to, sums);
            }
            _ => pack_rows::<V, ORDERED>(p, panel, rows, to, sums),
        }
    }
}

/// Whether the processor permutes the bytes of vectors.
fn permutes_bytes() -> bool {
    is_x86_feature_detected!("avx512vbmi")
}

/// Packs rows that lie as they are, or that are gathered run by run.
///
/// # Safety
/// The contract is that of [`Dots::pack`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn pack_rows<const V: usize, const ORDERED: bool>(
    p: &Product<'_>,
    panel: &Panel<'_>,
    rows: Range<usize>,
    to: *mut u8,
    sums: &mut [i32; PANEL],
) {
    let row = |k: usize| {
        let mut buffer = [0; PANEL];
        let codes = panel.row(k, &mut buffer);
        let mask = u64::MAX >> (PANEL - codes.len());
        if let Some(ahead) = panel.ahead(k) {
            _mm_prefetch::<_MM_HINT_T1>(ahead.cast());
        }
        // SAFETY: the mask covers the codes only.
        unsafe { _mm512_maskz_loadu_epi8(mask, codes.as_ptr().cast()) }
    };
    // SAFETY: the caller's contract.
    unsafe { pack_body::<V, ORDERED>(p, rows, row, to, sums) }
}

/// Packs rows whose columns are picked from the lines that they lie in.
///
/// # Safety
/// The contract is that of [`Dots::pack`]; the processor permutes bytes besides.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi")]
unsafe fn pack_gathered<const V: usize, const ORDERED: bool>(
    p: &Product<'_>,
    panel: &Panel<'_>,
    from: &Gathered,
    rows: Range<usize>,
    to: *mut u8,
    sums: &mut [i32; PANEL],
) {
    let mask = |there: usize| match there {
        0 => 0,
        there => u64::MAX >> (PANEL - there.min(PANEL)),
    };
    let (low, high) = (mask(from.span), mask(from.span.saturating_sub(PANEL)));
    // SAFETY: places are a vector.
    let places = unsafe { _mm512_loadu_si512(from.places.as_ptr().cast()) };
    let row = |k: usize| {
        let codes = panel.lines(k, from).as_ptr();
        // SAFETY: the masks cover the codes only, since they are as many as the span.
        unsafe {
            let first = _mm512_maskz_loadu_epi8(low, codes.cast());
            let second = _mm512_maskz_loadu_epi8(high, codes.wrapping_add(PANEL).cast());
            _mm512_permutex2var_epi8(first, places, second)
        }
    };
    // SAFETY: the caller's contract.
    unsafe { pack_body::<V, ORDERED>(p, rows, row, to, sums) }
}

/// Packs the vectors that `row` gives.
///
/// # Safety
/// The contract is that of [`Dots::pack`].
#[inline(always)]
unsafe fn pack_body<const V: usize, const ORDERED: bool>(
    p: &Product<'_>,
    rows: Range<usize>,
    row: impl Fn(usize) -> __m512i,
    to: *mut u8,
    column_sums: &mut [i32; PANEL],
) {
    // SAFETY: the caller's contract: the processor has the instructions, `to` has room for the groups, and the sums are four
    // vectors.
    unsafe {
        let flip = _mm512_set1_epi8(if p.signed { -128 } else { 0 });
        let ones = _mm512_set1_epi8(1);
        let words = const { into_lanes::<V>() };
        let words = _mm512_loadu_si512(words.as_ptr().cast());
        // The sums of columns are multiplied by the zero points of rows.
        let sums_matter = !p.rows_have_no_zeros();
        let mut sums = [_mm512_setzero_si512(); VECTORS];
        for (group, first) in rows.clone().step_by(4).enumerate() {
            let mut r = [_mm512_setzero_si512(); 4];
            for (i, r) in r.iter_mut().enumerate().take(rows.end - first) {
                *r = _mm512_xor_si512(row(first + i), flip);
                if V < VECTORS {
                    *r = _mm512_permutexvar_epi32(words, *r);
                }
            }
            let columns = interleave::within_lanes_of_64(r);
            let columns = columns.into_iter().take(V);
            for (v, (column, sum)) in columns.zip(sums.iter_mut()).enumerate() {
                _mm512_storeu_si512(to.add(group * 4 * PANEL + v * 64).cast(), column);
                if sums_matter {
                    *sum = _mm512_dpbusd_epi32(*sum, column, ones);
                }
            }
        }
        if !sums_matter {
            return;
        }
        let sums = match ORDERED {
            true => transposed(sums),
            false => sums,
        };
        for (v, sum) in sums.into_iter().enumerate() {
            let at = column_sums.as_mut_ptr().add(16 * v);
            let before = _mm512_loadu_si512(at.cast());
            _mm512_storeu_si512(at.cast(), _mm512_add_epi32(before, sum));
        }
    }
}

/// Dispatches on the numbers of rows and of vectors.
///
/// # Safety
/// The contract is that of [`MakeCodes`].
unsafe fn make_codes(
    part: &Part<'_>,
    p: &Product<'_>,
    order: InRegisters<'_>,
    rows: BlockRows<'_>,
    to: &mut [[u8; PANEL]; MOST_ROWS],
) {
    macro_rules! dispatch {
        ($($r:literal),*; $vectors:tt) => {
            match rows.count {
                $($r => dispatch!(@ $r, $vectors),)*
                _ => {}
            }
        };
        (@ $r:literal, ($($v:literal),*)) => {
            match vectors(order) {
                $($v => codes::<$r, $v>(part, p, rows, to),)*
                _ => {}
            }
        };
    }
    // SAFETY: the caller keeps the same contract.
    unsafe { dispatch!(1, 2, 3, 4, 5, 6; (1, 2, 3, 4)) }
}

/// Makes the codes of `R` rows of sums in `V` vectors each: `round((sum + bias) * factor) + zero` within the range of the codes,
/// as [`codes_of_panel`](crate::quantised::requantise) has it, with NaN as the least code.
///
/// # Safety
/// The contract is that of [`MakeCodes`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn codes<const R: usize, const V: usize>(
    part: &Part<'_>,
    p: &Product<'_>,
    rows: BlockRows<'_>,
    to: &mut [[u8; PANEL]; MOST_ROWS],
) {
    let width = packed_row(p.k);
    let nothing = _mm512_setzero_si512();
    let mut sums = [[nothing; V]; R];
    // SAFETY: rows of the left operand are `width` bytes, which is a multiple of four; the panel has `groups` groups.
    unsafe {
        let left = p.left.packed.as_ptr().add((p.first + rows.row) * width);
        for group in 0..part.groups {
            let b: [__m512i; V] = std::array::from_fn(|v| {
                _mm512_loadu_si512(part.packed.add(group * 4 * PANEL + v * 64).cast())
            });
            for (r, sums) in sums.iter_mut().enumerate() {
                let a = left.add(r * width + 4 * group).cast::<i32>();
                let a = _mm512_set1_epi32(a.read_unaligned());
                for v in 0..V {
                    sums[v] = _mm512_dpbusd_epi32(sums[v], b[v], a);
                }
            }
        }
    }
    let most = _mm512_set1_ps(f32::from(i16::MAX));
    let words = const { from_lanes::<V>() };
    // SAFETY: sixteen words are a vector.
    let words = unsafe { _mm512_loadu_si512(words.as_ptr().cast()) };
    let codings = rows.codings;
    for (r, sums) in sums.into_iter().enumerate() {
        let at = rows.at + r;
        let zero = codings.zeros[at];
        let add = _mm512_set1_epi32(codings.add[at]);
        let factor = _mm512_set1_ps(codings.factors[at]);
        let mut words_of = [nothing; VECTORS];
        for (v, sum) in sums.into_iter().enumerate() {
            let mut sum = _mm512_add_epi32(sum, add);
            if zero != 0
                && let Some(of_columns) = part.column_sums
            {
                // SAFETY: the sums of the columns are four vectors.
                let of_columns =
                    unsafe { _mm512_loadu_si512(of_columns.as_ptr().add(16 * v).cast()) };
                let zero = _mm512_set1_epi32(zero);
                sum = _mm512_sub_epi32(sum, _mm512_mullo_epi32(of_columns, zero));
            }
            let x = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), factor);
            // What is too small, and NaN, which the minimum hands on, becomes the least number.
            words_of[v] = _mm512_cvtps_epi32(_mm512_min_ps(most, x));
        }
        // All of it saturates, and the range of codes lies well within that of 16 bits.
        let of_result = _mm512_set1_epi16(codings.of_results[at] as i16);
        let low = _mm512_adds_epi16(_mm512_packs_epi32(words_of[0], words_of[1]), of_result);
        let high = _mm512_adds_epi16(_mm512_packs_epi32(words_of[2], words_of[3]), of_result);
        let mut codes = match codings.signed {
            true => _mm512_packs_epi16(low, high),
            false => _mm512_packus_epi16(low, high),
        };
        if V < VECTORS {
            codes = _mm512_permutexvar_epi32(words, codes);
        }
        // SAFETY: a row of codes is a vector.
        unsafe { _mm512_storeu_si512(to[r].as_mut_ptr().cast(), codes) };
    }
}

/// Transposes the lanes of four vectors.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
pub(super) unsafe fn transposed(v: Sums) -> Sums {
    // SAFETY: the caller's contract.
    unsafe {
        let ab = _mm512_shuffle_i32x4::<0b0100_0100>(v[0], v[1]);
        let cd = _mm512_shuffle_i32x4::<0b0100_0100>(v[2], v[3]);
        let ab_high = _mm512_shuffle_i32x4::<0b1110_1110>(v[0], v[1]);
        let cd_high = _mm512_shuffle_i32x4::<0b1110_1110>(v[2], v[3]);
        [
            _mm512_shuffle_i32x4::<0b1000_1000>(ab, cd),
            _mm512_shuffle_i32x4::<0b1101_1101>(ab, cd),
            _mm512_shuffle_i32x4::<0b1000_1000>(ab_high, cd_high),
            _mm512_shuffle_i32x4::<0b1101_1101>(ab_high, cd_high),
        ]
    }
}

/// The body of [`Dots::add`] for `R` rows.
///
/// # Safety
/// The contract is that of [`Dots::add`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn add<const R: usize>(
    part: &Part<'_>,
    p: &Product<'_>,
    row: usize,
    columns: &Range<usize>,
    to: SumRows,
) {
    let width = packed_row(p.k);
    let mut sums = [[_mm512_setzero_si512(); VECTORS]; R];
    // SAFETY: rows of the left operand are `width` bytes, which is a multiple of four; the panel has `groups` groups; the
    // masks keep loads and stores inside the columns.
    unsafe {
        let left = p.left.packed.as_ptr();
        let left = left.add((p.first + row) * width + part.first);
        for group in 0..part.groups {
            let b: Sums = std::array::from_fn(|v| {
                _mm512_loadu_si512(part.packed.add(group * 4 * PANEL + v * 64).cast())
            });
            for (r, sums) in sums.iter_mut().enumerate() {
                let a = left.add(r * width + 4 * group).cast::<i32>();
                let a = _mm512_set1_epi32(a.read_unaligned());
                for v in 0..VECTORS {
                    sums[v] = _mm512_dpbusd_epi32(sums[v], b[v], a);
                }
            }
        }
        let zeros = part.column_sums.map(|sums| (sums, p.column_zeros(columns)));
        for (r, sums) in sums.into_iter().enumerate() {
            let (zero, rest) = p.row_zero(row + r);
            for (v, mut sum) in transposed(sums).into_iter().enumerate() {
                let there = columns.len().saturating_sub(16 * v).min(16);
                let mask = ((1u32 << there) - 1) as __mmask16;
                let out = to.at(r, 16 * v);
                if part.adds {
                    sum = _mm512_add_epi32(sum, _mm512_maskz_loadu_epi32(mask, out));
                }
                if let Some((sums, zeros)) = &zeros {
                    let load =
                        |all: &[i32; PANEL]| _mm512_loadu_si512(all.as_ptr().add(16 * v).cast());
                    let of_row = _mm512_mullo_epi32(load(sums), _mm512_set1_epi32(zero));
                    let of_column = _mm512_mullo_epi32(load(zeros), _mm512_set1_epi32(rest));
                    sum = _mm512_sub_epi32(sum, _mm512_add_epi32(of_row, of_column));
                }
                _mm512_mask_storeu_epi32(out, mask, sum);
            }
        }
    }
}
