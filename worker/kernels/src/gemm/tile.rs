//! One tile of a product on one thread: blocks of K, panels of B, strips of A.
//!
//! Invariant: C holds the sums of earlier blocks of K as f32, so cutting K into blocks changes no bit.

use super::columns::{NARROW, NarrowTile, PANELS, narrow_tile};
use super::epilogue::{OutputTile, finish_tile};
use super::micro::{MR, NR, Piece, RegEpilogue, Tile, micro_tile};
use super::pack::Elements;
use super::panel::{BSource, pack_block, widen};
use super::product::{ASource, Product};
use super::scratch::{SCRATCH_LEN, with_scratch};
use super::vector::columns_of_row;
use crate::Exec;
use std::ops::Range;

/// Longest block of K, found by measurement: a panel of B of this height streams from the level-2 cache.
const KC: usize = 320;

/// Most rows of a tile: with [`KC`], they make the block of A that a level-2 cache keeps (640 KiB).
pub(super) const MAX_TILE_ROWS: usize = 512;

const _: () = assert!(KC * (NR + MAX_TILE_ROWS) <= SCRATCH_LEN);

/// From this many panels of B on, packing an A with an unfavourable layout pays for itself.
const PACK_A_PANELS: usize = 4;

/// Rows whose stride is a multiple of this many values collide in cache sets and pages.
const COLLISION: usize = 512;

/// # Safety
/// The contract of [`super::driver::run`] holds, and no other thread has this tile.
pub(super) unsafe fn run_tile(
    exec: Exec<'_>,
    p: &Product<'_>,
    rows: Range<usize>,
    cols: Range<usize>,
) {
    if let (1, BSource::Packed(b), ASource::Strided { data, row, col: 1 }) = (rows.len(), p.b, p.a)
    {
        let at = data.wrapping_add(rows.start * row);
        // SAFETY: the caller's contract: the row lies inside A, and its outputs inside C.
        let (x, y) = unsafe {
            let y = p.c.add(rows.start * p.n + cols.start);
            (
                std::slice::from_raw_parts(at, p.k),
                std::slice::from_raw_parts_mut(y, cols.len()),
            )
        };
        columns_of_row(p.isa, &exec, x, b, cols.start, y, |col, y| {
            if !p.post.is_none() {
                let (row, cols) = (rows.start, y.len());
                let (c, c_row) = (y.as_mut_ptr(), p.n);
                let tile = OutputTile {
                    c,
                    c_row,
                    row,
                    col,
                    rows: 1,
                    cols,
                };
                // SAFETY: the caller's contract: the epilogue's operands cover the tile.
                unsafe { finish_tile(p.isa, &p.post.all_in_pass(), tile) };
            }
        });
        return;
    }
    let blocks = p.k.div_ceil(KC).max(1);
    let kc = p.k.div_ceil(blocks);
    let pack_a = match p.a {
        ASource::Packed(Elements::F32(_)) => false,
        ASource::Packed(_) => true,
        ASource::Strided { row, col, .. } => {
            let badly_laid = col != 1 || row.is_multiple_of(COLLISION);
            let sized = MR < rows.len() && rows.len() <= MAX_TILE_ROWS;
            badly_laid && sized && cols.len() >= PACK_A_PANELS * NR
        }
    };
    let block_a = if pack_a { rows.len() * kc } else { 0 };
    with_scratch(kc * NR + block_a, |scratch| {
        let (panel, block_a) = scratch.split_at_mut(kc * NR);
        for block in 0..blocks {
            let k0 = block * kc;
            let k = kc.min(p.k - k0);
            let a = match p.a {
                ASource::Packed(Elements::F32(data)) => ABlock::Panels {
                    data: data.as_ptr(),
                    from: 0,
                    k: p.k,
                    k0,
                },
                ASource::Packed(data) => {
                    for row in rows.clone().step_by(MR) {
                        let height = (rows.end - row).min(MR);
                        let dst = block_a[(row - rows.start) * k..].as_mut_ptr();
                        // SAFETY: rows of a panel of A, which lie one after the other, and their copy in the scratch.
                        unsafe { widen(p.isa, dst, data, row * p.k + k0 * height, k * height) };
                    }
                    ABlock::Panels {
                        data: block_a.as_ptr(),
                        from: rows.start,
                        k,
                        k0: 0,
                    }
                }
                ASource::Strided { data, row, col } => {
                    let src = data.wrapping_add(rows.start * row + k0 * col);
                    if pack_a {
                        let dst = block_a.as_mut_ptr();
                        // SAFETY: the block lies inside [p.m, p.k], and its copy in the scratch.
                        unsafe { pack_block(p.isa, dst, src, row, col, rows.len(), k) };
                        ABlock::Panels {
                            data: dst,
                            from: rows.start,
                            k,
                            k0: 0,
                        }
                    } else {
                        ABlock::Strided {
                            data: src,
                            from: rows.start,
                            row,
                            col,
                        }
                    }
                }
            };
            for n0 in cols.clone().step_by(NR) {
                if exec.check().is_err() {
                    return;
                }
                let piece = Piece {
                    k0,
                    k,
                    n0,
                    cols: (cols.end - n0).min(NR),
                };
                // SAFETY: the piece lies inside [p.k, p.n], the strips inside [p.m, p.n].
                unsafe {
                    let (b, b_k) = p.b.panel(p.isa, piece, (p.k, p.n), rows.len(), panel);
                    let at = At {
                        a,
                        piece,
                        b,
                        b_k,
                        first: block == 0,
                        last: block + 1 == blocks,
                    };
                    run_panel(p, &at, rows.clone());
                }
            }
        }
    });
}

/// The rows of A for one tile, within one block of K.
#[derive(Clone, Copy)]
enum ABlock {
    /// Row `from` begins at `data`.
    Strided {
        data: *const f32,
        from: usize,
        row: usize,
        col: usize,
    },
    /// Panels of length `k`, in which the block begins at `k0`; row `from` begins at `data`.
    Panels {
        data: *const f32,
        from: usize,
        k: usize,
        k0: usize,
    },
}

/// One panel of B with the rows of A, and its position in the chain.
#[derive(Clone, Copy)]
struct At {
    a: ABlock,
    piece: Piece,
    b: *const f32,
    b_k: usize,
    first: bool,
    last: bool,
}

/// # Safety
/// The contract of [`run_tile`] holds, and the panel holds the piece.
unsafe fn run_panel(p: &Product<'_>, at: &At, rows: Range<usize>) {
    let mut row = rows.start;
    while row < rows.end {
        let height = (rows.end - row).min(MR);
        // SAFETY: the caller keeps the same contract.
        row += unsafe {
            match at.a {
                ABlock::Panels { data, from, k, k0 } if at.piece.cols <= NARROW && height == MR => {
                    let a = data.wrapping_add((row - from) * k + k0 * MR);
                    narrow_strip(p, at, (a, k * MR), row, ((rows.end - row) / MR).min(PANELS))
                }
                _ => strip(p, at, row, height),
            }
        };
    }
}

/// Multiplies whole packed panels of A, `step` apart, with a few columns. Returns the number of rows that are done.
///
/// # Safety
/// The contract of [`run_panel`] holds for `panels` whole panels from `row` on.
unsafe fn narrow_strip(
    p: &Product<'_>,
    at: &At,
    (a, step): (*const f32, usize),
    row: usize,
    panels: usize,
) -> usize {
    let Piece { k, n0, cols, .. } = at.piece;
    let rows = panels * MR;
    // SAFETY: the caller's contract.
    unsafe {
        let c = p.c.add(row * p.n + n0);
        narrow_tile(
            p.isa,
            &NarrowTile {
                k,
                a,
                a_panel: step,
                panels,
                b: at.b,
                b_k: at.b_k,
                c,
                c_row: p.n,
                cols,
                first: at.first,
            },
        );
        if at.last && !p.post.is_none() {
            let tile = OutputTile {
                c,
                c_row: p.n,
                row,
                col: n0,
                rows,
                cols,
            };
            finish_tile(p.isa, &p.post.all_in_pass(), tile);
        }
    }
    rows
}

/// Calls the micro kernel once, and the epilogue where the chain is complete. Returns the number of rows that are done.
///
/// # Safety
/// The contract of [`run_panel`] holds for the `rows` from `row` on.
#[inline(always)]
unsafe fn strip(p: &Product<'_>, at: &At, row: usize, rows: usize) -> usize {
    let Piece { k, n0, cols, .. } = at.piece;
    let (a, a_row, a_k, next_a) = match at.a {
        ABlock::Strided {
            data,
            from,
            row: r,
            col,
        } => {
            let a = data.wrapping_add((row - from) * r);
            (a, r, col, a)
        }
        ABlock::Panels { data, from, k, k0 } => {
            let a = data.wrapping_add((row - from) * k + k0 * rows);
            (a, 1, rows, a.wrapping_add(MR * k))
        }
    };
    let epilogue = if at.last {
        p.post.in_regs(row, n0, p.n)
    } else {
        RegEpilogue::NONE
    };
    // SAFETY: the caller's contract; the panel is readable to 16 whole columns.
    unsafe {
        let c = p.c.add(row * p.n + n0);
        micro_tile(
            p.isa,
            &Tile {
                k,
                a,
                a_row,
                a_k,
                b: at.b,
                b_k: at.b_k,
                c,
                c_row: p.n,
                rows,
                cols,
                first: at.first,
                next_a,
                epilogue,
            },
        );
        if at.last && p.post.needs_pass() {
            finish_tile(
                p.isa,
                &p.post,
                OutputTile {
                    c,
                    c_row: p.n,
                    row,
                    col: n0,
                    rows,
                    cols,
                },
            );
        }
    }
    rows
}
