//! Products whose left operand becomes codes as well, so that a block of an output is a sum of whole numbers.
//!
//! ```text
//! rows ── code_rows ──> codes of 8 bits; of each block of a row its scale and the sum of its codes
//!                         │
//! 64 columns of weights ──┴── whole sums of a block ── times both scales ──> chain over the blocks ──> output
//! ```
//!
//! Invariants
//! 1. In a block of a row, the scale is the greatest magnitude divided by 127, rounded once, and a code is the number
//!    divided by the scale, rounded half to even, from -127 to 127. All codes are 0 where the scale is 0. A block with a NaN
//!    or an infinity has a NaN as its scale.
//! 2. An output is the chain over the blocks of `fma(t * weight scale, row scale, sum)`. `t` is the sum of the products of
//!    codes, each weight less its zero point, as f32. Zero points that are codes are subtracted exactly; for others
//!    `t = fma(-zero, sum of the row's codes, sum of products)`.
//! 3. A row has the same bits alone and among others, whatever the means, the threads and the layout of the weights.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod portable;
#[cfg(target_arch = "x86_64")]
mod vnni;

use std::ops::Range;

use super::codes::{CodeBuffer, CodeRow, DEPTH};
use super::row::finish;
use super::weights::{BlockParameters, BlockWeights, COLUMNS, ZeroPoints};
use crate::Exec;
use crate::error::Result;
use crate::gemm::Output;
use crate::multiversion::multiversion;
use crate::quantised::bytes::Means;
use crate::split::{GRAIN, tiles2};

/// The greatest magnitude of a code of a row.
const GREATEST: f32 = 127.0;
/// A number whose neighbours are whole numbers: 1.5 * 2^23.
const ROUNDER: f32 = 12_582_912.0;
/// Rows of codes that are multiplied at once.
const TOGETHER: usize = 4;
/// Most rows of a tile.
const MOST_ROWS: usize = 128;
/// Least work of a tile, in multiply-adds.
const TILE_WORK: usize = 1 << 18;

/// Codes of 64 columns in four rows, those of a column next to each other.
type Group = [u8; TOGETHER * COLUMNS];
/// Packed codes of 64 columns in a row, four bits each: the low halves are those of the first 32 columns.
type Nibbles = [u8; COLUMNS / 2];
/// The shortest block, of which all others are multiples.
const LEAST_BLOCK: usize = 16;
/// Groups of the weights that are multiplied at a time.
const GROUPS: usize = DEPTH / TOGETHER;
/// The most blocks among these weights.
const MOST_BLOCKS: usize = DEPTH / LEAST_BLOCK;

/// Whether rows can be codes in blocks of this many weights.
fn can_code(block: usize) -> bool {
    block > 0 && block <= DEPTH && block.is_multiple_of(LEAST_BLOCK)
}

/// Rows as codes, each as long as all blocks together.
#[derive(Debug, Clone, Copy)]
pub struct CodedRows<'a> {
    /// `[m, blocks * block]`, as signed bytes.
    pub codes: &'a [u8],
    /// `[m, blocks]`.
    pub scales: &'a [f32],
    /// The sums of the codes, `[m, blocks]`.
    pub sums: &'a [i32],
}

multiversion! {
    /// Returns the bits of the greatest magnitude; those of an infinity or more where a number is not finite.
    fn greatest<>(x: &[f32]) -> u32 {
        let mut lanes = [0u32; 16];
        let (whole, rest) = x.as_chunks::<16>();
        for x in whole {
            for i in 0..16 {
                lanes[i] = lanes[i].max(x[i].to_bits() & 0x7fff_ffff);
            }
        }
        for (i, x) in rest.iter().enumerate() {
            lanes[i] = lanes[i].max(x.to_bits() & 0x7fff_ffff);
        }
        let mut all = 0;
        for lane in lanes {
            all = all.max(lane);
        }
        all
    }
}

multiversion! {
    /// Writes the codes of finite numbers, and returns their sum.
    fn code<>(x: &[f32], scale: f32, to: &mut [u8]) -> i32 {
        let (mut sum, n) = (0i32, x.len());
        let to = &mut to[..n];
        for i in 0..n {
            // The sum is rounded to a whole number, which its low bits are.
            let moved = (x[i] / scale).clamp(-GREATEST, GREATEST) + ROUNDER;
            let code = moved.to_bits().wrapping_sub(ROUNDER.to_bits()) as i32;
            to[i] = code as u8;
            sum += code;
        }
        sum
    }
}

/// Makes rows of `k` numbers codes, in blocks of `block`.
pub fn code_rows(
    exec: &Exec,
    x: &[f32],
    (k, block): (usize, usize),
    codes: &mut [u8],
    (scales, sums): (&mut [f32], &mut [i32]),
) -> Result {
    let blocks = k.div_ceil(block);
    let (rows, width) = (x.len() / k.max(1), blocks * block);
    assert_eq!((x.len(), codes.len()), (rows * k, rows * width), "rows");
    assert_eq!((scales.len(), sums.len()), (rows * blocks, rows * blocks));
    let starts = Output(scales.as_mut_ptr());
    let grain = (GRAIN / width.max(1)).max(1);
    Ok(tiles2(
        exec,
        (codes, width),
        (sums, blocks),
        rows,
        grain,
        |range, codes, sums| {
            // SAFETY: each range of rows is given once, so that its scales are touched by nobody else; there are as many.
            let scales = unsafe {
                let start = starts.item(range.start * blocks);
                std::slice::from_raw_parts_mut(start, range.len() * blocks)
            };
            for (i, x) in x[range.start * k..range.end * k].chunks(k).enumerate() {
                for (b, x) in x.chunks(block).enumerate() {
                    let greatest = f32::from_bits(greatest(x));
                    let scale = greatest / GREATEST;
                    let to = &mut codes[i * width + b * block..][..block];
                    to.fill(0);
                    let at = i * blocks + b;
                    (scales[at], sums[at]) = match greatest.is_finite() {
                        true if scale > 0.0 => (scale, code(x, scale, to)),
                        true => (0.0, 0),
                        false => (f32::NAN, 0),
                    };
                }
            }
        },
    )?)
}

/// How the zero points of weights are subtracted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ZeroKind {
    /// All are this code.
    One(i32),
    /// They are codes.
    Codes,
    Numbers,
}

/// The parameters of a block of columns.
#[derive(Clone, Copy)]
struct Terms {
    scales: [f32; COLUMNS],
    /// Zero points that are codes.
    codes: [i32; COLUMNS],
    /// Those that are numbers.
    numbers: [f32; COLUMNS],
}

/// Some blocks of weights in the columns of a strip.
struct Part<'a> {
    /// The codes, block by block.
    packed: &'a [Group],
    /// Groups of a block.
    groups: usize,
    of: &'a [Terms],
    zeros: ZeroKind,
    /// Whether a code takes more than four bits.
    wide: bool,
    /// The number of the first block.
    first: usize,
    /// All blocks of a row.
    blocks: usize,
    left: CodedRows<'a>,
}

impl Part<'_> {
    /// The codes, scales and sums of a row in the part's blocks.
    fn row(&self, row: usize) -> (&[u8], &[f32], &[i32]) {
        let block = self.groups * TOGETHER;
        let own = row * self.blocks + self.first..row * self.blocks + self.first + self.of.len();
        (
            &self.left.codes[own.start * block..own.end * block],
            &self.left.scales[own.clone()],
            &self.left.sums[own],
        )
    }
}

/// Sums of a row in the columns of a strip.
type Sums = [f32; COLUMNS];

/// The dot products of an instruction set.
trait Dots {
    /// Most rows whose sums are kept in registers.
    const ROWS: usize;

    /// Lays out whole groups of rows.
    ///
    /// # Safety
    /// The processor has the instruction set.
    unsafe fn group(codes: &[[CodeRow; TOGETHER]], to: &mut [Group]);

    /// Lays out whole groups of rows whose codes are packed, four bits each.
    ///
    /// # Safety
    /// The processor has the instruction set.
    unsafe fn group_nibbles(codes: &[[Nibbles; TOGETHER]], to: &mut [Group]);

    /// Adds a part to the sums of the rows from `row` on, at most [`Dots::ROWS`].
    ///
    /// # Safety
    /// The processor has the instruction set.
    unsafe fn add(part: &Part<'_>, row: usize, sums: &mut [Sums]);
}

/// What a tile works with.
struct Tile {
    buffer: CodeBuffer,
    packed: [Group; GROUPS],
    of: [Terms; MOST_BLOCKS],
    sums: [Sums; MOST_ROWS],
}

impl Tile {
    fn new() -> Tile {
        let none = Terms {
            scales: [0.0; COLUMNS],
            codes: [0; COLUMNS],
            numbers: [0.0; COLUMNS],
        };
        Tile {
            buffer: CodeBuffer::new(),
            packed: [[0; TOGETHER * COLUMNS]; GROUPS],
            of: [none; MOST_BLOCKS],
            sums: [[0.0; COLUMNS]; MOST_ROWS],
        }
    }

    /// Lays out the codes of some blocks in the columns of a strip.
    ///
    /// # Safety
    /// The processor has the instruction set.
    unsafe fn groups<D: Dots>(
        &mut self,
        w: &BlockWeights<'_>,
        columns: Range<usize>,
        blocks: Range<usize>,
    ) {
        if w.packed && w.bits == 4 {
            // Packed rows fill the last block.
            let own = blocks.start * w.block..blocks.end * w.block;
            let first = columns.start / COLUMNS * w.rows();
            let (rows, _) = w.codes.as_chunks::<{ COLUMNS / 2 }>();
            let (rows, _) = rows[first + own.start..first + own.end].as_chunks();
            // SAFETY: the caller's contract.
            return unsafe { D::group_nibbles(rows, &mut self.packed) };
        }
        let depth = blocks.start * w.block..w.k.min(blocks.end * w.block);
        let (codes, rest) = self.buffer.read(w, columns, depth).as_chunks::<TOGETHER>();
        // SAFETY: the caller's contract.
        unsafe { D::group(codes, &mut self.packed) };
        if !rest.is_empty() {
            // The codes of rows that are missing are 0 on the left.
            let mut last = [[0; COLUMNS]; TOGETHER];
            last[..rest.len()].copy_from_slice(rest);
            // SAFETY: the caller's contract.
            unsafe { D::group(&[last], &mut self.packed[codes.len()..]) };
        }
    }

    /// Computes the sums of some rows in the columns of a strip; `None` where the step was cancelled.
    ///
    /// # Safety
    /// The processor has the instruction set.
    unsafe fn sums<D: Dots>(
        &mut self,
        exec: &Exec,
        w: &BlockWeights<'_>,
        left: CodedRows<'_>,
        (rows, columns): (Range<usize>, Range<usize>),
    ) -> Option<&[Sums]> {
        let zeros = match w.zeros {
            ZeroPoints::Middle => ZeroKind::One(w.middle().into()),
            ZeroPoints::Packed(_) | ZeroPoints::Signed(_) => ZeroKind::Codes,
            ZeroPoints::Numbers(_) => ZeroKind::Numbers,
        };
        let (groups, blocks) = (w.block / TOGETHER, w.blocks());
        self.sums[..rows.len()].fill([0.0; COLUMNS]);
        let at_once = DEPTH / w.block;
        for first in (0..blocks).step_by(at_once) {
            exec.check().ok()?;
            let own = first..blocks.min(first + at_once);
            // SAFETY: the caller's contract.
            unsafe { self.groups::<D>(w, columns.clone(), own.clone()) };
            for (block, of) in own.clone().zip(&mut self.of) {
                terms(w, columns.clone(), block, zeros, of);
            }
            let part = Part {
                packed: &self.packed[..own.len() * groups],
                groups,
                of: &self.of[..own.len()],
                zeros,
                wide: w.bits > 4,
                first,
                blocks,
                left,
            };
            let sums = self.sums[..rows.len()].chunks_mut(D::ROWS);
            for (i, sums) in sums.enumerate() {
                // SAFETY: the caller's contract.
                unsafe { D::add(&part, rows.start + i * D::ROWS, sums) };
            }
        }
        Some(&self.sums[..rows.len()])
    }
}

fn terms(
    w: &BlockWeights<'_>,
    columns: Range<usize>,
    block: usize,
    zeros: ZeroKind,
    of: &mut Terms,
) {
    let mut own = BlockParameters::NONE;
    w.parameters(columns, block, &mut own);
    of.scales = own.scales;
    match zeros {
        ZeroKind::One(_) => {}
        ZeroKind::Codes => of.codes = own.zeros.map(|zero| zero as i32),
        ZeroKind::Numbers => of.numbers = own.zeros,
    }
}

/// `y = left · weights + bias`, with `y [m, n]`.
pub fn product_of_codes(
    exec: &Exec,
    left: CodedRows<'_>,
    w: &BlockWeights<'_>,
    bias: Option<&[f32]>,
    y: &mut [f32],
) -> Result {
    product_by(Means::detect(), exec, left, w, bias, y)
}

pub(in crate::quantised) fn product_by(
    means: Means,
    exec: &Exec,
    left: CodedRows<'_>,
    w: &BlockWeights<'_>,
    bias: Option<&[f32]>,
    y: &mut [f32],
) -> Result {
    w.check();
    assert!(can_code(w.block), "length of a block");
    let (m, blocks) = (y.len() / w.n.max(1), w.blocks());
    assert_eq!(y.len(), m * w.n, "result");
    assert_eq!(left.codes.len(), m * blocks * w.block, "codes of rows");
    assert_eq!(
        (left.scales.len(), left.sums.len()),
        (m * blocks, m * blocks),
        "scales and sums of rows"
    );
    assert!(bias.is_none_or(|bias| bias.len() == w.n), "bias");
    if y.is_empty() {
        return Ok(exec.check()?);
    }
    let strips = w.n.div_ceil(COLUMNS);
    let rows = m.min(MOST_ROWS);
    let grain = (TILE_WORK / (rows * COLUMNS * w.k.max(1))).max(1);
    let out = Output(y.as_mut_ptr());
    exec.tiles(m.div_ceil(rows) * strips, grain, |range| {
        let mut tile = Tile::new();
        for i in range {
            let (row, column) = (i / strips * rows, i % strips * COLUMNS);
            let rows = row..m.min(row + rows);
            let columns = column..w.n.min(column + COLUMNS);
            let place = (rows.clone(), columns.clone());
            // SAFETY: the means are available.
            let sums = unsafe {
                match means {
                    #[cfg(target_arch = "x86_64")]
                    Means::Vnni => tile.sums::<vnni::Vnni>(exec, w, left, place),
                    #[cfg(target_arch = "x86_64")]
                    Means::Avx2 => tile.sums::<avx2::Avx2>(exec, w, left, place),
                    Means::Portable => tile.sums::<portable::Portable>(exec, w, left, place),
                }
            };
            // A tile that is not complete because of cancellation is told by the check below.
            let Some(sums) = sums else { return };
            for (row, sums) in rows.zip(sums) {
                // SAFETY: each rectangle is given once, so that this part of a row is touched by nobody else.
                let y = unsafe {
                    let start = out.item(row * w.n + columns.start);
                    std::slice::from_raw_parts_mut(start, columns.len())
                };
                finish(sums, bias.map(|bias| &bias[columns.clone()]), y);
            }
        }
    })?;
    Ok(exec.check()?)
}
