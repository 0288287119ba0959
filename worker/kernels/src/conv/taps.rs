//! The kernel of a convolution that reads its input from a copy with padding: tiles of at most 8 output channels by 48
//! places, accumulated in registers.
//!
//! Every output is the chain of the weights' order, as in [`crate::gemm`]'s micro kernel. The operand of a tap is the copy
//! from an offset on, so that nothing is unfolded.

use crate::gemm::{MR, NR, Post, RegEpilogue, unroll};
use crate::isa::{Simd, per_isa};
use std::ops::Range;

/// Consecutive places of a panel that are outputs.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Run {
    /// The first place in the panel.
    pub at: usize,
    pub len: usize,
    /// The first output in its plane.
    pub output: usize,
}

/// Operands of a panel: at most 48 places of some output channels.
#[derive(Clone, Copy)]
pub(super) struct TapPanel<'a> {
    /// Packed panels of weights, of which the first begins with the first of the output channels.
    pub weights: *const f32,
    /// The output channels, from a multiple of 8 on.
    pub rows: &'a Range<usize>,
    /// The copy, at the panel's first place.
    pub copy: *const f32,
    /// The offset in the copy of each tap of each channel, in the order of the weights.
    pub taps: &'a [u32],
    /// Number of places, 1..=48.
    pub places: usize,
    /// The plane of output channel 0, and the distance between planes.
    pub output: *mut f32,
    pub plane: usize,
    /// The outputs among the places, in ascending order.
    pub runs: &'a [Run],
    /// The operations after the chain, if they run in registers: bounds, and at most one value for each output channel.
    pub post: Option<&'a Post>,
}

per_isa! {
    /// Computes a panel.
    ///
    /// # Safety
    /// `isa` is available. The weights hold a column for each tap of each panel of 8 rows. Each tap has `places` values, rounded
    /// up to 16, from its offset on. The runs lie among the places, and their outputs are written by this thread alone.
    pub(super) unsafe fn tap_panel(panel: &TapPanel<'_>) => panel_body
}

/// Outputs in one vector of places.
#[derive(Clone, Copy)]
struct Store<M> {
    /// The output of the vector's first lane in its plane, which may lie before the plane.
    output: isize,
    /// The lanes that are outputs; `None` stands for all.
    lanes: Option<M>,
}

/// The parts of runs in a vector: one or two where lines are no shorter than vectors.
struct Stores<M> {
    all: [Store<M>; NR],
    count: usize,
}

/// The parts of the runs in the vector of places from `first` on.
///
/// # Safety
/// The instruction set of `S` is available.
#[inline(always)]
unsafe fn stores<S: Simd>(runs: &[Run], first: usize) -> Stores<S::Mask> {
    let none = Store {
        output: 0,
        lanes: None,
    };
    let (mut all, mut count) = ([none; NR], 0);
    for run in runs {
        let lo = run.at.max(first);
        let hi = (run.at + run.len).min(first + S::LANES);
        if lo < hi {
            // SAFETY: both are lanes, in order.
            let lanes = unsafe { S::mask(lo - first, hi - first) };
            all[count] = Store {
                output: (run.output + first) as isize - run.at as isize,
                lanes: (hi - lo < S::LANES).then_some(lanes),
            };
            count += 1;
        }
    }
    Stores { all, count }
}

/// Cuts the panel into tiles that fit the registers of `S`.
#[inline(always)]
unsafe fn panel_body<S: Simd>(p: &TapPanel<'_>) {
    macro_rules! pick {
        ($tile:expr, $stores:expr, $rows:expr, $vectors:expr, $($n:literal)*) => {
            match ($rows, $vectors) {
                $(
                    ($n, 1) if const { $n <= S::ROWS } => tile::<S, $n, 1>($tile, $stores),
                    ($n, 2) if const { $n <= S::ROWS } => tile::<S, $n, 2>($tile, $stores),
                    ($n, 3) if const { $n <= S::ROWS } => tile::<S, $n, 3>($tile, $stores),
                )*
                _ => unreachable!("a tile has at most {} rows and 3 vectors", S::ROWS),
            }
        };
    }
    for place in (0..p.places).step_by(3 * S::LANES) {
        let vectors = (p.places - place).div_ceil(S::LANES).min(3);
        // SAFETY: the caller's contract; every tile lies inside the panel.
        unsafe {
            let stores: [_; 3] = std::array::from_fn(|v| stores::<S>(p.runs, place + v * S::LANES));
            for row in (p.rows.start..p.rows.end).step_by(S::ROWS) {
                let panel = row / MR * MR;
                let height = (p.rows.end - panel).min(MR);
                let rows = (panel + height - row).min(S::ROWS);
                let a = p
                    .weights
                    .add((panel - p.rows.start) * p.taps.len())
                    .add(row - panel);
                let tile = Tile {
                    a,
                    a_step: height,
                    b: p.copy.add(place),
                    taps: p.taps,
                    c: p.output.add(row * p.plane),
                    plane: p.plane,
                    next_a: a.wrapping_add(MR * p.taps.len()),
                    epilogue: match p.post {
                        Some(post) => post.in_regs(row, 0, p.plane),
                        None => RegEpilogue::NONE,
                    },
                };
                pick!(&tile, &stores, rows, vectors, 8 4 1 2 3 5 6 7);
            }
        }
    }
}

/// Operands of a tile.
struct Tile<'a> {
    /// Weights: element (row, tap) at `tap * a_step + row`.
    a: *const f32,
    a_step: usize,
    b: *const f32,
    taps: &'a [u32],
    c: *mut f32,
    plane: usize,
    /// Weights of the next tile, which are prefetched. Any address is harmless.
    next_a: *const f32,
    epilogue: RegEpilogue,
}

/// # Safety
/// The contract of [`tap_panel`] holds for the tile's rows and places.
#[inline(always)]
unsafe fn tile<S: Simd, const R: usize, const V: usize>(t: &Tile<'_>, stores: &[Stores<S::Mask>]) {
    // SAFETY: the caller's contract covers every address.
    unsafe {
        // The outputs come into the cache while the chain runs.
        unroll!(J < V, {
            for store in &stores[J].all[..stores[J].count] {
                unroll!(I < R, {
                    S::prefetch(t.c.wrapping_add(I * t.plane).wrapping_offset(store.output));
                });
            }
        });
        let mut acc = [[S::splat(0.0); V]; R];
        let (mut a, mut ahead) = (t.a, t.next_a);
        for tap in t.taps {
            let b = t.b.add(*tap as usize);
            let mut bv = [S::splat(0.0); V];
            unroll!(J < V, {
                bv[J] = S::load(b.add(J * S::LANES));
            });
            S::prefetch(ahead);
            unroll!(I < R, {
                let av = S::splat(*a.add(I));
                unroll!(J < V, {
                    acc[I][J] = S::fma(av, bv[J], acc[I][J]);
                });
            });
            a = a.wrapping_add(t.a_step);
            ahead = ahead.wrapping_add(MR);
        }
        let e = &t.epilogue;
        unroll!(J < V, {
            let mut sums = [S::splat(0.0); R];
            unroll!(I < R, {
                let mut x = acc[I][J];
                if !e.row.is_null() {
                    x = S::add(x, S::splat(*e.row.add(I)));
                }
                x = S::canonical_nan(x);
                if let Some(lo) = e.at_least {
                    x = S::at_least(S::splat(lo), x);
                }
                if let Some(hi) = e.at_most {
                    x = S::at_most(S::splat(hi), x);
                }
                sums[I] = x;
            });
            for store in &stores[J].all[..stores[J].count] {
                let c = t.c.wrapping_offset(store.output);
                match store.lanes {
                    None => {
                        unroll!(I < R, {
                            S::store(c.wrapping_add(I * t.plane), sums[I]);
                        });
                    }
                    Some(lanes) => {
                        unroll!(I < R, {
                            S::store_masked(c.wrapping_add(I * t.plane), sums[I], lanes);
                        });
                    }
                }
            }
        });
    }
}
