//! The product of one row: its chains are computed as the weights become numbers, which never lie in memory.

use std::ops::Range;

use super::codes::{CodeBuffer, CodeRow, DEPTH};
use super::weights::{BlockParameters, BlockWeights, COLUMNS};
use crate::element::canonical_nan;
use crate::error::Result;
use crate::multiversion::multiversion;
use crate::split::tiles;
use crate::{Cancelled, Exec};

/// Lanes of a sum, and sums that are computed together, since each waits for the one before.
const LANES: usize = 16;
const SUMS: usize = COLUMNS / LANES;
/// Least work of a tile, in multiply-adds: a quarter of that of other products, since each number is decoded for its one use.
const TILE_WORK: usize = 1 << 18;

type Sums = [[f32; LANES]; SUMS];

/// `y = a · weights + bias`, for one row.
pub(super) fn product(
    exec: &Exec,
    a: &[f32],
    w: &BlockWeights<'_>,
    bias: Option<&[f32]>,
    y: &mut [f32],
) -> Result {
    let strips = (TILE_WORK / (COLUMNS * w.k.max(1))).max(1);
    tiles(exec, y, 1, strips * COLUMNS, |range, y| {
        let mut buffer = CodeBuffer::new();
        for (strip, y) in y.chunks_mut(COLUMNS).enumerate() {
            let first = range.start + strip * COLUMNS;
            let columns = first..first + y.len();
            // A tile that is not complete because of cancellation is told by the check below.
            let Ok(sums) = strip_sums(exec, a, w, columns.clone(), &mut buffer) else {
                return;
            };
            let sums = sums.as_flattened();
            finish(sums, bias.map(|bias| &bias[columns]), y);
        }
    })?;
    Ok(exec.check()?)
}

/// Writes the sums of a row, each plus its column's number of `bias`. There may be more sums than columns.
pub(super) fn finish(sums: &[f32], bias: Option<&[f32]>, y: &mut [f32]) {
    match bias {
        Some(bias) => {
            for ((y, sum), bias) in y.iter_mut().zip(sums).zip(bias) {
                *y = canonical_nan(canonical_nan(*sum) + bias);
            }
        }
        None => {
            for (y, sum) in y.iter_mut().zip(sums) {
                *y = canonical_nan(*sum);
            }
        }
    }
}

/// The chains of at most [`COLUMNS`] columns.
fn strip_sums(
    exec: &Exec,
    a: &[f32],
    w: &BlockWeights<'_>,
    columns: Range<usize>,
    buffer: &mut CodeBuffer,
) -> std::result::Result<Sums, Cancelled> {
    let mut sums: Sums = [[0.0; LANES]; SUMS];
    let mut of = BlockParameters::NONE;
    for first in (0..w.k).step_by(DEPTH) {
        exec.check()?;
        let rows = first..w.k.min(first + DEPTH);
        let a = &a[rows.clone()];
        let codes = buffer.read(w, columns.clone(), rows.clone());
        w.each_block(rows, |block, part| {
            w.parameters(columns.clone(), block, &mut of);
            add_products(&a[part.clone()], &codes[part], &of, &mut sums);
        });
    }
    Ok(sums)
}

multiversion! {
    /// Adds the products of a part of the row with weights to the chains.
    fn add_products<>(a: &[f32], codes: &[CodeRow], of: &BlockParameters, sums: &mut Sums) {
        let (mut own, n) = (*sums, a.len());
        let codes = &codes[..n];
        for i in 0..n {
            for s in 0..SUMS {
                for lane in 0..LANES {
                    let column = s * LANES + lane;
                    let code = f32::from(codes[i][column]);
                    let weight = (code - of.zeros[column]) * of.scales[column];
                    own[s][lane] = a[i].mul_add(weight, own[s][lane]);
                }
            }
        }
        *sums = own;
    }
}
