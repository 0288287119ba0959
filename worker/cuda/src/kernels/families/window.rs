//! Sliding windows over one to three spatial axes: what convolutions and pools have in common.

use convoke_common::error::Result;
use convoke_graph::ops::attrs::Window;

use crate::kernels::args::Arguments;
use crate::kernels::launch::misfit;

/// The most spatial axes. Fewer are preceded by axes of one element.
pub const SPATIAL: usize = 3;

/// The text of windows. Dimensions 0 to 2 are those of the input, 3 to 5 of the kernel, 6 to 8 of the result. The first three strides
/// of operands 0, 1 and 2 are the window's strides, dilations and padding before the input.
pub const TEXT: &str = r"
struct Corner {
  i64 d, h, w;
};
DEVICE Corner corner_of(const Arguments& a, i64 window) {
  i64 w = window % a.dims[8], h = window / a.dims[8] % a.dims[7], d = window / a.dims[8] / a.dims[7];
  return Corner{d * a.strides[0][0] - a.strides[2][0], h * a.strides[0][1] - a.strides[2][1],
                w * a.strides[0][2] - a.strides[2][2]};
}
// The place within a plane of a tap, or -1 where it lies in the padding.
DEVICE i64 place_of(const Arguments& a, const Corner& c, i64 kd, i64 kh, i64 kw) {
  i64 d = c.d + kd * a.strides[1][0], h = c.h + kh * a.strides[1][1], w = c.w + kw * a.strides[1][2];
  bool in = (u64)d < (u64)a.dims[0] && (u64)h < (u64)a.dims[1] && (u64)w < (u64)a.dims[2];
  return in ? (d * a.dims[1] + h) * a.dims[2] + w : -1;
}
";

/// The spatial axes of a shape [N, C, ..].
pub fn spatial(shape: &[usize]) -> &[usize] {
    shape.get(2..).unwrap_or(&[])
}

/// Sets dimensions and windows for an input of these spatial sizes and a result of this shape.
pub fn set_windows(
    arguments: &mut Arguments,
    window: &Window,
    input: &[usize],
    output: &[usize],
) -> Result<()> {
    let (rank, output) = (input.len(), spatial(output));
    let one_rank = [output.len(), window.kernel.len()]
        .iter()
        .all(|r| *r == rank);
    if !one_rank || !(1..=SPATIAL).contains(&rank) {
        return Err(misfit(format!(
            "windows over {input:?} that make {output:?} have 1 to {SPATIAL} axes"
        )));
    }
    arguments.dims[..3 * SPATIAL].fill(1);
    for strides in &mut arguments.strides[..2] {
        strides[..SPATIAL].fill(1);
    }
    for axis in 0..rank {
        let at = SPATIAL - rank + axis;
        arguments.dims[at] = input[axis] as i64;
        arguments.dims[SPATIAL + at] = window.kernel[axis] as i64;
        arguments.dims[2 * SPATIAL + at] = output[axis] as i64;
        arguments.strides[0][at] = window.strides[axis] as i64;
        arguments.strides[1][at] = window.dilations[axis] as i64;
        arguments.strides[2][at] = window.pads(axis, input[axis]).0 as i64;
    }
    Ok(())
}
