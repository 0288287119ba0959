//! The weights of interpolation, by ONNX's definition of `Resize`.
//!
//! Positions are computed in f32, as ONNX Runtime does: which neighbour is nearest depends on the rounding.

use crate::Exec;
use crate::error::Result;
use crate::split::{Finished, PIECE, Pace};
use std::ops::Range;

/// How a position along the result's axis becomes one along the operand's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Position {
    /// Centres of elements are half an element from their borders.
    HalfPixel,
    /// As `HalfPixel`, around the centre of the axis where the scaled length is not whole.
    HalfPixelSymmetric,
    /// As `HalfPixel`; an axis of one element takes the first.
    PytorchHalfPixel,
    /// First and last elements stay first and last.
    AlignCorners,
    /// The position divided by the scale.
    Asymmetric,
    /// The centre of the element divided by the scale.
    TfHalfPixel,
    /// A part of the axis, between these fractions of it, is stretched to the result.
    Crop(f32, f32),
}

/// The rule that says which of two neighbours is the nearest one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Neighbour {
    /// The closer one, and the lower one of two that are as close.
    RoundPreferFloor,
    /// The closer one, and the upper one of two that are as close.
    RoundPreferCeil,
    /// The lower one.
    Floor,
    /// The upper one.
    Ceil,
}

/// How the elements around a position are weighted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Weights {
    /// One element counts.
    Nearest(Neighbour),
    /// Two elements count, or with `antialias` more where the axis shrinks.
    Linear {
        /// Whether weights spread where the axis shrinks.
        antialias: bool,
    },
    /// Four elements count, or with `antialias` more where the axis shrinks.
    Cubic {
        /// The parameter of the cubic function.
        a: f32,
        /// Whether weights spread where the axis shrinks.
        antialias: bool,
    },
}

/// How one axis is resized.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scaling {
    /// The length of the operand's axis, above zero.
    pub from: usize,
    /// The length of the result's axis.
    pub to: usize,
    /// The factor between the lengths, before the result's was rounded.
    pub scale: f32,
    /// Where the positions lie.
    pub position: Position,
    /// How elements are weighted.
    pub weights: Weights,
    /// Whether elements outside the axis have no weight, instead of being the axis' first and last.
    pub exclude_outside: bool,
}

impl Scaling {
    /// The position along the operand's axis of element `i` of the result.
    fn position(&self, i: usize) -> f32 {
        let (x, from, to) = (i as f32, self.from as f32, self.to as f32);
        // ONNX's definition divides by the scaled length before it is rounded down. What differs from the length by an
        // error of rounding alone is taken to be the length, so that elements are met exactly.
        let scaled = self.scale * from;
        let resized = if (scaled - to).abs() < 1e-3 {
            to
        } else {
            scaled
        };
        match self.position {
            Position::HalfPixel => (x + 0.5) / self.scale - 0.5,
            Position::HalfPixelSymmetric => {
                let adjustment = to / scaled;
                let offset = from / 2. * (1. - adjustment);
                offset + (x + 0.5) / self.scale - 0.5
            }
            Position::PytorchHalfPixel if self.to == 1 => 0.,
            Position::PytorchHalfPixel => (x + 0.5) / self.scale - 0.5,
            Position::AlignCorners if self.to == 1 => 0.,
            Position::AlignCorners => x * (from - 1.) / (resized - 1.),
            Position::Asymmetric => x / self.scale,
            Position::TfHalfPixel => (x + 0.5) / self.scale,
            Position::Crop(start, end) if self.to == 1 => {
                (end - start) * (from - 1.) / 2. + start * (from - 1.)
            }
            Position::Crop(start, end) => {
                start * (from - 1.) + x * (end - start) * (from - 1.) / (resized - 1.)
            }
        }
    }

    /// How far weights spread, where the axis shrinks and they do.
    fn reach(&self) -> Option<f32> {
        let reach = match self.weights {
            Weights::Linear { antialias: true } => 1.,
            Weights::Cubic {
                antialias: true, ..
            } => 2.,
            _ => return None,
        };
        (self.scale.min(1.) != 1.).then_some(reach)
    }

    /// How many elements make one.
    fn width(&self) -> usize {
        match (self.reach(), self.weights) {
            (Some(reach), _) => {
                let around = spread_over(reach, self.scale.min(1.));
                usize::try_from(around.end - around.start).unwrap_or(0)
            }
            (None, Weights::Cubic { .. }) => 4,
            (None, _) => 2,
        }
    }

    /// Writes the weights of the elements around a position that lies `ratio`, above 0 and up to 1, behind one of them.
    fn weigh(&self, pace: &mut Pace, ratio: f32, out: &mut Vec<f32>) -> Finished {
        out.clear();
        let shrinks = self.scale.min(1.);
        match self.weights {
            Weights::Nearest(neighbour) => {
                let upper = match neighbour {
                    Neighbour::RoundPreferFloor => ratio > 0.5,
                    Neighbour::RoundPreferCeil => ratio >= 0.5,
                    Neighbour::Floor => ratio == 1.,
                    Neighbour::Ceil => true,
                };
                let weight = |counts: bool| if counts { 1. } else { 0. };
                out.extend([weight(!upper), weight(upper)]);
            }
            Weights::Linear { antialias } if !antialias || shrinks == 1. => {
                out.extend([1. - ratio, ratio]);
            }
            Weights::Linear { .. } => {
                spread(pace, 1., shrinks, ratio, out, |x| (1. - x.abs()).max(0.))?;
            }
            Weights::Cubic { a, antialias } if !antialias || shrinks == 1. => {
                let (r, s) = (ratio, 1. - ratio);
                out.extend([
                    ((a * (r + 1.) - 5. * a) * (r + 1.) + 8. * a) * (r + 1.) - 4. * a,
                    ((a + 2.) * r - (a + 3.)) * r * r + 1.,
                    ((a + 2.) * s - (a + 3.)) * s * s + 1.,
                    ((a * (s + 1.) - 5. * a) * (s + 1.) + 8. * a) * (s + 1.) - 4. * a,
                ]);
            }
            Weights::Cubic { a, .. } => spread(pace, 2., shrinks, ratio, out, |x| {
                let x = x.abs();
                match x {
                    x if x <= 1. => ((a + 2.) * x - (a + 3.)) * x * x + 1.,
                    x if x < 2. => ((a * x - 5. * a) * x + 8. * a) * x - 4. * a,
                    _ => 0.,
                }
            })?,
        }
        Ok(())
    }
}

/// The elements around a position, counted from the one before it, that weights from `-reach` to `reach` meet when they
/// are stretched by the inverse of `scale`.
fn spread_over(reach: f32, scale: f32) -> Range<i64> {
    // The bound is beyond any tensor; it keeps the arithmetic inside an i64.
    let start = ((-reach / scale).floor() as i64).max(-(1 << 60)) + 1;
    start..2 - start
}

/// Writes weights by the function `f`, which is zero from `reach` on, stretched by the inverse of `scale`.
fn spread(
    pace: &mut Pace,
    reach: f32,
    scale: f32,
    ratio: f32,
    out: &mut Vec<f32>,
    f: impl Fn(f32) -> f32,
) -> Finished {
    for i in spread_over(reach, scale) {
        pace.count(1)?;
        out.push(f((i as f32 - ratio) * scale));
    }
    normalize(pace, out)
}

/// Scales weights to sum to 1.
fn normalize(pace: &mut Pace, weights: &mut [f32]) -> Finished {
    let mut sum = 0f32;
    for weights in weights.chunks(PIECE) {
        pace.count(weights.len())?;
        for w in weights {
            sum += *w;
        }
    }
    for weights in weights.chunks_mut(PIECE) {
        pace.count(weights.len())?;
        for w in weights {
            *w /= sum;
        }
    }
    Ok(())
}

/// The elements of the operand's axis that make each element of the result's, with their weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Taps {
    width: usize,
    from: Vec<usize>,
    weights: Vec<f32>,
    outside: Vec<bool>,
    any_outside: bool,
}

impl Taps {
    /// The bytes of memory that [`Taps::new`] and [`Taps::nearest`] take. They lie in nobody's scratch, so the caller
    /// reserves them.
    pub fn memory(scaling: &Scaling) -> usize {
        let pair = size_of::<usize>() + size_of::<f32>();
        let others = size_of::<bool>() + size_of::<usize>();
        let rows = scaling.width().saturating_mul(pair) + others;
        let row = scaling.width().saturating_mul(size_of::<f32>());
        rows.saturating_mul(scaling.to).saturating_add(row)
    }

    /// Computes the weights.
    pub fn new(exec: &Exec, scaling: &Scaling) -> Result<Taps> {
        assert!(scaling.from > 0, "an empty axis has nothing to weigh");
        let mut pace = Pace::new(exec, PIECE);
        let last = scaling.from as i64 - 1;
        let width = scaling.width();
        let room = scaling.to * width;
        let (mut from, mut weights) = (Vec::with_capacity(room), Vec::with_capacity(room));
        let mut outside = Vec::with_capacity(scaling.to);
        let mut any_outside = false;
        let mut row = Vec::with_capacity(width);
        for i in 0..scaling.to {
            let x = scaling.position(i);
            let base = x.ceil() - 1.;
            scaling.weigh(&mut pace, x - base, &mut row)?;
            // Positions far outside meet the axis' ends; the bound keeps them integers.
            let bound = last as f32 + width as f32 + 1.;
            let first = base.clamp(-bound, bound) as i64 - (width as i64) / 2 + 1;
            let at = |k: usize| first + k as i64;
            if scaling.exclude_outside {
                for (k, w) in row.iter_mut().enumerate() {
                    pace.count(1)?;
                    if !(0..=last).contains(&at(k)) {
                        *w = 0.;
                    }
                }
                normalize(&mut pace, &mut row)?;
            }
            for (k, w) in row.iter().enumerate() {
                pace.count(1)?;
                from.push(at(k).clamp(0, last) as usize);
                weights.push(*w);
            }
            let crops = matches!(scaling.position, Position::Crop(..));
            let lies_outside = crops && !(0. ..=last as f32).contains(&x);
            outside.push(lies_outside);
            any_outside |= lies_outside;
        }
        exec.check()?;
        Ok(Taps {
            width,
            from,
            weights,
            outside,
            any_outside,
        })
    }

    /// The length of the result's axis.
    pub fn len(&self) -> usize {
        self.outside.len()
    }

    /// Whether the result's axis is empty.
    pub fn is_empty(&self) -> bool {
        self.outside.is_empty()
    }

    /// How many elements make one.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Whether element `i` of the result lies outside the cropped operand.
    pub fn outside(&self, i: usize) -> bool {
        self.outside[i]
    }

    /// Whether any element of the result does.
    pub fn any_outside(&self) -> bool {
        self.any_outside
    }

    /// For each element of the result, the element with the greatest weight, which is the first one of equals.
    pub fn nearest(&self, exec: &Exec) -> Result<Vec<usize>> {
        let mut pace = Pace::new(exec, PIECE);
        let mut all = Vec::with_capacity(self.len());
        for i in 0..self.len() {
            let (from, weights) = self.of(i);
            let mut best = 0;
            pace.count(1)?;
            for k in 1..weights.len() {
                pace.count(1)?;
                if weights[k] > weights[best] {
                    best = k;
                }
            }
            all.push(from.get(best).copied().unwrap_or(0));
        }
        exec.check()?;
        Ok(all)
    }

    /// The elements that make element `i`, and their weights.
    #[inline(always)]
    pub(super) fn of(&self, i: usize) -> (&[usize], &[f32]) {
        let range = i * self.width..(i + 1) * self.width;
        (&self.from[range.clone()], &self.weights[range])
    }

    /// The elements that make each one, and their weights, where there are `N` of them.
    #[inline(always)]
    pub(super) fn all<const N: usize>(&self) -> (&[[usize; N]], &[[f32; N]]) {
        (self.from.as_chunks().0, self.weights.as_chunks().0)
    }
}
