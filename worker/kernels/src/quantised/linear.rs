//! `QuantizeLinear` and `DequantizeLinear`.

use convoke_functions::narrow::{Narrow, NarrowInt, NarrowRounding, PowerRounding};

use super::layout::{Layout, Run, Take};
use super::numbers::{BLOCK, Format, Numbers, write};
use crate::Exec;
use crate::element::{canonical_nan, halves};
use crate::error::Result;
use crate::multiversion::multiversion;
use crate::split::{GRAIN, PIECE, pieces, tiles};

/// Scales and zero points; a scale that is left out is 1, a zero point 0.
#[derive(Clone, Copy)]
pub struct Parameters<'a> {
    pub layout: Layout,
    pub scales: Option<&'a [f32]>,
    pub zeros: Option<&'a [f32]>,
}

/// What numbers are rounded to before and after they are divided by their scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    F32,
    F16,
    BF16,
}

/// How numbers are quantised.
#[derive(Debug, Clone, Copy)]
pub struct Quantisation {
    pub to: Format,
    pub precision: Precision,
    /// Whether a number beyond the largest one of a float format of eight bits becomes that one.
    pub saturate: bool,
}

/// The least and the greatest number of an integer format that quantised numbers have; `None` for a float format.
pub fn range_of(format: Format) -> Option<(f32, f32)> {
    Some(match format {
        Format::I8 => (-128., 127.),
        Format::U8 => (0., 255.),
        Format::I16 => (-32768., 32767.),
        Format::U16 => (0., 65535.),
        Format::Narrow(Narrow::Int(NarrowInt { bits, signed })) => {
            let count = f32::from(1u16 << bits);
            match signed {
                true => (-count / 2., count / 2. - 1.),
                false => (0., count - 1.),
            }
        }
        _ => return None,
    })
}

const ROUNDING: NarrowRounding = NarrowRounding {
    saturate: true,
    power: PowerRounding::Up,
};

/// The scale or zero point of each element of a block: one number, or one for each element.
#[derive(Clone, Copy)]
enum BlockParameter<'a, T = f32> {
    One(T),
    Each(&'a [T]),
}

fn given<T: Copy>(all: Option<&[T]>, run: Run, n: usize, default: T) -> BlockParameter<'_, T> {
    match all {
        None => BlockParameter::One(default),
        Some(all) if run.advances => BlockParameter::Each(&all[run.index..run.index + n]),
        Some(all) => BlockParameter::One(all[run.index]),
    }
}

/// `given` of each element, in `buffer` where it is one number for all.
#[inline(always)]
fn spread<'a>(given: BlockParameter<'a>, n: usize, buffer: &'a mut [f32; BLOCK]) -> &'a [f32] {
    match given {
        BlockParameter::Each(all) => all,
        BlockParameter::One(x) => {
            buffer[..n].fill(x);
            &buffer[..n]
        }
    }
}

multiversion! {
    /// `x = (x - zero) * scale` for each element of a block.
    fn dequantise_block<>(x: &mut [f32], zeros: BlockParameter<'_>, scales: BlockParameter<'_>) {
        let n = x.len();
        match (zeros, scales) {
            (BlockParameter::One(zero), BlockParameter::One(scale)) => {
                for i in 0..n {
                    x[i] = canonical_nan((x[i] - zero) * scale);
                }
            }
            _ => {
                let (mut a, mut b) = ([0.0; BLOCK], [0.0; BLOCK]);
                let zeros = &spread(zeros, n, &mut a)[..n];
                let scales = &spread(scales, n, &mut b)[..n];
                for i in 0..n {
                    x[i] = canonical_nan((x[i] - zeros[i]) * scales[i]);
                }
            }
        }
    }
}

multiversion! {
    /// `to = x - zero` for each element of a block, rounded once: an f64 holds every difference of two i32.
    fn difference_block<>(x: &[i32], zeros: BlockParameter<'_, i32>, to: &mut [f32]) {
        let n = to.len();
        let x = &x[..n];
        match zeros {
            BlockParameter::One(zero) => {
                for i in 0..n {
                    to[i] = (f64::from(x[i]) - f64::from(zero)) as f32;
                }
            }
            BlockParameter::Each(zeros) => {
                let zeros = &zeros[..n];
                for i in 0..n {
                    to[i] = (f64::from(x[i]) - f64::from(zeros[i])) as f32;
                }
            }
        }
    }
}

#[inline(always)]
fn rounded(x: f32, precision: Precision) -> f32 {
    match precision {
        Precision::F32 => x,
        Precision::F16 => halves::f16_to_f32(halves::f32_to_f16(x)),
        Precision::BF16 => halves::bf16_to_f32(halves::f32_to_bf16(x)),
    }
}

multiversion! {
    /// `x = x / scale`, rounded to `precision`, for each element of a block.
    fn divide_block<>(x: &mut [f32], scales: BlockParameter<'_>, precision: Precision) {
        let mut buffer = [0.0; BLOCK];
        let n = x.len();
        let scales = &spread(scales, n, &mut buffer)[..n];
        if precision == Precision::F32 {
            for i in 0..n {
                x[i] = canonical_nan(x[i] / scales[i]);
            }
        } else {
            for i in 0..n {
                let quotient = rounded(x[i], precision) / rounded(scales[i], precision);
                x[i] = canonical_nan(rounded(quotient, precision));
            }
        }
    }
}

multiversion! {
    /// `x = x + zero` for each element of a block.
    fn add_block<>(x: &mut [f32], zeros: BlockParameter<'_>) {
        let mut buffer = [0.0; BLOCK];
        let n = x.len();
        let zeros = &spread(zeros, n, &mut buffer)[..n];
        for i in 0..n {
            x[i] = canonical_nan(x[i] + zeros[i]);
        }
    }
}

multiversion! {
    /// The whole number nearest to `x`, plus the zero point, within `low..=high`.
    fn round_block<>(x: &mut [f32], zeros: BlockParameter<'_>, low: f32, high: f32) {
        let mut buffer = [0.0; BLOCK];
        let n = x.len();
        let zeros = &spread(zeros, n, &mut buffer)[..n];
        for i in 0..n {
            x[i] = clamped(x[i], zeros[i], low, high);
        }
    }
}

/// `x` rounded half to even, plus `zero`, within `low..=high`; NaN gives `low`.
#[inline(always)]
pub(super) fn clamped(x: f32, zero: f32, low: f32, high: f32) -> f32 {
    let y = x.round_ties_even() + zero;
    let y = if y > low { y } else { low };
    if y < high { y } else { high }
}

/// Calls `each(at, place, n, run)` for blocks of elements `range`, which are consecutive elements from `place` on.
fn blocks(
    range: std::ops::Range<usize>,
    take: Take,
    layout: Layout,
    mut each: impl FnMut(usize, usize, usize, Run),
) {
    let mut at = range.start;
    while at < range.end {
        let (place, follow) = take.source(at);
        let run = layout.run(place);
        let n = BLOCK.min(range.end - at).min(follow).min(run.end - place);
        each(at, place, n, run);
        at += n;
    }
}

/// Elements of `y` in a tile, and the number of elements in a unit of its bytes.
fn elements(format: Format, units: &std::ops::Range<usize>, len: usize) -> std::ops::Range<usize> {
    let (per, _) = format.density();
    units.start * per..(units.end * per).min(len)
}

/// `y = (x - zero) * scale` for the elements that `take` names, of which there are `len`. `y` has a format without
/// packed elements.
pub fn dequantise(
    exec: &Exec,
    x: &Numbers<'_>,
    take: Take,
    len: usize,
    parameters: &Parameters<'_>,
    (to, y): (Format, &mut [u8]),
) -> Result {
    let (_, width) = to.density();
    assert_eq!(y.len(), to.bytes(len), "bytes of the result");
    if let Some(last) = len.checked_sub(1) {
        assert!(x.has(take.source(last).0 + 1), "elements of the operand");
    }
    Ok(tiles(exec, y, width, GRAIN, |units, part| {
        let range = elements(to, &units, len);
        let first = range.start;
        let mut buffer = [0.0; BLOCK];
        blocks(range, take, parameters.layout, |at, place, n, run| {
            let numbers = &mut buffer[..n];
            x.read(place, numbers);
            let zeros = given(parameters.zeros, run, n, 0.0);
            let scales = given(parameters.scales, run, n, 1.0);
            dequantise_block(numbers, zeros, scales);
            write(to, numbers, ROUNDING, &mut part[(at - first) * width..]);
        });
    })?)
}

/// `y = (x - zero) * scale` for all elements of `x`, whose differences are exact before they are rounded to f32. `y` has a
/// format without packed elements.
pub fn dequantise_i32(
    exec: &Exec,
    x: &[i32],
    zeros: &[i32],
    (layout, scales): (Layout, &[f32]),
    (to, y): (Format, &mut [u8]),
) -> Result {
    let (_, width) = to.density();
    assert_eq!(y.len(), to.bytes(x.len()), "bytes of the result");
    Ok(tiles(exec, y, width, GRAIN, |units, part| {
        let first = units.start;
        let mut buffer = [0.0; BLOCK];
        blocks(units, Take::ALL, layout, |at, place, n, run| {
            let numbers = &mut buffer[..n];
            difference_block(&x[place..], given(Some(zeros), run, n, 0), numbers);
            dequantise_block(
                numbers,
                BlockParameter::One(0.0),
                given(Some(scales), run, n, 1.0),
            );
            write(to, numbers, ROUNDING, &mut part[(at - first) * width..]);
        });
    })?)
}

/// `y = round(x / scale) + zero` for all `len` elements.
pub fn quantise(
    exec: &Exec,
    x: &Numbers<'_>,
    len: usize,
    parameters: &Parameters<'_>,
    how: Quantisation,
    y: &mut [u8],
) -> Result {
    let to = how.to;
    let (per, width) = to.density();
    assert_eq!(y.len(), to.bytes(len), "bytes of the result");
    assert!(x.has(len), "elements of the operand");
    let rounding = NarrowRounding {
        saturate: how.saturate,
        ..ROUNDING
    };
    Ok(tiles(exec, y, width, GRAIN, |units, part| {
        let range = elements(to, &units, len);
        // Results are gathered into whole blocks, since several of them may share a byte.
        for start in range.clone().step_by(BLOCK) {
            let end = (start + BLOCK).min(range.end);
            let mut buffer = [0.0; BLOCK];
            blocks(
                start..end,
                Take::ALL,
                parameters.layout,
                |at, place, n, run| {
                    let numbers = &mut buffer[at - start..at - start + n];
                    x.read(place, numbers);
                    divide_block(
                        numbers,
                        given(parameters.scales, run, n, 1.0),
                        how.precision,
                    );
                    let zeros = given(parameters.zeros, run, n, 0.0);
                    match range_of(to) {
                        Some((low, high)) => round_block(numbers, zeros, low, high),
                        None => add_block(numbers, zeros),
                    }
                },
            );
            let bytes = (start - range.start) / per * width;
            write(to, &buffer[..end - start], rounding, &mut part[bytes..]);
        }
    })?)
}

/// Lanes in which extremes are looked for.
const LANES: usize = 16;

multiversion! {
    fn widen_span<>(x: &[f32], low: &mut [f32; LANES], high: &mut [f32; LANES]) {
        let (whole, rest) = x.as_chunks::<LANES>();
        for x in whole {
            for i in 0..LANES {
                low[i] = if x[i] < low[i] { x[i] } else { low[i] };
                high[i] = if x[i] > high[i] { x[i] } else { high[i] };
            }
        }
        for x in rest {
            low[0] = if *x < low[0] { *x } else { low[0] };
            high[0] = if *x > high[0] { *x } else { high[0] };
        }
    }
}

/// The least and the greatest of the numbers and zero, except NaN.
pub fn span(exec: &Exec, x: &[f32]) -> Result<(f32, f32)> {
    let (mut low, mut high) = ([0.0; LANES], [0.0; LANES]);
    for range in pieces(exec, x.len(), PIECE) {
        widen_span(&x[range], &mut low, &mut high);
    }
    exec.check()?;
    Ok((
        low.into_iter().fold(0.0, f32::min),
        high.into_iter().fold(0.0, f32::max),
    ))
}
