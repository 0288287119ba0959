//! Blocks of outputs in plain loops, which serve every geometry and processor.

use super::{Block, Rows};

/// Outputs whose sums are kept at a time.
const LANES: usize = 64;

/// Computes a block.
///
/// # Safety
/// The window covers the inputs of all steps, and nobody else touches the outputs.
pub(super) unsafe fn block(b: &Block<'_>) {
    let (taps, places) = (
        &b.steps.taps[..b.steps.count],
        &b.steps.places[..b.steps.count],
    );
    for row in 0..b.rows {
        for x in (0..b.cols).step_by(LANES) {
            let mut sums = [b.constant; LANES];
            let sums = &mut sums[..LANES.min(b.cols - x)];
            for (tap, place) in taps.iter().zip(places) {
                let from = b.window.wrapping_add(row * b.row + x * b.stride + place);
                let reach = (sums.len() - 1) * b.stride + 1;
                // SAFETY: the caller's contract.
                let from = unsafe { std::slice::from_raw_parts(from, reach) };
                for (i, sum) in sums.iter_mut().enumerate() {
                    let x = i32::from(from[i * b.stride]);
                    *sum = sum.wrapping_add(tap.wrapping_mul(x));
                }
            }
            // SAFETY: the outputs are those of the block.
            unsafe {
                match b.out {
                    Rows::Sums { start, pitch } => {
                        let to = start.wrapping_add(row * pitch + x);
                        std::slice::from_raw_parts_mut(to, sums.len()).copy_from_slice(sums);
                    }
                    Rows::Codes { start, pitch, how } => {
                        let to = start.wrapping_add(row * pitch + x);
                        how.write(sums, std::slice::from_raw_parts_mut(to, sums.len()));
                    }
                }
            }
        }
    }
}
