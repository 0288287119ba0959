//! `DeformConv`: a convolution whose filter elements each read X at a place of their own.
//!
//! ```text
//! X, offsets, mask ── sampled columns, for as many outputs as the scratch holds ── W · columns ── + bias ── Y
//! ```
//!
//! In a plane, which elements a filter element reads and their weights are found once for all channels that share offsets.

use crate::Exec;
use crate::compiled::compiled;
use crate::error::Result;
use crate::gemm::{Batch, ChainElement, Epilogue, Lhs, Rhs, Strided, gemm_batched, gemm_generic};
use crate::math::Real;
use crate::multiversion::multiversion;
use crate::split::{tiles, units_per_tile};
use std::ops::Range;

/// The most elements of columns that are kept at a time, where one output does not need more.
const COLUMNS: usize = 1 << 20;

/// Places that are sampled at a time, between two checks of the cancel flag.
const PLACES: usize = 128;

/// The fewest channels of a tile, if there are as many: they share what is found of their places.
const CHANNELS: usize = 16;

/// The sizes and attributes of a call. X is `[batch, channels, spatial..]`. Where there are fewer than three spatial axes, those
/// in front have the length 1, no padding, and steps of 1.
#[derive(Debug, Clone, Copy)]
pub struct Deform {
    /// Images.
    pub batch: usize,
    /// Channels of X.
    pub channels: usize,
    /// Channels of the output.
    pub filters: usize,
    /// Groups of channels that are convolved separately.
    pub groups: usize,
    /// Groups of channels with offsets of their own.
    pub offset_groups: usize,
    /// How many spatial axes there are: one to three, each with offsets.
    pub axes: usize,
    /// The spatial axes of X.
    pub map: [usize; 3],
    /// The spatial axes of a filter.
    pub kernel: [usize; 3],
    /// The spatial axes of the output.
    pub output: [usize; 3],
    /// Steps of the filter.
    pub strides: [usize; 3],
    /// Steps inside the filter.
    pub dilations: [usize; 3],
    /// Padding before each spatial axis.
    pub pads: [i64; 3],
}

impl Deform {
    fn depth(&self) -> usize {
        self.channels / self.groups * self.taps()
    }

    /// Elements of a filter of one channel.
    fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    fn places(&self) -> usize {
        self.output.iter().product()
    }

    /// Elements of a channel of X.
    fn plane(&self) -> usize {
        self.map.iter().product()
    }

    /// How many outputs are computed at once.
    fn chunk(&self) -> usize {
        let per_output = self.depth().max(self.filters / self.groups).max(1);
        (COLUMNS / per_output).clamp(1, self.places().max(1))
    }

    /// Elements of scratch: for columns, and for their products.
    pub fn scratch(&self) -> (usize, usize) {
        let chunk = self.chunk();
        (chunk * self.depth(), chunk * (self.filters / self.groups))
    }
}

/// The operands, beside X.
#[derive(Debug, Clone, Copy)]
pub struct DeformOperands<'a, W> {
    /// The filters, `[filters, channels / groups, kernel..]`.
    pub w: &'a [W],
    /// `[batch, offset groups · kernel · spatial axes, output..]`.
    pub offset: &'a [W],
    /// `[filters]`.
    pub bias: Option<&'a [W]>,
    /// `[batch, offset groups · kernel, output..]`.
    pub mask: Option<&'a [W]>,
}

/// A type that is convolved.
pub trait DeformElement: Real + ChainElement {
    /// `c = w · columns`.
    fn product(
        exec: Exec<'_>,
        sizes: (usize, usize, usize),
        w: &[Self],
        columns: &[Self],
        c: &mut [Self],
    ) -> Result;
}

impl DeformElement for f32 {
    fn product(
        exec: Exec<'_>,
        (m, n, k): (usize, usize, usize),
        w: &[f32],
        columns: &[f32],
        c: &mut [f32],
    ) -> Result {
        let (a, b) = (Strided::row_major(w, k), Strided::row_major(columns, n));
        let (a, b) = (Lhs::Strided(a), Rhs::Strided(b));
        Ok(gemm_batched(
            exec,
            &Batch::ONE,
            (m, n, k),
            a,
            b,
            c,
            &Epilogue::NONE,
        )?)
    }
}

impl DeformElement for f64 {
    fn product(
        exec: Exec<'_>,
        (m, n, k): (usize, usize, usize),
        w: &[f64],
        columns: &[f64],
        c: &mut [f64],
    ) -> Result {
        let (a, b) = (Strided::row_major(w, k), Strided::row_major(columns, n));
        Ok(gemm_generic(exec, &Batch::ONE, (m, n, k), a, b, c)?)
    }
}

fn deform_any<W: DeformElement>(
    exec: &Exec,
    s: &Deform,
    x: &[W],
    operands: &DeformOperands<'_, W>,
    (columns, products): (&mut [W], &mut [W]),
    y: &mut [W],
) -> Result {
    let (depth, places) = (s.depth(), s.places());
    let (filters, taps) = (s.filters / s.groups, s.taps());
    assert!((1..=3).contains(&s.axes), "{} spatial axes", s.axes);
    assert_eq!(x.len(), s.batch * s.channels * s.plane(), "X");
    assert_eq!(operands.w.len(), s.filters * depth, "W");
    assert_eq!(
        operands.offset.len(),
        s.batch * s.offset_groups * taps * s.axes * places,
        "offset"
    );
    assert_eq!(y.len(), s.batch * s.filters * places, "output");
    assert_eq!((columns.len(), products.len()), s.scratch(), "scratch");
    if let Some(mask) = operands.mask {
        assert_eq!(
            mask.len(),
            s.batch * s.offset_groups * taps * places,
            "mask"
        );
    }
    if let Some(bias) = operands.bias {
        assert_eq!(bias.len(), s.filters, "bias");
    }
    if y.is_empty() {
        return Ok(exec.check()?);
    }
    let chunk = s.chunk();
    for image in 0..s.batch {
        for group in 0..s.groups {
            let w = &operands.w[group * filters * depth..][..filters * depth];
            for first in (0..places).step_by(chunk) {
                let n = chunk.min(places - first);
                let columns = &mut columns[..depth * n];
                let grain = units_per_tile(n).max(CHANNELS * taps);
                tiles(exec, columns, n, grain, |rows, part| {
                    for start in (0..n).step_by(PLACES) {
                        if exec.check().is_err() {
                            return;
                        }
                        let block = start..n.min(start + PLACES);
                        sample_rows(
                            s,
                            x,
                            operands,
                            (image, group),
                            (first, n),
                            (rows.clone(), block),
                            part,
                        );
                    }
                })?;
                exec.check()?;
                let products = &mut products[..filters * n];
                W::product(*exec, (filters, n, depth), w, columns, products)?;
                for (f, row) in products.chunks_exact(n).enumerate() {
                    let filter = group * filters + f;
                    let at = (image * s.filters + filter) * places + first;
                    let bias = operands.bias.map(|b| b[filter]);
                    for (y, v) in y[at..][..n].iter_mut().zip(row) {
                        let v = bias.map_or(*v, |b| *v + b);
                        *y = if Real::is_nan(v) { W::NAN } else { v };
                    }
                }
            }
        }
    }
    Ok(exec.check()?)
}

/// The operands that one filter element reads for one channel.
#[derive(Clone, Copy)]
struct Line<'a, W> {
    x: &'a [W],
    /// The coordinates of the filter element.
    tap: [usize; 3],
    /// The number of the filter element among those of all groups of offsets of all images.
    of_tap: usize,
    /// The offsets along each axis and the mask have one element for each place. An axis that does not exist has none.
    offsets: [&'a [W]; 3],
    mask: Option<&'a [W]>,
}

impl<W: DeformElement> Line<'_, W> {
    /// Returns the coordinate along an axis at which the filter element reads for an output: its index along the axis
    /// and its number among all are given.
    #[inline(always)]
    fn at(&self, s: &Deform, axis: usize, (index, place): (usize, usize)) -> W {
        let base = base::<W>(s, axis, index, self.tap[axis]);
        match self.offsets[axis].get(place) {
            Some(offset) => base + *offset,
            None => base,
        }
    }
}

/// Returns the operands that row `row` of the columns is made of.
fn line<'a, W: DeformElement>(
    s: &Deform,
    x: &'a [W],
    operands: &DeformOperands<'a, W>,
    (image, group, row): (usize, usize, usize),
) -> Line<'a, W> {
    let taps = s.taps();
    let (channel, tap) = (group * (s.channels / s.groups) + row / taps, row % taps);
    let [_, height, width] = s.kernel;
    let x = &x[(image * s.channels + channel) * s.plane()..][..s.plane()];
    let offsets = channel / (s.channels / s.offset_groups);
    let of_tap = (image * s.offset_groups + offsets) * taps + tap;
    let all = s.places();
    let missing = 3 - s.axes;
    let along = |axis: usize| match axis.checked_sub(missing) {
        None => &[][..],
        Some(axis) => &operands.offset[(of_tap * s.axes + axis) * all..][..all],
    };
    Line {
        x,
        tap: [tap / (height * width), tap / width % height, tap % width],
        of_tap,
        offsets: [along(0), along(1), along(2)],
        mask: operands.mask.map(|mask| &mask[of_tap * all..][..all]),
    }
}

/// Returns the place at which a filter element reads along an axis without an offset.
#[inline(always)]
fn base<W: DeformElement>(s: &Deform, axis: usize, place: usize, tap: usize) -> W {
    let at = place as f64 * s.strides[axis] as f64 + tap as f64 * s.dilations[axis] as f64;
    W::from_f64(at - s.pads[axis] as f64)
}

/// Computes the places `block` of some rows of the columns, each of which has `n` places; the first is number `first` of the
/// output. `columns` begins with the first of the rows.
#[inline(always)]
fn sample_rows<W: DeformElement>(
    s: &Deform,
    x: &[W],
    operands: &DeformOperands<'_, W>,
    (image, group): (usize, usize),
    (first, n): (usize, usize),
    (rows, block): (Range<usize>, Range<usize>),
    columns: &mut [W],
) {
    let taps = s.taps();
    let mut reads = [Reads::<W>::NONE; PLACES];
    let reads = &mut reads[..block.len()];
    for start in rows.start..rows.end.min(rows.start + taps) {
        // Rows of one filter element, among which those that share offsets follow each other.
        let mut found = None;
        for row in (start..rows.end).step_by(taps) {
            let line = line(s, x, operands, (image, group, row));
            let out = &mut columns[(row - rows.start) * n..][block.clone()];
            let place = first + block.start;
            if s.axes == 3 {
                sample(s, line, place, out);
                continue;
            }
            if found != Some(line.of_tap) {
                find(s, line, place, reads);
                found = Some(line.of_tap);
            }
            let mask = line.mask.map(|mask| &mask[place..][..out.len()]);
            mix(reads, line.x, mask, out);
        }
    }
}

multiversion! {
    /// Computes what a filter element reads of a channel with three spatial axes for the places from `first` on.
    fn sample<W: DeformElement>(s: &Deform, line: Line<'_, W>, first: usize, out: &mut [W]) {
        for i in 0..out.len() {
            let place = first + i;
            let (row, col) = (place / s.output[2], place % s.output[2]);
            let (plane, row) = (row / s.output[1], row % s.output[1]);
            let (v, h) = (line.at(s, 1, (row, place)), line.at(s, 2, (col, place)));
            let sampled = trilinear(line.x, s.map, line.at(s, 0, (plane, place)), (v, h));
            out[i] = match line.mask {
                Some(mask) => sampled * mask[place],
                None => sampled,
            };
        }
    }
}

multiversion! {
    /// Finds what a filter element reads of a channel in a plane for the places from `first` on.
    fn find<W: DeformElement>(s: &Deform, line: Line<'_, W>, first: usize, reads: &mut [Reads<W>]) {
        let map = [s.map[1], s.map[2]];
        for i in 0..reads.len() {
            let place = first + i;
            let (row, col) = (place / s.output[2], place % s.output[2]);
            reads[i] = Reads::new(map, line.at(s, 1, (row, place)), line.at(s, 2, (col, place)));
        }
    }
}

multiversion! {
    /// Computes what a filter element reads of the channel `x` in a plane.
    fn mix<W: DeformElement>(reads: &[Reads<W>], x: &[W], mask: Option<&[W]>, out: &mut [W]) {
        for i in 0..out.len() {
            let sampled = reads[i].mix(x);
            out[i] = match mask {
                Some(mask) => sampled * mask[i],
                None => sampled,
            };
        }
    }
}

/// The elements of a plane around a place between them, of which the first `count` lie inside, with their weights.
#[derive(Clone, Copy)]
struct Reads<W> {
    count: usize,
    at: [usize; 4],
    weight: [W; 4],
}

impl<W: DeformElement> Reads<W> {
    const NONE: Reads<W> = Reads {
        count: 0,
        at: [0; 4],
        weight: [<W as Real>::ZERO; 4],
    };

    /// Finds the elements of a map around the place `v`, `h`.
    #[inline(always)]
    fn new([height, width]: [usize; 2], v: W, h: W) -> Reads<W> {
        let one = <W as Real>::ONE;
        let mut reads = Reads::NONE;
        let (bottom, right) = (W::from_usize(height), W::from_usize(width));
        // A place that is NaN lies outside.
        let inside = v > -one && v < bottom && h > -one && h < right;
        if !inside {
            return reads;
        }
        let (top, left) = (v.floor(), h.floor());
        let (down, across) = (v - top, h - left);
        let (top, left) = (Real::to_f64(top) as i64, Real::to_f64(left) as i64);
        for (row, weight_v) in [(top, one - down), (top + 1, down)] {
            for (col, weight_h) in [(left, one - across), (left + 1, across)] {
                if row >= 0 && row < height as i64 && col >= 0 && col < width as i64 {
                    reads.at[reads.count] = row as usize * width + col as usize;
                    reads.weight[reads.count] = weight_v * weight_h;
                    reads.count += 1;
                }
            }
        }
        reads
    }

    /// The element of the map at the place; what lies outside is zero.
    #[inline(always)]
    fn mix(&self, x: &[W]) -> W {
        let mut sum = <W as Real>::ZERO;
        if self.count == 4 {
            for t in 0..4 {
                sum = Real::mul_add(self.weight[t], x[self.at[t]], sum);
            }
        } else {
            for t in 0..self.count {
                sum = Real::mul_add(self.weight[t], x[self.at[t]], sum);
            }
        }
        sum
    }
}

/// The element of planes at a place between their elements; what lies outside is zero.
#[inline(always)]
fn trilinear<W: DeformElement>(
    x: &[W],
    [planes, height, width]: [usize; 3],
    d: W,
    (v, h): (W, W),
) -> W {
    let zero = <W as Real>::ZERO;
    let one = <W as Real>::ONE;
    // A place that is NaN lies outside.
    let inside = d > -one && d < W::from_usize(planes);
    if !inside {
        return zero;
    }
    let front = d.floor();
    let behind = d - front;
    let front = Real::to_f64(front) as i64;
    let mut sum = zero;
    for (plane, weight) in [(front, one - behind), (front + 1, behind)] {
        if plane >= 0 && plane < planes as i64 {
            let x = &x[plane as usize * height * width..][..height * width];
            sum = Real::mul_add(weight, Reads::new([height, width], v, h).mix(x), sum);
        }
    }
    sum
}

compiled! {
    /// Deformed convolutions of one type.
    trait DeformKernels for [f32, f64] {
        fn deformed(
            exec: &Exec,
            s: &Deform,
            x: &[Self],
            operands: &DeformOperands<'_, Self>,
            scratch: (&mut [Self], &mut [Self]),
            y: &mut [Self],
        ) = deform_any;
    }
}

/// Convolves x into y `[batch, filters, output..]`; the lengths of the scratch are those of [`Deform::scratch`].
pub fn deform_conv<W: DeformKernels>(
    exec: &Exec,
    s: &Deform,
    x: &[W],
    operands: &DeformOperands<'_, W>,
    scratch: (&mut [W], &mut [W]),
    y: &mut [W],
) -> Result {
    W::deformed(exec, s, x, operands, scratch, y)
}
