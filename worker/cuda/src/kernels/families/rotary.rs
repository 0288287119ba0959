//! RotaryEmbedding: one thread per element, which reads the pair that the element belongs to.

use convoke_common::error::Result;
use convoke_graph::DType;
use convoke_graph::ops::PositionOp;
use convoke_graph::ops::attrs::RotaryAttrs;
use convoke_worker::device::DeviceOp;

use crate::kernels::args::Arguments;
use crate::kernels::launch::{
    Call, LaunchSignature, Template, Work, blocks_for, count, dtype_of, misfit, op_error,
};
use crate::kernels::source::{in_f32, source, type_name};

/// `a.sizes` are: elements of a head, pairs that are rotated, the last two axes before the elements of a head, rows of the
/// caches, the steps from one batch and from one token to the next, whether the tokens are the last axis before the
/// elements of a head, and whether the elements of a pair are neighbours.
const TEXT: &str = r"
KERNEL(0) {
  i64 size = a.sizes[0], half = a.sizes[1], middle = a.sizes[2], inner = a.sizes[3], rows = a.sizes[4];
  const X* data = (const X*)a.inputs[0];
  for (i64 i = first_element(); i < a.elements; i += element_step()) {
    i64 head = i / size, k = i - head * size;
    const X* x = data + head * size;
    if (k >= 2 * half) {
      ((X*)a.output)[i] = x[k];
      continue;
    }
    i64 outer = head / inner, last = head - outer * inner, batch = outer / middle;
    i64 token = a.sizes[7] ? last : outer - batch * middle;
    i64 row = batch * a.sizes[5] + token * a.sizes[6];
    if (PLACES) {
      row = ((const i64*)a.inputs[3])[row];
      if (row < 0) row += rows;
      if (row < 0 || row >= rows) {
        *a.fault = 1;
        continue;
      }
    }
    bool neighbours = a.sizes[8] != 0, is_second = neighbours ? k % 2 == 1 : k >= half;
    i64 pair = neighbours ? k / 2 : (is_second ? k - half : k);
    f32 first = widen(x[neighbours ? 2 * pair : pair]), second = widen(x[neighbours ? 2 * pair + 1 : pair + half]);
    f32 cos = widen(((const X*)a.inputs[1])[row * half + pair]), sin = widen(((const X*)a.inputs[2])[row * half + pair]);
    f32 made = is_second ? sin * first + cos * second : cos * first - sin * second;
    ((X*)a.output)[i] = narrow(X{}, made);
  }
}
";

/// A rotary embedding.
struct Rotary {
    dtype: DType,
    attrs: RotaryAttrs,
    /// Whether positions are given.
    places: bool,
}

/// The kernel of an op of positions.
pub(super) fn position(position: PositionOp, op: &DeviceOp<'_>) -> Option<Box<dyn Template>> {
    let dtype = dtype_of(op, 0).filter(|d| in_f32(*d))?;
    match position {
        PositionOp::RotaryEmbedding => Some(Box::new(Rotary {
            dtype,
            attrs: RotaryAttrs::new(op.attrs).ok()?,
            places: dtype_of(op, 3).is_some(),
        })),
    }
}

impl Template for Rotary {
    fn source(&self) -> Option<String> {
        let places = if self.places { "1" } else { "0" };
        let definitions = [("X", type_name(self.dtype)?), ("PLACES", places)];
        Some(source(&definitions, TEXT))
    }

    fn plan(&self, planned: &LaunchSignature<'_>) -> Result<Work> {
        let ((_, x), (_, cos), (_, sin)) =
            (planned.device(0)?, planned.device(1)?, planned.device(2)?);
        let elements = count(planned.output(0)?);
        if elements == 0 {
            return Ok(Work::none());
        }
        let layout = self.attrs.layout(x).map_err(op_error)?;
        let places = match self.places {
            true => Some(planned.device(3)?.1),
            false => None,
        };
        let strides = layout.strides(cos, sin, places);
        let strides = strides.ok_or_else(|| {
            misfit(format!(
                "{x:?}, {cos:?}, {sin:?} and {places:?} do not fit together"
            ))
        })?;
        let (middle, inner) = match layout.heads_first {
            true => (layout.heads, layout.tokens),
            false => (layout.tokens, layout.heads),
        };
        let mut arguments = Arguments::of(elements);
        let rows = count(cos).checked_div(layout.half).unwrap_or(0);
        let sizes = [
            layout.size,
            layout.half,
            middle,
            inner,
            rows,
            strides[0],
            strides[1],
        ];
        let flags = [layout.heads_first, self.attrs.interleaved].map(usize::from);
        for (to, size) in arguments
            .sizes
            .iter_mut()
            .zip(sizes.into_iter().chain(flags))
        {
            *to = size as i64;
        }
        let operands = if self.places { 4 } else { 3 };
        let call = Call::of(blocks_for(elements), arguments, operands);
        Ok(Work::one(Call {
            faults: self.places,
            ..call
        }))
    }
}
