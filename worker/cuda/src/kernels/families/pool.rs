//! Pools over windows of one to three spatial axes: `MaxPool` without places, and `AveragePool`. Those over whole planes are rows.
//!
//! A thread makes an element from the taps of its window in ascending order, as the CPU does.

use convoke_common::error::Result;
use convoke_graph::DType;
use convoke_graph::graph::Attrs;
use convoke_graph::ops::PoolOp;
use convoke_graph::ops::attrs::PoolAttrs;
use convoke_worker::device::DeviceOp;

use super::rows;
use super::window::{SPATIAL, set_windows, spatial};
use crate::kernels::args::Arguments;
use crate::kernels::launch::{
    Call, LaunchSignature, Template, Work, blocks_for, count, dtype_of, misfit, op_error,
};
use crate::kernels::source::{in_f32, source, type_name};

/// The family's text. `FROM` is where the result starts, `PUSH` takes `x` into `s`, and `LAST` is what `s` becomes, of `inside` taps
/// within the input and `padded` within the input and its padding.
const TEXT: &str = r"
// The taps along an axis before the end of the input and of the padding behind it.
DEVICE i64 padded_taps(const Arguments& a, i64 corner, int axis) {
  i64 room = a.sizes[1 + axis] - corner, dilation = a.strides[1][axis];
  i64 taps = room <= 0 ? 0 : (room + dilation - 1) / dilation;
  return taps < a.dims[3 + axis] ? taps : a.dims[3 + axis];
}
KERNEL(0) {
  const i64 n = a.sizes[0], plane = a.dims[0] * a.dims[1] * a.dims[2];
  for (i64 i = first_element(); i < a.elements; i += element_step()) {
    const X* data = (const X*)a.inputs[0] + i / n * plane;
    const Corner corner = corner_of(a, i % n);
    f32 s = FROM;
    i64 inside = 0;
    for (i64 kd = 0; kd < a.dims[3]; kd++)
      for (i64 kh = 0; kh < a.dims[4]; kh++)
        for (i64 kw = 0; kw < a.dims[5]; kw++) {
          i64 at = place_of(a, corner, kd, kh, kw);
          if (at < 0) continue;
          f32 x = widen(data[at]);
          s = PUSH;
          inside++;
        }
    i64 padded = padded_taps(a, corner.d, 0) * padded_taps(a, corner.h, 1) * padded_taps(a, corner.w, 2);
    (void)inside, (void)padded;
    ((X*)a.output)[i] = narrow(X{}, LAST);
  }
}
";

struct Pool {
    dtype: DType,
    attrs: Attrs,
    definitions: [(&'static str, &'static str); 3],
}

/// The kernel of a pool.
pub(super) fn pool(pool: PoolOp, op: &DeviceOp<'_>) -> Option<Box<dyn Template>> {
    let dtype = dtype_of(op, 0).filter(|d| in_f32(*d))?;
    let of = |from, push, last| [("FROM", from), ("PUSH", push), ("LAST", last)];
    let definitions = match pool {
        PoolOp::MaxPool => of("-INFINITE", "greatest(s, x)", "s"),
        PoolOp::AveragePool => match op.attrs.int("count_include_pad", 0) {
            0 => of("0.0f", "s + x", "s / (f32)inside"),
            _ => of("0.0f", "s + x", "s / (f32)padded"),
        },
        PoolOp::GlobalAveragePool => return rows::planes(dtype, "0.0f", "Sum", "s / n"),
        PoolOp::GlobalMaxPool => return rows::planes(dtype, "-INFINITE", "Greatest", "s"),
        PoolOp::LpPool | PoolOp::GlobalLpPool => return None,
    };
    Some(Box::new(Pool {
        dtype,
        attrs: op.attrs.clone(),
        definitions,
    }))
}

impl Template for Pool {
    fn source(&self) -> Option<String> {
        let mut definitions = self.definitions.to_vec();
        definitions.push(("X", type_name(self.dtype)?));
        Some(source(
            &definitions,
            &format!("{}{TEXT}", super::window::TEXT),
        ))
    }

    fn plan(&self, planned: &LaunchSignature<'_>) -> Result<Work> {
        let ((_, x), output) = (planned.device(0)?, planned.output(0)?);
        let elements = count(output);
        if elements == 0 {
            return Ok(Work::none());
        }
        let input = spatial(x);
        if !(1..=SPATIAL).contains(&input.len()) {
            return Err(misfit(format!(
                "{x:?} has no windows of 1 to {SPATIAL} axes"
            )));
        }
        let window = PoolAttrs::new(&self.attrs, input.len())
            .map_err(op_error)?
            .window;
        let mut arguments = Arguments::of(elements);
        set_windows(&mut arguments, &window, input, output)?;
        arguments.sizes[0] = count(spatial(output)) as i64;
        arguments.sizes[1..=SPATIAL].fill(1);
        for (axis, len) in input.iter().enumerate() {
            let end = len.saturating_add(window.pads(axis, *len).1);
            arguments.sizes[1 + SPATIAL - input.len() + axis] = end as i64;
        }
        Ok(Work::one(Call::of(blocks_for(elements), arguments, 1)))
    }
}
