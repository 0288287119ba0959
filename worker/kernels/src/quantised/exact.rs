//! Exact sums of products of whole numbers, by way of f32.

use crate::Exec;
use crate::error::Result;
use crate::multiversion::multiversion;
use crate::split::{GRAIN, tiles};

/// How many products of numbers of at most these magnitudes an f32 can sum without rounding, in any order.
pub fn exact_depth(a: u32, b: u32) -> usize {
    let product = u64::from(a).saturating_mul(b.into()).max(1);
    ((1u64 << 24) / product).max(1) as usize
}

multiversion! {
    fn add_tile<>(part: &[f32], sums: &mut [i32]) {
        let n = part.len().min(sums.len());
        let (part, sums) = (&part[..n], &mut sums[..n]);
        for i in 0..n {
            sums[i] = sums[i].wrapping_add(part[i] as i32);
        }
    }
}

/// `sums[i] += part[i]`, which are whole numbers of at most 24 bits; sums wrap.
pub fn add_exact(exec: &Exec, part: &[f32], sums: &mut [i32]) -> Result {
    assert_eq!(part.len(), sums.len(), "partial sums and sums");
    Ok(tiles(exec, sums, 1, GRAIN, |range, sums| {
        add_tile(&part[range], sums)
    })?)
}
