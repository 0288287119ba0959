//! Regions of feature maps, brought to one size: `RoiAlign` and `MaxRoiPool`.

use std::ops::Range;

use crate::Exec;
use crate::compiled::compiled;
use crate::error::{KernelError, Result};
use crate::math::Real;
use crate::multiversion::multiversion;
use crate::split::{Finished, Pace, tiles, units_per_tile};

/// How the samples of a bin become one element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoiMode {
    /// Their mean.
    Average,
    /// The greatest of the weighted neighbours of all samples, as ONNX defines it.
    Max,
}

/// The sizes and attributes of a call. X is `[batch, channels, height, width]`.
#[derive(Debug, Clone, Copy)]
pub struct RoiAlign<'a> {
    /// Images.
    pub batch: usize,
    /// Channels.
    pub channels: usize,
    /// The spatial axes of X.
    pub map: [usize; 2],
    /// The spatial axes of the output.
    pub pooled: [usize; 2],
    /// How samples become elements.
    pub mode: RoiMode,
    /// Samples along each axis of a bin; as many as a bin is long where it is 0.
    pub sampling: usize,
    /// The factor from the regions' coordinates to those of X.
    pub scale: f32,
    /// Whether coordinates are shifted by half a pixel, and regions may be smaller than a pixel.
    pub half_pixel: bool,
    /// The image of each region.
    pub images: &'a [i64],
}

impl RoiAlign<'_> {
    /// The image of region `r`.
    fn image(&self, r: usize) -> Result<usize> {
        let index = self.images[r];
        let found = usize::try_from(index).ok().filter(|i| *i < self.batch);
        found.ok_or(KernelError::IndexOutOfRange {
            index,
            len: self.batch,
            axis: 0,
        })
    }
}

/// One axis of a region: where it begins, how long a bin is, and how many samples that has.
#[derive(Clone, Copy)]
struct Axis<W> {
    start: W,
    bin: W,
    samples: u64,
    len: usize,
}

/// The neighbours of a sample along one axis, with the weight of the second one.
#[derive(Clone, Copy)]
struct Neighbours<W> {
    low: usize,
    high: usize,
    far: W,
}

impl<W: Real> Axis<W> {
    fn new(begin: W, end: W, len: usize, pooled: usize, s: &RoiAlign<'_>) -> Axis<W> {
        let scale = W::from_f64(f64::from(s.scale));
        let offset = if s.half_pixel { W::HALF } else { W::ZERO };
        let start = begin * scale - offset;
        let mut size = end * scale - offset - start;
        // A region that is no region has one pixel.
        if !s.half_pixel && size < W::ONE {
            size = W::ONE;
        }
        let bin = size / W::from_usize(pooled);
        let samples = match s.sampling {
            // NaN and what is below zero become no samples.
            0 => bin.ceil().to_f64() as u64,
            n => n as u64,
        };
        Axis {
            start,
            bin,
            samples,
            len,
        }
    }

    /// The place of sample `i` of bin `p`.
    fn place(&self, p: usize, i: u64) -> W {
        let within =
            (W::from_f64(i as f64) + W::HALF) * self.bin / W::from_f64(self.samples as f64);
        self.start + W::from_usize(p) * self.bin + within
    }

    /// The samples of bin `p` that may lie on the map; all others give zero.
    fn inside(&self, p: usize) -> Range<u64> {
        if self.len == 0 {
            return 0..0;
        }
        // Few samples are looked at one by one, and so are those of a bin that runs backwards.
        if self.samples <= FEW || self.bin <= W::ZERO {
            return 0..self.samples;
        }
        let first = self.first(p, |v| v >= -W::ONE);
        let end = self.first(p, |v| v > W::from_usize(self.len));
        let step = self.bin.to_f64() / self.samples as f64;
        let expected = (self.len as f64 + 1.0) / step;
        // Where far more samples fall on the map than it has room for, a region is too large for the places of its
        // samples to be told apart, and has none.
        match end.saturating_sub(first) as f64 > 2.0 * expected + FEW as f64 {
            true => 0..0,
            false => first..end,
        }
    }

    /// The first sample of bin `p` whose place `is` so, as are those of all later ones.
    fn first(&self, p: usize, is: impl Fn(W) -> bool) -> u64 {
        let (mut low, mut high) = (0, self.samples);
        while low < high {
            let middle = low + (high - low) / 2;
            match is(self.place(p, middle)) {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        low
    }

    /// The neighbours of sample `i` of bin `p`; `None` where it lies outside of the map.
    #[inline(always)]
    fn neighbours(&self, p: usize, i: u64) -> Option<Neighbours<W>> {
        let v = self.place(p, i);
        let inside = v >= -W::ONE && v <= W::from_usize(self.len);
        if !inside || self.len == 0 {
            return None;
        }
        let v = if v < W::ZERO { W::ZERO } else { v };
        let low = v.to_f64() as usize;
        Some(match low + 1 >= self.len {
            true => Neighbours {
                low: self.len - 1,
                high: self.len - 1,
                far: W::ZERO,
            },
            false => Neighbours {
                low,
                high: low + 1,
                far: v - W::from_usize(low),
            },
        })
    }
}

/// Samples of a bin that are not worth a search for those on the map.
const FEW: u64 = 16;

/// Elements that samples read between two checks of the cancel flag.
const READS: usize = 1 << 15;

multiversion! {
    /// Adds a sample of some channels to one bin: the element of each at four places, with their weights.
    fn add_sample<W: Real>(x: &[W], plane: usize, at: [usize; 4], weight: [W; 4], y: &mut [W], bin: usize, bins: usize) {
        for (x, y) in x.chunks_exact(plane).zip(y.chunks_exact_mut(bins)) {
            let mut sum = y[bin];
            for t in 0..4 {
                sum = Real::mul_add(weight[t], x[at[t]], sum);
            }
            y[bin] = sum;
        }
    }
}

fn align_any<W: Real>(exec: &Exec, s: &RoiAlign<'_>, x: &[W], rois: &[W], y: &mut [W]) -> Result {
    let [height, width] = s.map;
    let plane = height * width;
    let [ph, pw] = s.pooled;
    let bins = ph * pw;
    assert_eq!(x.len(), s.batch * s.channels * plane, "X");
    assert_eq!(rois.len(), 4 * s.images.len(), "regions");
    assert_eq!(y.len(), s.images.len() * s.channels * bins, "output");
    for r in 0..s.images.len() {
        s.image(r)?;
    }
    let grain = units_per_tile(bins).max(8);
    tiles(exec, y, bins, grain, |rows, y| {
        y.fill(W::ZERO);
        let mut row = rows.start;
        while row < rows.end {
            // The channels of one region share the weights.
            let region = row / s.channels;
            let end = rows.end.min((region + 1) * s.channels);
            let y = &mut y[(row - rows.start) * bins..][..(end - row) * bins];
            let roi = &rois[4 * region..][..4];
            let axes = [
                Axis::new(roi[1], roi[3], height, ph, s),
                Axis::new(roi[0], roi[2], width, pw, s),
            ];
            let first = s.images[region] as usize * s.channels + row % s.channels;
            let x = &x[first * plane..][..(end - row) * plane];
            let mut pace = Pace::new(exec, READS);
            for bin in 0..bins {
                let place = (bin / pw, bin % pw);
                if pool_bin(&mut pace, s, &axes, place, x, y, (bin, bins)).is_err() {
                    return;
                }
            }
            row = end;
        }
    })?;
    Ok(exec.check()?)
}

/// The larger of both; NaN if either is NaN.
#[inline(always)]
fn larger<W: Real>(a: W, b: W) -> W {
    if a > b || a.is_nan() { a } else { b }
}

/// One bin of some channels of a region.
fn pool_bin<W: Real>(
    pace: &mut Pace<'_>,
    s: &RoiAlign<'_>,
    [down, across]: &[Axis<W>; 2],
    (ph, pw): (usize, usize),
    x: &[W],
    y: &mut [W],
    (bin, bins): (usize, usize),
) -> Finished {
    let plane = s.map[0] * s.map[1];
    let width = s.map[1];
    let mut seen = 0u64;
    let columns = across.inside(pw);
    let per_sample = 4 * (y.len() / bins);
    for iy in down.inside(ph) {
        pace.count(1)?;
        let Some(v) = down.neighbours(ph, iy) else {
            continue;
        };
        for ix in columns.clone() {
            pace.count(per_sample)?;
            let Some(h) = across.neighbours(pw, ix) else {
                continue;
            };
            let (near_v, near_h) = (W::ONE - v.far, W::ONE - h.far);
            let at = [
                v.low * width + h.low,
                v.low * width + h.high,
                v.high * width + h.low,
                v.high * width + h.high,
            ];
            let weight = [
                near_v * near_h,
                near_v * h.far,
                v.far * near_h,
                v.far * h.far,
            ];
            match s.mode {
                RoiMode::Average => add_sample(x, plane, at, weight, y, bin, bins),
                RoiMode::Max => {
                    for (x, y) in x.chunks_exact(plane).zip(y.chunks_exact_mut(bins)) {
                        let y = &mut y[bin];
                        for (i, (at, weight)) in at.into_iter().zip(weight).enumerate() {
                            let v = weight * x[at];
                            *y = if seen == 0 && i == 0 {
                                v
                            } else {
                                larger(*y, v)
                            };
                        }
                    }
                }
            }
            seen += 1;
        }
    }
    let all = W::from_f64(down.samples as f64) * W::from_f64(across.samples as f64);
    for y in y.chunks_exact_mut(bins) {
        let y = &mut y[bin];
        match s.mode {
            RoiMode::Average if all > W::ONE => *y = *y / all,
            RoiMode::Average => {}
            // Samples outside of the map are zeros.
            RoiMode::Max if W::from_f64(seen as f64) < all => {
                *y = larger(*y, W::ZERO);
            }
            RoiMode::Max => {}
        }
        if Real::is_nan(*y) {
            *y = W::NAN;
        }
    }
    Ok(())
}

fn max_pool_any<W: Real>(
    exec: &Exec,
    s: &RoiAlign<'_>,
    x: &[W],
    rois: &[W],
    y: &mut [W],
) -> Result {
    let [height, width] = s.map;
    let [ph, pw] = s.pooled;
    let (plane, bins) = (height * width, ph * pw);
    assert_eq!(x.len(), s.batch * s.channels * plane, "X");
    assert_eq!(rois.len(), 4 * s.images.len(), "regions");
    assert_eq!(y.len(), s.images.len() * s.channels * bins, "output");
    for r in 0..s.images.len() {
        s.image(r)?;
    }
    tiles(exec, y, bins, units_per_tile(bins), |rows, y| {
        for (row, y) in rows.zip(y.chunks_exact_mut(bins)) {
            let region = row / s.channels;
            let roi = &rois[4 * region..][..4];
            let channel = s.images[region] as usize * s.channels + row % s.channels;
            let x = &x[channel * plane..][..plane];
            let mut pace = Pace::new(exec, READS);
            for (bin, y) in y.iter_mut().enumerate() {
                let v = cut(roi[1], roi[3], bin / pw, ph, height, s.scale);
                let h = cut(roi[0], roi[2], bin % pw, pw, width, s.scale);
                let mut most = None;
                for at in v {
                    for x in x[at * width..][h.clone()].chunks(READS) {
                        for x in x {
                            most = Some(most.map_or(*x, |most| larger(most, *x)));
                        }
                        if pace.count(x.len()).is_err() {
                            return;
                        }
                    }
                    if pace.count(1).is_err() {
                        return;
                    }
                }
                // A bin without elements is zero.
                *y = most.unwrap_or(W::ZERO);
            }
        }
    })?;
    Ok(exec.check()?)
}

/// The elements of bin `p` of `pooled` along an axis of length `len`, for a region from `begin` to `end`, both rounded.
fn cut<W: Real>(begin: W, end: W, p: usize, pooled: usize, len: usize, scale: f32) -> Range<usize> {
    let scale = W::from_f64(f64::from(scale));
    // Halves are rounded away from zero.
    let round = |v: W| (v.abs() + W::HALF).floor().copysign(v);
    let (begin, end) = (round(begin * scale), round(end * scale));
    let size = end - begin + W::ONE;
    let size = if size < W::ONE { W::ONE } else { size };
    let bin = size / W::from_usize(pooled);
    let from = (W::from_usize(p) * bin).floor() + begin;
    let to = (W::from_usize(p + 1) * bin).ceil() + begin;
    // Conversions saturate, and NaN becomes zero.
    let inside = |v: W| (v.to_f64() as usize).min(len);
    let from = inside(from);
    from..inside(to).max(from)
}

compiled! {
    /// Pooling of regions, in one type.
    trait RoiKernels for [f32, f64] {
        fn aligned(exec: &Exec, s: &RoiAlign<'_>, x: &[Self], rois: &[Self], y: &mut [Self]) = align_any;
        fn max_pooled(exec: &Exec, s: &RoiAlign<'_>, x: &[Self], rois: &[Self], y: &mut [Self]) = max_pool_any;
    }
}

/// `RoiAlign`: y `[regions, channels, pooled..]` from regions `[x1, y1, x2, y2]`, sampled by bilinear interpolation.
pub fn roi_align<W: RoiKernels>(
    exec: &Exec,
    s: &RoiAlign<'_>,
    x: &[W],
    rois: &[W],
    y: &mut [W],
) -> Result {
    W::aligned(exec, s, x, rois, y)
}

/// `MaxRoiPool`: y `[regions, channels, pooled..]` as the greatest elements of bins whose borders are rounded. Mode,
/// sampling and half pixels of `s` have no effect.
pub fn max_roi_pool<W: RoiKernels>(
    exec: &Exec,
    s: &RoiAlign<'_>,
    x: &[W],
    rois: &[W],
    y: &mut [W],
) -> Result {
    W::max_pooled(exec, s, x, rois, y)
}
