//! `GridSample`: the elements of X at places that a grid gives.
//!
//! ```text
//! numbers:         grid ── elements that a place reads, and their weights ── mixed
//! elements of any type, nearest: grid ── the element nearest to each place ── taken
//! ```

use crate::Exec;
use crate::compiled::{compiled, compiled_bits};
use crate::element::Bits;
use crate::error::Result;
use crate::math::Real;
use crate::multiversion::multiversion;
use crate::split::{tiles, units_per_tile};

/// How elements between those of X are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sampling {
    /// The nearest element, the even one where two are as near.
    Nearest,
    /// Linear interpolation.
    Linear,
    /// Cubic convolution with the parameter -0.75.
    Cubic,
}

/// What lies outside of X.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GridPadding {
    /// Zeros.
    Zeros,
    /// The elements at the border.
    Border,
    /// The elements that a mirror at the border shows.
    Reflection,
}

/// The sizes and modes of a call.
#[derive(Debug, Clone, Copy)]
pub struct GridSample<'a> {
    /// Images.
    pub batch: usize,
    /// Channels of an image.
    pub channels: usize,
    /// The spatial axes of X: at least one, and no more than let a place read 1,024 elements.
    pub spatial: &'a [usize],
    /// Places of an image.
    pub places: usize,
    /// How elements are made.
    pub sampling: Sampling,
    /// What lies outside.
    pub padding: GridPadding,
    /// Whether -1 and 1 are the centres of the outermost elements, and not their outer edges.
    pub align_corners: bool,
}

impl GridSample<'_> {
    /// The most elements that a place reads.
    fn taps(&self) -> Option<usize> {
        let along: usize = match self.sampling {
            Sampling::Nearest => 1,
            Sampling::Linear => 2,
            Sampling::Cubic => 4,
        };
        along.checked_pow(u32::try_from(self.spatial.len()).ok()?)
    }
}

/// Elements of one axis that a place reads, with their weights.
#[derive(Clone, Copy)]
struct AxisTaps<W> {
    count: usize,
    at: [usize; 4],
    weight: [W; 4],
}

/// The most elements that one place reads.
pub const MOST_TAPS: usize = 1 << 10;

/// Elements that the places of a block read.
const ENTRIES: usize = MOST_TAPS;

/// The elements that some places read, `most` for each, of which the first `count` exist.
struct Taps<W> {
    most: usize,
    count: [usize; ENTRIES],
    at: [usize; ENTRIES],
    weight: [W; ENTRIES],
}

/// Places between two checks of the cancel flag.
const PLACES: usize = 1 << 10;

/// The fewest channels of a tile, which share the weights.
const CHANNELS: usize = 32;

fn grid_any<W: Real>(exec: &Exec, s: &GridSample<'_>, x: &[W], grid: &[W], y: &mut [W]) -> Result {
    let axes = s.spatial.len();
    assert!(
        axes > 0 && s.taps().is_some_and(|taps| taps <= MOST_TAPS),
        "{axes} spatial axes"
    );
    let plane: usize = s.spatial.iter().product();
    assert_eq!(x.len(), s.batch * s.channels * plane, "X");
    assert_eq!(grid.len(), s.batch * s.places * axes, "grid");
    assert_eq!(y.len(), s.batch * s.channels * s.places, "output");
    let grain = units_per_tile(s.places).max(CHANNELS);
    tiles(exec, y, s.places, grain, |rows, y| {
        let mut row = rows.start;
        while row < rows.end {
            // The channels of one image share the weights.
            let image = row / s.channels;
            let end = rows.end.min((image + 1) * s.channels);
            let y = &mut y[(row - rows.start) * s.places..][..(end - row) * s.places];
            let grid = &grid[image * s.places * axes..][..s.places * axes];
            let x = &x[row * plane..end * plane];
            for (i, grid) in grid.chunks(PLACES * axes).enumerate() {
                if exec.check().is_err() {
                    return;
                }
                sample(s, x, plane, grid, i * PLACES, y);
            }
            row = end;
        }
    })?;
    Ok(exec.check()?)
}

multiversion! {
    /// Samples some channels `x` at the places of `grid`, of which the first is number `first` of the image.
    fn sample<W: Real>(s: &GridSample<'_>, x: &[W], plane: usize, grid: &[W], first: usize, y: &mut [W]) {
        let axes = s.spatial.len();
        let mut taps = Taps::new(s);
        let (block, mut first) = (ENTRIES / taps.most, first);
        for grid in grid.chunks(block * axes) {
            let places = grid.len() / axes;
            for i in 0..places {
                taps.place(s, i, &grid[i * axes..(i + 1) * axes]);
            }
            for c in 0..y.len() / s.places {
                let x = &x[c * plane..][..plane];
                let y = &mut y[c * s.places + first..][..places];
                match taps.most {
                    1 => taps.mix::<1>(x, y),
                    2 => taps.mix::<2>(x, y),
                    4 => taps.mix::<4>(x, y),
                    8 => taps.mix::<8>(x, y),
                    16 => taps.mix::<16>(x, y),
                    64 => taps.mix::<64>(x, y),
                    _ => taps.mix_many(x, y),
                }
            }
            first += places;
        }
    }
}

impl<W: Real> Taps<W> {
    #[inline(always)]
    fn new(s: &GridSample<'_>) -> Taps<W> {
        Taps {
            most: s.taps().unwrap_or(MOST_TAPS),
            count: [0; ENTRIES],
            at: [0; ENTRIES],
            weight: [W::ZERO; ENTRIES],
        }
    }

    /// Finds the elements that place `i` of the block reads. The grid names the last axis first.
    #[inline(always)]
    fn place(&mut self, s: &GridSample<'_>, i: usize, place: &[W]) {
        let range = i * self.most..(i + 1) * self.most;
        let (at, weight) = (&mut self.at[range.clone()], &mut self.weight[range]);
        (at[0], weight[0]) = (0, W::ONE);
        let mut count = 1;
        for axis in 0..s.spatial.len() {
            let len = s.spatial[axis];
            let one = axis_taps(s, place[s.spatial.len() - 1 - axis], len);
            // Each element becomes as many as the axis has, in place: the last ones first.
            for i in (0..count).rev() {
                let before = (at[i] * len, weight[i]);
                for j in 0..one.count {
                    at[i * one.count + j] = before.0 + one.at[j];
                    weight[i * one.count + j] = before.1 * one.weight[j];
                }
            }
            count *= one.count;
        }
        self.count[i] = count;
    }

    /// Mixes the elements of a channel at the places of the block, each of which reads at most `N`.
    #[inline(always)]
    fn mix<const N: usize>(&self, x: &[W], y: &mut [W]) {
        let (at, weight) = (self.at.as_chunks::<N>().0, self.weight.as_chunks::<N>().0);
        for i in 0..y.len() {
            let (at, weight) = (&at[i], &weight[i]);
            let mut sum = W::ZERO;
            if self.count[i] == N {
                for t in 0..N {
                    sum = weight[t].mul_add(x[at[t]], sum);
                }
            } else {
                for t in 0..self.count[i] {
                    sum = weight[t].mul_add(x[at[t]], sum);
                }
            }
            y[i] = if sum.is_nan() { W::NAN } else { sum };
        }
    }
}

impl<W: Real> Taps<W> {
    /// As [`Taps::mix`], where places read more elements than it is compiled for.
    #[inline(always)]
    fn mix_many(&self, x: &[W], y: &mut [W]) {
        for i in 0..y.len() {
            let range = i * self.most..i * self.most + self.count[i];
            let mut sum = W::ZERO;
            for t in range {
                sum = self.weight[t].mul_add(x[self.at[t]], sum);
            }
            y[i] = if sum.is_nan() { W::NAN } else { sum };
        }
    }
}

/// The elements along an axis of length `len` that the normalised coordinate `n` reads.
#[inline(always)]
fn axis_taps<W: Real>(s: &GridSample<'_>, n: W, len: usize) -> AxisTaps<W> {
    let mut taps = AxisTaps {
        count: 0,
        at: [0; 4],
        weight: [W::ZERO; 4],
    };
    if len == 0 {
        return taps;
    }
    let (size, two) = (W::from_usize(len), W::from_f64(2.0));
    // A coordinate that is NaN counts as -1, as torch has it.
    let n = if n.is_nan() { -W::ONE } else { n };
    let mut v = match s.align_corners {
        true => (n + W::ONE) / two * (size - W::ONE),
        false => ((n + W::ONE) * size - W::ONE) / two,
    };
    if s.sampling == Sampling::Nearest {
        v = v.round();
    }
    let (low, high) = match s.align_corners {
        true => (W::ZERO, size - W::ONE),
        false => (-W::HALF, size - W::HALF),
    };
    if v < low || v > high {
        v = match s.padding {
            GridPadding::Zeros => v,
            GridPadding::Border if v < low => W::ZERO,
            GridPadding::Border => size - W::ONE,
            GridPadding::Reflection => reflect(v, low, high),
        };
    }
    // No element within reach of such a place lies inside.
    if v.is_nan() || v < -W::from_f64(3.0) || v > size + two {
        return taps;
    }
    let floor = v.floor();
    let (first, weights): (i64, &[W]) = match s.sampling {
        Sampling::Nearest => (floor.to_f64() as i64, &[W::ONE]),
        Sampling::Linear => {
            let t = v - floor;
            (floor.to_f64() as i64, &[W::ONE - t, t])
        }
        Sampling::Cubic => (floor.to_f64() as i64 - 1, &cubic(v - floor)),
    };
    let last = len as i64 - 1;
    if first >= 0 && first <= len as i64 - weights.len() as i64 {
        for i in 0..weights.len() {
            taps.at[i] = first as usize + i;
            taps.weight[i] = weights[i];
        }
        taps.count = weights.len();
        return taps;
    }
    for (i, weight) in weights.iter().enumerate() {
        let at = first + i as i64;
        let at = match s.padding {
            _ if (0..=last).contains(&at) => at,
            GridPadding::Zeros => continue,
            GridPadding::Border => at.clamp(0, last),
            GridPadding::Reflection => {
                let at = reflect(W::from_f64(at as f64), low, high);
                (at.to_f64() as i64).clamp(0, last)
            }
        };
        taps.at[taps.count] = at as usize;
        taps.weight[taps.count] = *weight;
        taps.count += 1;
    }
    taps
}

/// The place in `[low, high]` that mirrors at both show at `v`.
#[inline(always)]
fn reflect<W: Real>(v: W, low: W, high: W) -> W {
    let range = high - low;
    if range <= W::ZERO {
        return low;
    }
    let beyond = if v < low { low - v } else { v - high };
    if beyond < W::ZERO {
        return v;
    }
    let turn = beyond.fmod(range + range);
    let (near, far) = (turn <= range, turn - range);
    match (v < low, near) {
        (true, true) => low + turn,
        (true, false) => high - far,
        (false, true) => high - turn,
        (false, false) => low + far,
    }
}

/// The weights of cubic convolution for a place `t` behind the second of four elements.
#[inline(always)]
fn cubic<W: Real>(t: W) -> [W; 4] {
    let a = W::from_f64(-0.75);
    let [two, three, four, five, eight] = [2.0, 3.0, 4.0, 5.0, 8.0].map(W::from_f64);
    let outer = |d: W| ((a * d - five * a) * d + eight * a) * d - four * a;
    let inner = |d: W| ((a + two) * d - (a + three)) * d * d + W::ONE;
    [
        outer(t + W::ONE),
        inner(t),
        inner(W::ONE - t),
        outer(two - t),
    ]
}

/// The place that is nowhere in X.
const NOWHERE: i64 = -1;

fn places_any<W: Real>(exec: &Exec, s: &GridSample<'_>, grid: &[W], nearest: &mut [i64]) -> Result {
    let axes = s.spatial.len();
    let nearest_of = GridSample {
        sampling: Sampling::Nearest,
        ..*s
    };
    assert_eq!(grid.len(), nearest.len() * axes, "grid");
    tiles(exec, nearest, 1, units_per_tile(axes), |range, nearest| {
        for (at, nearest) in range.zip(nearest) {
            if at % PLACES == 0 && exec.check().is_err() {
                return;
            }
            let place = &grid[at * axes..][..axes];
            let mut index = 0;
            for (len, coordinate) in s.spatial.iter().zip(place.iter().rev()) {
                let taps = axis_taps(&nearest_of, *coordinate, *len);
                index = match (taps.count, index) {
                    (0, _) | (_, NOWHERE) => NOWHERE,
                    (_, index) => index * *len as i64 + taps.at[0] as i64,
                };
            }
            *nearest = index;
        }
    })?;
    Ok(exec.check()?)
}

fn take_any<T: Bits>(
    exec: &Exec,
    s: &GridSample<'_>,
    x: &[T],
    nearest: &[i64],
    y: &mut [T],
) -> Result {
    // Sizes of an empty result may have a product beyond all bounds.
    if y.is_empty() {
        return Ok(exec.check()?);
    }
    let plane: usize = s.spatial.iter().product();
    assert_eq!(x.len(), s.batch * s.channels * plane, "X");
    assert_eq!(nearest.len(), s.batch * s.places, "places");
    assert_eq!(y.len(), s.batch * s.channels * s.places, "output");
    tiles(exec, y, s.places, units_per_tile(s.places), |rows, y| {
        for (row, y) in rows.zip(y.chunks_exact_mut(s.places)) {
            let nearest = &nearest[row / s.channels * s.places..][..s.places];
            let x = &x[row * plane..][..plane];
            for (y, nearest) in y.chunks_mut(PLACES).zip(nearest.chunks(PLACES)) {
                if exec.check().is_err() {
                    return;
                }
                for (y, at) in y.iter_mut().zip(nearest) {
                    let taken = usize::try_from(*at).ok().and_then(|at| x.get(at));
                    *y = taken.copied().unwrap_or_default();
                }
            }
        }
    })?;
    Ok(exec.check()?)
}

compiled_bits! {
    /// Elements of any type at places, by their size.
    trait TakeKernels {
        fn takes(exec: &Exec, s: &GridSample<'_>, x: &[Self], nearest: &[i64], y: &mut [Self]) = take_any;
    }
}

/// Writes the elements of x `[batch, channels, spatial..]` at the places that [`grid_places`] finds into y
/// `[batch, channels, places]`, and zeros for those that are nowhere.
pub fn take_places<T: TakeKernels>(
    exec: &Exec,
    s: &GridSample<'_>,
    x: &[T],
    nearest: &[i64],
    y: &mut [T],
) -> Result {
    T::takes(exec, s, x, nearest, y)
}

/// Finds for each place of grid `[batch, places, axes]` the nearest element of its image, or -1 where X has none there.
pub fn grid_places<W: GridKernels>(
    exec: &Exec,
    s: &GridSample<'_>,
    grid: &[W],
    nearest: &mut [i64],
) -> Result {
    W::nearest_places(exec, s, grid, nearest)
}

compiled! {
    /// Sampling by a grid, in one type.
    trait GridKernels for [f32, f64] {
        fn nearest_places(exec: &Exec, s: &GridSample<'_>, grid: &[Self], nearest: &mut [i64]) = places_any;
        fn grid_samples(exec: &Exec, s: &GridSample<'_>, x: &[Self], grid: &[Self], y: &mut [Self]) = grid_any;
    }
}

/// Samples x `[batch, channels, spatial..]` at grid `[batch, places, axes]`, whose coordinates are in [-1, 1] and name
/// the last axis first, into y `[batch, channels, places]`.
pub fn grid_sample<W: GridKernels>(
    exec: &Exec,
    s: &GridSample<'_>,
    x: &[W],
    grid: &[W],
    y: &mut [W],
) -> Result {
    W::grid_samples(exec, s, x, grid, y)
}
