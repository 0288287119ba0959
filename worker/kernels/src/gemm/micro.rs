//! The micro kernel: one tile of at most 8 × 48 outputs, accumulated in registers.
//!
//! Invariant: every output is the chain `acc = fma(a[k], b[k], acc)` for k ascending, continued from the value stored
//! in C when `first` is false. Lanes are never combined, so every split of a tile gives the same bits. Every NaN is
//! stored as the canonical one.

use crate::isa::{Simd, per_isa};

/// Rows of a packed panel of A, and the most rows of a tile.
pub(crate) const MR: usize = 8;
/// Columns of a packed panel of B, and the most columns of a tile.
pub(crate) const NR: usize = 48;
/// Packed panels of B are padded to a multiple of this many columns: the widest vector.
pub(crate) const LANE_PAD: usize = 16;

/// A piece of B: rows `k0..k0 + k`, columns `n0..n0 + cols`, at most 48.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub k0: usize,
    pub k: usize,
    pub n0: usize,
    pub cols: usize,
}

/// The operations on finished sums while they are still in registers, in this order; null or `None` skips an operation.
#[derive(Clone, Copy)]
pub(crate) struct RegEpilogue {
    /// One value per row of the tile, to be added.
    pub row: *const f32,
    /// One value per column of the tile, to be added.
    pub col: *const f32,
    /// A matrix that is added to the tile, with its row stride.
    pub full: *const f32,
    pub full_stride: usize,
    pub at_least: Option<f32>,
    pub at_most: Option<f32>,
}

impl RegEpilogue {
    pub(crate) const NONE: RegEpilogue = RegEpilogue {
        row: std::ptr::null(),
        col: std::ptr::null(),
        full: std::ptr::null(),
        full_stride: 0,
        at_least: None,
        at_most: None,
    };
}

/// Operands of one tile.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    /// Length of the chain to add; may be 0.
    pub k: usize,
    pub a: *const f32,
    pub a_row: usize,
    pub a_k: usize,
    pub b: *const f32,
    pub b_k: usize,
    pub c: *mut f32,
    pub c_row: usize,
    /// Number of rows, 1..=8.
    pub rows: usize,
    /// Number of columns, 1..=48.
    pub cols: usize,
    /// Whether the chain starts from zero instead of from C.
    pub first: bool,
    /// Packed A of the next tile, which is prefetched, 8 values for each k. Any other address is harmless.
    pub next_a: *const f32,
    /// The operations after the chain, which must be [`RegEpilogue::NONE`] unless the chain is complete.
    pub epilogue: RegEpilogue,
}

per_isa! {
    /// Computes one tile.
    ///
    /// # Safety
    /// `isa` is available. `a[r * a_row + i * a_k]` for `r < rows, i < k`, and `b[i * b_k + j]` for
    /// `j` below `cols` rounded up to 16, are readable; `c[r * c_row + j]` for `j < cols` is writable
    /// by this thread alone; non-null epilogue pointers cover the tile.
    pub(crate) unsafe fn micro_tile(tile: &Tile) => tile_body
}

/// Writes the body out once for each value of `$i` below `$n`, which is at most 8. The optimiser does not always unroll
/// a loop before it decides which values live in registers. The conditions are constants, so that bodies beyond `$n` do
/// not even reach the optimiser.
macro_rules! unroll {
    ($i:ident < $n:expr, $body:block) => {
        unroll!(@ $i $n, $body, 0 1 2 3 4 5 6 7)
    };
    (@ $i:ident $n:expr, $body:block, $($value:literal)*) => {
        $(
            #[allow(clippy::absurd_extreme_comparisons)]
            if const { $value < $n } {
                const $i: usize = $value;
                $body
            }
        )*
    };
}
pub(crate) use unroll;

/// Cuts the tile into pieces that fit the registers of `S`.
#[inline(always)]
unsafe fn tile_body<S: Simd>(t: &Tile) {
    let step = 3 * S::LANES;
    let mut j = 0;
    while j < t.cols {
        let cols = (t.cols - j).min(step);
        let mut r = 0;
        while r < t.rows {
            let rows = (t.rows - r).min(S::ROWS);
            let e = &t.epilogue;
            let at = |p: *const f32, n: usize| if p.is_null() { p } else { p.wrapping_add(n) };
            // SAFETY: (r, j) lies inside the tile, so every shifted pointer stays in its operand.
            unsafe {
                let piece = Tile {
                    a: t.a.add(r * t.a_row),
                    b: t.b.add(j),
                    c: t.c.add(r * t.c_row + j),
                    rows,
                    cols,
                    epilogue: RegEpilogue {
                        row: at(e.row, r),
                        col: at(e.col, j),
                        full: at(e.full, r * e.full_stride + j),
                        ..*e
                    },
                    ..*t
                };
                piece_body::<S>(&piece);
            }
            r += rows;
        }
        j += cols;
    }
}

#[inline(always)]
unsafe fn piece_body<S: Simd>(t: &Tile) {
    macro_rules! pick {
        ($($rows:literal)*) => {
            match (t.rows, t.cols.div_ceil(S::LANES)) {
                $(
                    ($rows, 1) if const { $rows <= S::ROWS } => kernel::<S, $rows, 1>(t),
                    ($rows, 2) if const { $rows <= S::ROWS } => kernel::<S, $rows, 2>(t),
                    ($rows, 3) if const { $rows <= S::ROWS } => kernel::<S, $rows, 3>(t),
                )*
                _ => unreachable!("a piece has at most {} rows and 3 vectors", S::ROWS),
            }
        };
    }
    // SAFETY: the caller keeps the same contract.
    unsafe { pick!(8 4 1 2 3 5 6 7) }
}

#[inline(always)]
unsafe fn kernel<S: Simd, const R: usize, const V: usize>(t: &Tile) {
    // SAFETY: the caller's contract covers every address: rows below R = t.rows, vectors below V of
    // which only the last is partial in C, and B readable up to whole vectors.
    unsafe {
        let tail = t.cols - (V - 1) * S::LANES;
        let mut acc = [[S::splat(0.0); V]; R];
        if !t.first {
            unroll!(I < R, {
                unroll!(J < V, {
                    let p = t.c.add(I * t.c_row + J * S::LANES);
                    acc[I][J] = load_cols::<S>(p, J + 1 == V, tail);
                });
            });
        }
        let mut rows = [t.a; R];
        unroll!(I < R, {
            rows[I] = t.a.add(I * t.a_row);
        });
        let (mut b, mut i) = (t.b, 0);
        macro_rules! step {
            ($b:expr, $i:expr) => {
                let (b, i) = ($b, $i);
                let mut bv = [S::splat(0.0); V];
                unroll!(J < V, {
                    bv[J] = S::load(b.add(J * S::LANES));
                });
                unroll!(I < R, {
                    let av = S::splat(*rows[I].add(i));
                    unroll!(J < V, {
                        acc[I][J] = S::fma(av, bv[J], acc[I][J]);
                    });
                });
            };
        }
        let mut ahead = t.next_a;
        for _ in 0..t.k / 2 {
            S::prefetch(ahead);
            step!(b, i);
            step!(b.add(t.b_k), i + t.a_k);
            ahead = ahead.wrapping_add(2 * MR);
            b = b.wrapping_add(2 * t.b_k);
            i += 2 * t.a_k;
        }
        if t.k % 2 == 1 {
            step!(b, i);
        }
        let e = &t.epilogue;
        unroll!(I < R, {
            unroll!(J < V, {
                let last = J + 1 == V;
                let mut x = acc[I][J];
                if !e.row.is_null() {
                    x = S::add(x, S::splat(*e.row.add(I)));
                }
                if !e.col.is_null() {
                    x = S::add(x, load_cols::<S>(e.col.add(J * S::LANES), last, tail));
                }
                if !e.full.is_null() {
                    let p = e.full.add(I * e.full_stride + J * S::LANES);
                    x = S::add(x, load_cols::<S>(p, last, tail));
                }
                x = S::canonical_nan(x);
                if let Some(lo) = e.at_least {
                    x = S::at_least(S::splat(lo), x);
                }
                if let Some(hi) = e.at_most {
                    x = S::at_most(S::splat(hi), x);
                }
                let p = t.c.add(I * t.c_row + J * S::LANES);
                if last && tail < S::LANES {
                    S::store_masked(p, x, S::mask(0, tail));
                } else {
                    S::store(p, x);
                }
            });
        });
    }
}

#[inline(always)]
unsafe fn load_cols<S: Simd>(p: *const f32, last: bool, tail: usize) -> S::V {
    // SAFETY: the caller keeps the same contract.
    unsafe {
        if last && tail < S::LANES {
            S::load_masked(p, S::mask(0, tail))
        } else {
            S::load(p)
        }
    }
}
