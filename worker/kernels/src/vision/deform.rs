//! `DeformConv`: a convolution whose filter elements each read X at a place of their own.
//!
//! ```text
//! X, offsets, mask ── sampled columns, for as many outputs as the scratch holds ── W · columns ── + bias ── Y
//! ```

use crate::Exec;
use crate::compiled::compiled;
use crate::error::Result;
use crate::gemm::{Batch, ChainElement, Epilogue, Lhs, Rhs, Strided, gemm_batched, gemm_generic};
use crate::math::Real;
use crate::multiversion::multiversion;
use crate::split::{tiles, units_per_tile};

/// The most elements of columns that are kept at a time, where one output does not need more.
const COLUMNS: usize = 1 << 20;

/// Places between two checks of the cancel flag.
const PLACES: usize = 1 << 14;

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
                tiles(exec, columns, n, units_per_tile(n), |rows, part| {
                    for (row, out) in rows.zip(part.chunks_exact_mut(n)) {
                        let line = line(s, x, operands, (image, group, row));
                        for (i, out) in out.chunks_mut(PLACES).enumerate() {
                            if exec.check().is_err() {
                                return;
                            }
                            sample(s, line, first + i * PLACES, out);
                        }
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
    /// The offsets along each axis and the mask have one element for each place. An axis that does not exist has none.
    offsets: [&'a [W]; 3],
    mask: Option<&'a [W]>,
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

multiversion! {
    /// Computes what a filter element reads of a channel for the places from `first` on.
    fn sample<W: DeformElement>(s: &Deform, line: Line<'_, W>, first: usize, out: &mut [W]) {
        for i in 0..out.len() {
            let place = first + i;
            let (row, col) = (place / s.output[2], place % s.output[2]);
            // A division is not needed where there is one plane.
            let (plane, row) = match s.axes {
                3 => (row / s.output[1], row % s.output[1]),
                _ => (0, row),
            };
            let at = |axis: usize, index: usize| {
                let base = base::<W>(s, axis, index, line.tap[axis]);
                line.offsets[axis].get(place).map_or(base, |offset| base + *offset)
            };
            let (v, h) = (at(1, row), at(2, col));
            let sampled = match s.axes {
                3 => trilinear(line.x, s.map, at(0, plane), (v, h)),
                _ => bilinear(line.x, [s.map[1], s.map[2]], v, h),
            };
            out[i] = match line.mask {
                Some(mask) => sampled * mask[place],
                None => sampled,
            };
        }
    }
}

/// The element of a map at a place between its elements; what lies outside is zero.
#[inline(always)]
fn bilinear<W: DeformElement>(x: &[W], [height, width]: [usize; 2], v: W, h: W) -> W {
    let zero = <W as Real>::ZERO;
    let one = <W as Real>::ONE;
    let (bottom, right) = (W::from_usize(height), W::from_usize(width));
    // A place that is NaN lies outside.
    let inside = v > -one && v < bottom && h > -one && h < right;
    if !inside {
        return zero;
    }
    let (top, left) = (v.floor(), h.floor());
    let (down, across) = (v - top, h - left);
    let (top, left) = (Real::to_f64(top) as i64, Real::to_f64(left) as i64);
    let mut sum = zero;
    for (row, weight_v) in [(top, one - down), (top + 1, down)] {
        for (col, weight_h) in [(left, one - across), (left + 1, across)] {
            if row >= 0 && row < height as i64 && col >= 0 && col < width as i64 {
                let at = row as usize * width + col as usize;
                sum = Real::mul_add(weight_v * weight_h, x[at], sum);
            }
        }
    }
    sum
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
            sum = Real::mul_add(weight, bilinear(x, [height, width], v, h), sum);
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
