//! Random numbers without state: element i follows from key, stream and i.
//!
//! ```text
//! (key, stream, i / n) --Philox4x32-10--> four words --> n elements: 4 computed in f32, or 2 in f64
//! ```
//!
//! `PhiloxUniform` and `PhiloxNormal` of the op registry define which word gives what.
//!
//! Invariants
//! 1. Tiles and the pieces of a tile begin at the first element of a block, so no element depends on where tiles begin.
//! 2. Uniform numbers are below `high`, whatever the type they are rounded to.

mod draw;
mod philox;

pub use philox::Seed;

use crate::Exec;
use crate::compiled::compiled_floats;
use crate::element::{Float, Number, bf16, f16};
use crate::error::Result;
use crate::multiversion::multiversion;
use crate::split::{GRAIN, tiles};
use draw::Draw;
use philox::{BLOCKS, Words};

/// A standard distribution.
#[derive(Debug, Clone, Copy)]
enum Law {
    Uniform,
    Normal,
}

/// The map from a number x of a standard distribution to the result: `factor * x + offset`, at most `most`.
#[derive(Debug, Clone, Copy)]
struct Scaling<W> {
    factor: W,
    offset: W,
    most: W,
}

multiversion! {
    fn standard<W: Draw>(law: Law, words: &Words, y: &mut [W]) {
        match law {
            Law::Uniform => W::uniform(words, y),
            Law::Normal => W::normal(words, y),
        }
    }
}

multiversion! {
    fn scaled<T: Float>(x: &[T::Wide], by: Scaling<T::Wide>, y: &mut [T]) {
        let n = x.len().min(y.len());
        let (x, y) = (&x[..n], &mut y[..n]);
        for i in 0..n {
            let v = T::Wide::fma(x[i], by.factor, by.offset);
            y[i] = T::narrow(if v > by.most { by.most } else { v });
        }
    }
}

/// Fills `y` in tiles of `grain` elements; `grain` is a whole number of blocks.
fn fill<T: Float>(
    exec: &Exec,
    grain: usize,
    seed: Seed,
    law: Law,
    by: Scaling<T::Wide>,
    y: &mut [T],
) -> Result
where
    T::Wide: Draw,
{
    let per_block = T::Wide::PER_BLOCK;
    Ok(tiles(exec, y, 1, grain, |range, part| {
        let mut words: Words = [[0; BLOCKS]; 4];
        let mut wide = [T::Wide::ZERO; 4 * BLOCKS];
        let mut first = (range.start / per_block) as u64;
        for part in part.chunks_mut(BLOCKS * per_block) {
            let count = part.len().div_ceil(per_block);
            philox::blocks(seed, first, count, &mut words);
            let wide = &mut wide[..count * per_block];
            standard(law, &words, wide);
            scaled(wide, by, part);
            first += count as u64;
        }
    })?)
}

/// A type in which the next smaller number can be computed; `self` must be finite.
trait Below: Float {
    fn below(self) -> Self;
}

macro_rules! below {
    ($($t:ty),*) => {$(
        impl Below for $t {
            fn below(self) -> $t {
                let bits = self.to_bits();
                let sign = 1 << (8 * size_of::<$t>() - 1);
                <$t>::from_bits(match bits & !sign {
                    0 => sign | 1,
                    _ if bits & sign == 0 => bits - 1,
                    _ => bits + 1,
                })
            }
        }
    )*};
}
below!(f32, f64, f16, bf16);

fn uniform_scaling<T: Below>(low: f64, high: f64) -> Scaling<T::Wide> {
    let (low, high) = (T::from_f64(low), T::from_f64(high));
    let most = if low < high { high.below() } else { low };
    Scaling {
        factor: T::Wide::sub(high.widen(), low.widen()),
        offset: low.widen(),
        most: most.widen(),
    }
}

fn normal_scaling<T: Float>(mean: f64, scale: f64) -> Scaling<T::Wide> {
    Scaling {
        factor: T::Wide::from_f64(scale),
        offset: T::Wide::from_f64(mean),
        most: T::Wide::HIGHEST,
    }
}

fn uniform_any<T: Below>(exec: &Exec, seed: Seed, low: f64, high: f64, y: &mut [T]) -> Result
where
    T::Wide: Draw,
{
    fill(
        exec,
        GRAIN,
        seed,
        Law::Uniform,
        uniform_scaling::<T>(low, high),
        y,
    )
}

fn normal_any<T: Float>(exec: &Exec, seed: Seed, mean: f64, scale: f64, y: &mut [T]) -> Result
where
    T::Wide: Draw,
{
    fill(
        exec,
        GRAIN,
        seed,
        Law::Normal,
        normal_scaling::<T>(mean, scale),
        y,
    )
}

compiled_floats! {
    /// Random numbers of a type.
    trait RandomKernels {
        fn random_uniform(exec: &Exec, seed: Seed, low: f64, high: f64, y: &mut [Self]) = uniform_any;
        fn random_normal(exec: &Exec, seed: Seed, mean: f64, scale: f64, y: &mut [Self]) = normal_any;
    }
}

/// Fills `y` with numbers uniform in [low, high). Both bounds are rounded to `T`; where they are then equal, every
/// number is that bound. The bounds and their difference must be finite.
pub fn uniform<T: Float>(exec: &Exec, seed: Seed, low: f64, high: f64, y: &mut [T]) -> Result {
    T::random_uniform(exec, seed, low, high, y)
}

/// Fills `y` with normal numbers of this mean and of standard deviation `scale`.
pub fn normal<T: Float>(exec: &Exec, seed: Seed, mean: f64, scale: f64, y: &mut [T]) -> Result {
    T::random_normal(exec, seed, mean, scale, y)
}

#[cfg(test)]
mod tests;
