//! Pooling with contiguous taps.
//!
//! Each row of the input is widened for a chunk of outputs, padded with the identity, and divided into phases: phase p
//! has the columns p, p + stride, p + 2 * stride, … of the padded row. A tap of all outputs is then a run of one phase:
//!
//! ```text
//! row       . a b c d e f .      stride 2, padding 1
//! phase 0   . b d f              taps 0 and 2 of four outputs begin here, and one further on
//! phase 1   a c e .              tap 1 of four outputs
//! ```

use super::rows::{COLUMNS, Chunk, LANES, Pool};
use super::window::Window;
use crate::element::Number;
use crate::split::{Finished, Pace};
use std::ops::Range;

/// The largest stride.
const PHASES: usize = 4;
/// Elements of a phase: one for each output, and as many as a window may reach.
const PHASE: usize = 2 * COLUMNS;
/// Elements of all phases of some rows: 16 KiB of f32. They are read long after they were written, since loads that
/// straddle recent stores wait for these.
const ROOM: usize = 1 << 12;
/// The most taps of a window in one plane.
const TAPS: usize = 64;
/// The most rows of outputs whose chains advance together.
const GROUP: usize = 8;

/// How far the taps of an output reach along dimension `d`.
#[inline(always)]
fn reach(w: &Window, d: usize) -> usize {
    (w.kernel[d] - 1) * w.dilations[d]
}

/// How many rows have room for their phases.
#[inline(always)]
fn rows(w: &Window) -> usize {
    ROOM / (w.strides[2] * PHASE)
}

/// Whether a window is small enough for phases.
#[inline(always)]
pub(super) fn fits_lines(w: &Window) -> bool {
    w.strides[2] <= PHASES
        && reach(w, 2) / w.strides[2] <= PHASE - COLUMNS
        && reach(w, 1) < rows(w)
        && w.kernel[1].saturating_mul(w.kernel[2]) <= TAPS
}

/// The columns of the input that a chunk reads, and the phase and the place in it of the first one.
#[derive(Default)]
struct Columns {
    from: usize,
    to: usize,
    phase: usize,
    place: usize,
}

impl Columns {
    #[inline(always)]
    fn new(w: &Window, chunk: &Chunk) -> Columns {
        let (stride, pad) = (w.strides[2], w.pads[2]);
        // Places in the padded row.
        let start = chunk.columns.start * stride;
        let end = (chunk.columns.end - 1) * stride + reach(w, 2) + 1;
        let (from, to) = (start.max(pad), end.min(pad + w.input[2]));
        if from >= to {
            return Columns::default();
        }
        Columns {
            from: from - pad,
            to: to - pad,
            phase: (from - start) % stride,
            place: (from - start) / stride,
        }
    }

    /// Divides the columns of a row into phases, which lie one after the other.
    #[inline(always)]
    fn divide<T: Number>(&self, stride: usize, row: &[T], phases: &mut [T::Wide]) {
        let x = &row[self.from..self.to];
        match stride {
            1 => {
                let to = &mut phases[self.place..self.place + x.len()];
                for i in 0..x.len() {
                    to[i] = x[i].widen();
                }
            }
            2 => {
                let (even, odd) = phases.split_at_mut(PHASE);
                let (first, second) = match self.phase {
                    0 => (&mut even[self.place..], &mut odd[self.place..]),
                    _ => (&mut odd[self.place..], &mut even[self.place + 1..]),
                };
                let (pairs, rest) = x.as_chunks::<2>();
                if let [last] = rest {
                    first[pairs.len()] = last.widen();
                }
                divide_pairs(pairs, &mut first[..pairs.len()], &mut second[..pairs.len()]);
            }
            _ => {
                for offset in 0..stride {
                    let at = self.phase + offset;
                    let (phase, place) = (at % stride, self.place + at / stride);
                    let n = x.len().saturating_sub(offset).div_ceil(stride);
                    let to = &mut phases[phase * PHASE + place..][..n];
                    for i in 0..n {
                        to[i] = x[offset + i * stride].widen();
                    }
                }
            }
        }
    }
}

/// The phases of some rows of the input. The planes of a tile use the same, since to pad them anew takes as long as to pool
/// a small plane.
pub(super) struct Lines<W> {
    all: [W; ROOM],
    /// The first output of the chunks for whose rows the padding is in place.
    chunk: Option<usize>,
}

impl<W: Copy> Lines<W> {
    #[inline(always)]
    pub fn new(identity: W) -> Lines<W> {
        Lines {
            all: [identity; ROOM],
            chunk: None,
        }
    }

    /// The room for rows under the chunk that begins with output `first`, with the identity wherever its rows have no
    /// columns.
    #[inline(always)]
    fn padded_for(&mut self, first: usize, identity: W) -> &mut [W; ROOM] {
        if self.chunk.is_some_and(|chunk| chunk != first) {
            self.all.fill(identity);
        }
        self.chunk = Some(first);
        &mut self.all
    }
}

/// Writes the first elements of pairs to `first`, and the second ones to `second`.
#[inline(always)]
fn divide_pairs<T: Number>(pairs: &[[T; 2]], first: &mut [T::Wide], second: &mut [T::Wide]) {
    let n = pairs.len();
    // What whole vectors leave is written by a vector that ends with the pairs, and overlaps those before it.
    let whole = n - n % LANES;
    let mut ranges = [0..whole, n.saturating_sub(LANES)..n];
    if n < LANES {
        ranges = [0..n, 0..0];
    } else if whole == n {
        ranges[1] = 0..0;
    }
    for range in ranges {
        let pairs = &pairs[range.clone()];
        let (first, second) = (&mut first[range.clone()], &mut second[range]);
        for i in 0..pairs.len() {
            first[i] = pairs[i][0].widen();
            second[i] = pairs[i][1].widen();
        }
    }
}

/// Pools some rows of a plane's outputs, which are `part` of all of them.
#[inline(always)]
pub(super) fn plane_by_lines<T: Number, P: Pool<T>>(
    pool: P,
    w: &Window,
    pace: &mut Pace,
    part: Range<usize>,
    room: &mut Lines<T::Wide>,
    x: &[T],
    y: &mut [T],
) -> Finished {
    let ([_, height, width], [_, down, stride]) = (w.input, w.strides);
    let (size, offsets) = (stride * PHASE, Offsets::new(w));
    let group = ((rows(w) - reach(w, 1) - 1) / down + 1).min(GROUP);
    let mut all = [[pool.identity(); COLUMNS]; GROUP];
    let mut first = 0;
    while first < w.output[2] {
        let chunk = Chunk::new(w, first, COLUMNS);
        let columns = Columns::new(w, &chunk);
        let padded = chunk.columns.len().next_multiple_of(LANES);
        let row_taps = padded * w.kernel[1] * w.kernel[2];
        let lines = room.padded_for(first, pool.identity());
        for od in part.start / w.output[1]..part.end.div_ceil(w.output[1]) {
            let depth_taps = w.taps(0, od);
            // The rows of the part that are of this depth.
            let before = od * w.output[1];
            let end = w.output[1].min(part.end - before);
            let mut from = part.start.saturating_sub(before);
            while from < end {
                let to = end.min(from + group);
                pace.count((to - from) * padded)?;
                // The rows under all windows of the group.
                let top = (from * down).saturating_sub(w.pads[1]);
                let bottom = ((to - 1) * down + reach(w, 1) + 1).saturating_sub(w.pads[1]);
                for acc in &mut all[..to - from] {
                    acc[..padded].fill(pool.identity());
                }
                for kd in depth_taps.kernel.0..depth_taps.kernel.1 {
                    pace.count((to - from) * row_taps)?;
                    let plane = w.position(0, od, kd) * height;
                    for h in top..bottom.min(height) {
                        let row = &x[(plane + h) * width..][..width];
                        columns.divide(stride, row, &mut lines[(h - top) * size..][..size]);
                    }
                    let mut oh = from;
                    while oh < to {
                        let taps = w.taps(1, oh);
                        if taps.count() == 0 {
                            oh += 1;
                            continue;
                        }
                        // Rows under whose windows all taps lie in the input advance together.
                        let mut end = oh + 1;
                        if taps.count() == w.kernel[1] {
                            while end < to && w.taps(1, end).count() == w.kernel[1] {
                                end += 1;
                            }
                        }
                        // The first of the rows that exist is inside of `lines`.
                        let row = w.position(1, oh, taps.kernel.0) - top;
                        let first = (row * size).wrapping_sub(taps.kernel.0 * offsets.row);
                        let range = taps.kernel.0 * w.kernel[2]..taps.kernel.1 * w.kernel[2];
                        let rows = &mut all[oh - from..end - from];
                        let places = Places {
                            first,
                            step: down * size,
                            len: padded,
                        };
                        push_taps(pool, lines, places, &offsets.all[range], rows);
                        oh = end;
                    }
                }
                for oh in from..to {
                    let counts = if P::COUNTS {
                        let taps = w.taps(1, oh);
                        let padded = depth_taps.padded.saturating_mul(taps.padded);
                        (depth_taps.count() * taps.count(), padded)
                    } else {
                        (0, 0)
                    };
                    let y = &mut y[(before + oh - part.start) * w.output[2]..][..w.output[2]];
                    chunk.finish(pool, w, &all[oh - from], counts, y);
                }
                from = to;
            }
        }
        first = chunk.columns.end;
    }
    Ok(())
}

/// Where the taps of an output are, from the first one on.
struct Offsets {
    all: [usize; TAPS],
    /// How far the rows under a window are apart.
    row: usize,
}

impl Offsets {
    #[inline(always)]
    fn new(w: &Window) -> Offsets {
        let row = w.dilations[1] * w.strides[2] * PHASE;
        let mut all = [0; TAPS];
        for kh in 0..w.kernel[1] {
            for kw in 0..w.kernel[2] {
                let at = kw * w.dilations[2];
                all[kh * w.kernel[2] + kw] =
                    kh * row + at % w.strides[2] * PHASE + at / w.strides[2];
            }
        }
        Offsets { all, row }
    }
}

/// Where the taps of some rows of outputs are.
#[derive(Clone, Copy)]
struct Places {
    /// What the offsets of the taps of the first row count from.
    first: usize,
    /// How far the taps of a row are from those of the next one; a multiple of [`LANES`].
    step: usize,
    /// Outputs of a row; a multiple of [`LANES`].
    len: usize,
}

/// Adds taps to rows of outputs, several at a time, so that chains stay in registers for as long.
#[inline(always)]
fn push_taps<T: Number, P: Pool<T>>(
    pool: P,
    lines: &[T::Wide],
    places: Places,
    offsets: &[usize],
    rows: &mut [[T::Wide; COLUMNS]],
) {
    let mut rest = offsets;
    while let Some((taps, more)) = rest.split_first_chunk::<9>() {
        push::<T, P, 9>(pool, lines, places, taps, rows);
        rest = more;
    }
    if let Some((taps, more)) = rest.split_first_chunk::<4>() {
        push::<T, P, 4>(pool, lines, places, taps, rows);
        rest = more;
    }
    if let Some((taps, more)) = rest.split_first_chunk::<4>() {
        push::<T, P, 4>(pool, lines, places, taps, rows);
        rest = more;
    }
    match *rest {
        [a, b, c] => push::<T, P, 3>(pool, lines, places, &[a, b, c], rows),
        [a, b] => push::<T, P, 2>(pool, lines, places, &[a, b], rows),
        [a] => push::<T, P, 1>(pool, lines, places, &[a], rows),
        _ => {}
    }
}

#[inline(always)]
fn push<T: Number, P: Pool<T>, const N: usize>(
    pool: P,
    lines: &[T::Wide],
    places: Places,
    offsets: &[usize; N],
    rows: &mut [[T::Wide; COLUMNS]],
) {
    let blocks = ((rows.len() - 1) * places.step + places.len) / LANES;
    let mut taps: [&[[T::Wide; LANES]]; N] = [&[]; N];
    for t in 0..N {
        let taps_of_all = &lines[places.first.wrapping_add(offsets[t])..];
        taps[t] = &taps_of_all.as_chunks().0[..blocks];
    }
    for (r, row) in rows.iter_mut().enumerate() {
        let row = &mut row.as_chunks_mut::<LANES>().0[..places.len / LANES];
        for (b, acc) in row.iter_mut().enumerate() {
            let at = r * (places.step / LANES) + b;
            let mut chains = *acc;
            for t in 0..N {
                let taps = &taps[t][at];
                for i in 0..LANES {
                    chains[i] = pool.push(chains[i], taps[i]);
                }
            }
            *acc = chains;
        }
    }
}
