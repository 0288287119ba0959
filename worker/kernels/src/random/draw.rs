//! Conversion of random words to the standard distributions: uniform in [0, 1), and normal with mean 0 and deviation 1.

use super::philox::{BLOCKS, Words};
use crate::element::Number;
use crate::math;

/// A type that random numbers are computed in.
pub(super) trait Draw: Number {
    /// How many numbers one block of four words gives.
    const PER_BLOCK: usize;

    /// Fills `y` with numbers uniform in [0, 1); its length is a whole number of blocks.
    fn uniform(words: &Words, y: &mut [Self]);
    /// Fills `y` with normal numbers; its length is a whole number of blocks.
    fn normal(words: &Words, y: &mut [Self]);
}

/// 2^-n.
const fn below_one(n: u64) -> f64 {
    f64::from_bits((1023 - n) << 52)
}

impl Draw for f32 {
    const PER_BLOCK: usize = 4;

    #[inline(always)]
    fn uniform(words: &Words, y: &mut [f32]) {
        const STEP: f32 = below_one(24) as f32;
        for j in 0..(y.len() / 4).min(BLOCKS) {
            for k in 0..4 {
                y[4 * j + k] = (words[k][j] >> 8) as f32 * STEP;
            }
        }
    }

    #[inline(always)]
    fn normal(words: &Words, y: &mut [f32]) {
        const STEP: f32 = below_one(32) as f32;
        const TURN: f32 = std::f32::consts::TAU * below_one(24) as f32;
        for j in 0..(y.len() / 4).min(BLOCKS) {
            for k in [0, 2] {
                // u lies in (0, 1], so that its logarithm is finite.
                let u = (words[k][j] as f32).mul_add(STEP, STEP / 2.0);
                let radius = (-2.0 * math::ln(u)).sqrt();
                let angle = (words[k + 1][j] >> 8) as f32 * TURN;
                y[4 * j + k] = radius * math::cos_fast(angle);
                y[4 * j + k + 1] = radius * math::sin_fast(angle);
            }
        }
    }
}

/// The top 53 bits of the 64-bit number with these halves.
#[inline(always)]
fn top(low: u32, high: u32) -> u64 {
    (u64::from(high) << 32 | u64::from(low)) >> 11
}

impl Draw for f64 {
    const PER_BLOCK: usize = 2;

    #[inline(always)]
    fn uniform(words: &Words, y: &mut [f64]) {
        const STEP: f64 = below_one(53);
        for j in 0..(y.len() / 2).min(BLOCKS) {
            for k in 0..2 {
                y[2 * j + k] = top(words[2 * k][j], words[2 * k + 1][j]) as f64 * STEP;
            }
        }
    }

    #[inline(always)]
    fn normal(words: &Words, y: &mut [f64]) {
        const STEP: f64 = below_one(53);
        const TURN: f64 = std::f64::consts::TAU * STEP;
        for j in 0..(y.len() / 2).min(BLOCKS) {
            // u lies in (0, 1], so that its logarithm is finite.
            let u = (top(words[0][j], words[1][j]) + 1) as f64 * STEP;
            let radius = (-2.0 * libm::log(u)).sqrt();
            let angle = top(words[2][j], words[3][j]) as f64 * TURN;
            y[2 * j] = radius * libm::cos(angle);
            y[2 * j + 1] = radius * libm::sin(angle);
        }
    }
}
