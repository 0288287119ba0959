//! What follows the sums of a convolution of numbers of 16 bits: each function gets numbers that were rounded, as separate ops do.

use crate::element::{Float, canonical_nan};
use crate::gemm::Activation;
use crate::multiversion::multiversion;
use crate::split::{GRAIN, tiles2};
use crate::{Cancelled, Exec};

/// Numbers that are finished at a time.
const PIECE: usize = 512;

/// What follows the sums.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NarrowEnding {
    /// The function of the rounded sums.
    pub activation: Activation,
    /// Whether the result is the product of the rounded sum and the rounded function of it.
    pub gates: bool,
}

impl NarrowEnding {
    /// The ending that only rounds.
    pub const NONE: NarrowEnding = NarrowEnding {
        activation: Activation::None,
        gates: false,
    };

    /// Writes the results of all sums, which are overwritten. Both slices have the same length.
    pub fn finish_all<T: Float<Wide = f32>>(
        self,
        exec: &Exec,
        sums: &mut [f32],
        to: &mut [T],
    ) -> Result<(), Cancelled> {
        let n = to.len();
        tiles2(exec, (sums, 1), (to, 1), n, GRAIN, |_, sums, to| {
            self.finish(sums, to);
        })
    }

    /// Writes the results of sums, which are overwritten. Both slices have the same length.
    pub(super) fn finish<T: Float<Wide = f32>>(self, sums: &mut [f32], to: &mut [T]) {
        match self.activation {
            Activation::None => T::narrow_run(sums, to),
            _ => finish(self, sums, to),
        }
    }
}

multiversion! {
    fn finish<T: Float<Wide = f32>>(ending: NarrowEnding, sums: &mut [f32], to: &mut [T]) {
        let mut copy = [0f32; PIECE];
        for (sums, to) in sums.chunks_mut(PIECE).zip(to.chunks_mut(PIECE)) {
            let n = sums.len();
            T::round_run(sums);
            let part = match ending.gates {
                true => {
                    copy[..n].copy_from_slice(sums);
                    &mut copy[..n]
                }
                false => &mut *sums,
            };
            ending.activation.apply(part);
            if ending.gates {
                let of = &mut copy[..n];
                T::round_run(of);
                for i in 0..n {
                    sums[i] = canonical_nan(sums[i] * of[i]);
                }
            }
            T::narrow_run(sums, to);
        }
    }
}
