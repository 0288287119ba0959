//! Cuts products into tiles for the threads.
//!
//! Invariant: tiles are disjoint rectangles of C, cut at multiples of 8 rows and 48 columns; a tile computes the whole
//! chain of each of its outputs.

use super::columns::NARROW;
use super::micro::{MR, NR};
use super::product::Product;
use super::tile::{MAX_TILE_ROWS, run_tile};
use crate::{Cancelled, Exec};
use std::ops::Range;

/// Least work of a tile, in multiply-adds: some microseconds, against the cost of handing it to a thread that is awake.
pub(crate) const TILE_WORK: f64 = 2.5e5;
/// How many multiply-adds take as long as reading an element of B from memory.
const READ_WORK: f64 = 3.0;

/// How a set of equal products is cut into tiles. The cut may depend on the number of threads, because no cut changes a
/// bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Grid {
    tile_rows: usize,
    tile_cols: usize,
    row_tiles: usize,
    col_tiles: usize,
}

/// Into how many parts of whole `unit`s the rows of a product are cut for some threads, at most `most`, where each part makes
/// `others` tiles. A tile prepares its columns, which takes as long as multiplying them with `prepared` rows, so the fewer the
/// better, as long as no thread waits for the others.
pub(crate) fn row_parts(
    threads: usize,
    others: usize,
    most: usize,
    (rows, unit): (usize, usize),
    prepared: f64,
) -> usize {
    let time = |parts: &usize| {
        let each = rows.div_ceil(*parts).next_multiple_of(unit);
        others.saturating_mul(*parts).div_ceil(threads) as f64 * (each as f64 + prepared)
    };
    let parts = (1..=most).min_by(|a, b| time(a).total_cmp(&time(b)));
    parts.unwrap_or(1)
}

impl Grid {
    /// `prepared` is how many rows take as long as preparing a panel of B.
    fn new(threads: usize, batch: usize, (m, n, k): (usize, usize, usize), prepared: f64) -> Grid {
        // Four tiles a thread balance the load; one thread needs a single tile. Cutting columns is free, whereas
        // cutting rows makes several tiles prepare the same panel of B.
        let work = batch as f64 * (m as f64 + READ_WORK) * n as f64 * k.max(1) as f64;
        let wanted = if threads == 1 {
            1
        } else {
            (work / TILE_WORK).min(threads as f64 * 4.0) as usize
        };
        let wanted = wanted.max(1).div_ceil(batch.max(1));
        // A few columns after the last whole panel do not get a tile of their own.
        let panels = (n / NR + usize::from(n % NR > NARROW)).max(1);
        let col_tiles = wanted.min(panels);
        let tile_cols = panels.div_ceil(col_tiles) * NR;
        let col_tiles = panels.div_ceil(tile_cols / NR);
        let others = batch.saturating_mul(col_tiles);
        let most = wanted.div_ceil(col_tiles);
        let row_tiles = row_parts(threads, others, most, (m, MR), prepared)
            .max(m.div_ceil(MAX_TILE_ROWS))
            .max(1);
        let tile_rows = m.div_ceil(row_tiles).next_multiple_of(MR);
        Grid {
            tile_rows,
            tile_cols,
            row_tiles: m.div_ceil(tile_rows),
            col_tiles,
        }
    }

    fn tiles(&self) -> usize {
        self.row_tiles * self.col_tiles
    }

    fn ranges(&self, tile: usize, m: usize, n: usize) -> (Range<usize>, Range<usize>) {
        let (r, c) = (tile / self.col_tiles, tile % self.col_tiles);
        let rows = r * self.tile_rows..((r + 1) * self.tile_rows).min(m);
        let end = if c + 1 == self.col_tiles {
            n
        } else {
            (c + 1) * self.tile_cols
        };
        (rows, c * self.tile_cols..end)
    }
}

/// Runs `batch` products of one shape; `product(i)` gives the i-th.
///
/// # Safety
/// Every product's instruction set is available, its operands cover its sizes (all `m`, `n`, `k`),
/// and the outputs are disjoint and owned by the caller.
pub(crate) unsafe fn run<'a>(
    exec: Exec<'_>,
    batch: usize,
    (m, n, k): (usize, usize, usize),
    product: impl Fn(usize) -> Product<'a> + Sync,
) -> Result<(), Cancelled> {
    if batch == 0 {
        return exec.check();
    }
    let grid = Grid::new(exec.threads(), batch, (m, n, k), product(0).b.prepared());
    let per_item = grid.tiles();
    // Small products share a tile of work, so that a batch does not wake a thread for each product.
    let grain = if per_item == 1 {
        (TILE_WORK / (m * n * k.max(1)) as f64) as usize
    } else {
        1
    };
    exec.tiles(batch * per_item, grain, |range| {
        for i in range {
            let product = product(i / per_item);
            let (rows, cols) = grid.ranges(i % per_item, m, n);
            // SAFETY: the caller's contract; `i` names each tile once.
            unsafe { run_tile(exec, &product, rows, cols) };
        }
    })?;
    // A tile that saw the cancel flag stopped early and could not report it.
    exec.check()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_where_threads_would_wait() {
        let check = |threads, others, rows, want| {
            let most = 4 * threads;
            let parts = row_parts(threads, others, most, (rows, MR), 16.0);
            assert_eq!(
                parts, want,
                "{threads} threads, {others} tiles, {rows} rows"
            );
        };
        // One thread, or as many tiles as threads: each panel is prepared once.
        check(1, 1, 512, 1);
        check(2, 2, 512, 1);
        check(2, 4, 64, 1);
        // A thread that has nothing to do takes half of the rows, not an eighth.
        check(2, 1, 512, 2);
        check(3, 4, 256, 3);
        check(2, 3, 256, 2);
        // Few rows: to prepare a panel takes longer than to wait.
        check(2, 3, 8, 1);
    }
}
