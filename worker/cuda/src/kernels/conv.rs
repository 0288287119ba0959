//! Convolutions over one to three spatial axes, with what follows them: `Conv` and `FusedConv`.
//!
//! Each element is one chain of fused multiply-adds over (channel of the group, taps) in ascending order from zero, in f32, as on
//! the CPU, and padding is a zero like any other. So its bits depend on its window and its filter alone. A block makes a tile of 64
//! filters by 64 windows, a thread 4 by 4 of them. Where a group has few filters, a thread makes one element at a time.

use convoke_common::error::Result;
use convoke_graph::DType;
use convoke_graph::graph::Attrs;
use convoke_graph::ops::attrs::{Activation, ConvAttrs, flag};
use convoke_graph::ops::packing::packed_conv_len;
use convoke_graph::ops::{ConvOp, FusedOp};
use convoke_worker::device::DeviceOp;

use super::activation::{self, Chosen};
use super::args::Arguments;
use super::product::{MOST_TILES, TILE};
use super::window::{SPATIAL, set_windows, spatial};
use super::{
    Call, Given, Planned, Template, Work, blocks_for, count, dtype_of, in_f32, misfit, op_error,
    source, type_name,
};

/// Rows of a panel of packed weights; the last panel of a group has as many as are left. This is the layout of
/// `convoke_kernels::conv::pack_conv_weights_into`.
const PANEL: usize = 8;

/// Groups with fewer filters are not made in tiles, most of which would be empty.
const FEW_FILTERS: usize = 16;

/// The family's text, behind those of windows and of activations.
const TEXT: &str = r"
DEVICE i64 weight_at(const Arguments& a, i64 group, i64 row, i64 k) {
  const i64 m = a.sizes[0], depth = a.sizes[2];
  if (!a.sizes[6]) return (group * m + row) * depth + k;
  i64 first = row / PANEL * PANEL;
  i64 rows = m - first < PANEL ? m - first : PANEL;
  return (group * m + first) * depth + k * rows + (row - first);
}
DEVICE f32 finished(const Arguments& a, f32 x, i64 channel, i64 at) {
  if (a.sizes[7]) x = x + widen(((const X*)a.inputs[2])[channel]);
  if (a.sizes[8]) x = x + widen(((const X*)a.inputs[3])[at]);
  return activated(a.sizes[10], x, (f32)a.numbers[0], (f32)a.numbers[1]);
}
DEVICE void one_by_one(const Arguments& a) {
  const i64 m = a.sizes[0], n = a.sizes[1], depth = a.sizes[2], groups = a.sizes[3];
  const i64 plane = a.dims[0] * a.dims[1] * a.dims[2], taps = a.dims[3] * a.dims[4] * a.dims[5];
  for (i64 i = first_element(); i < a.elements; i += element_step()) {
    i64 matrix = i / n / m, row = i / n % m, group = matrix % groups;
    const X* x = (const X*)a.inputs[0] + matrix * (depth / taps) * plane;
    const W* w = (const W*)a.inputs[1];
    const Corner corner = corner_of(a, i % n);
    f32 sum = 0.0f;
    i64 k = 0;
    for (i64 c = 0; c < depth / taps; c++)
      for (i64 kd = 0; kd < a.dims[3]; kd++)
        for (i64 kh = 0; kh < a.dims[4]; kh++)
          for (i64 kw = 0; kw < a.dims[5]; kw++) {
            i64 at = place_of(a, corner, kd, kh, kw);
            f32 element = at < 0 ? 0.0f : widen(x[c * plane + at]);
            sum = fmaf(widen(w[weight_at(a, group, row, k++)]), element, sum);
          }
    ((X*)a.output)[i] = narrow(X{}, finished(a, sum, group * m + row, i));
  }
}
KERNEL(const Arguments a) {
  SHARED f32 left[16][65];
  SHARED f32 right[16][65];
  SHARED i64 channels[16];
  SHARED i64 taps[16][3];
  if (a.sizes[9]) {
    one_by_one(a);
    return;
  }
  const i64 m = a.sizes[0], n = a.sizes[1], depth = a.sizes[2], groups = a.sizes[3];
  const i64 plane = a.dims[0] * a.dims[1] * a.dims[2], volume = a.dims[3] * a.dims[4] * a.dims[5];
  const int own_row = threadIdx.x / 16 * 4, own_column = threadIdx.x % 16 * 4;
  const W* w = (const W*)a.inputs[1];
  for (i64 tile = blockIdx.x; tile < a.elements; tile += gridDim.x) {
    i64 column0 = tile % a.sizes[5] * 64;
    i64 row0 = tile / a.sizes[5] % a.sizes[4] * 64;
    i64 matrix = tile / a.sizes[5] / a.sizes[4], group = matrix % groups;
    const X* x = (const X*)a.inputs[0] + matrix * (depth / volume) * plane;
    i64 window = column0 + threadIdx.x % 64;
    const Corner corner = corner_of(a, window);
    f32 sum[4][4] = {};
    for (i64 k0 = 0; k0 < depth; k0 += 16) {
      int here = depth - k0 < 16 ? (int)(depth - k0) : 16;
      __syncthreads();
      if (threadIdx.x < here) {
        i64 k = k0 + threadIdx.x, tap = k % volume;
        channels[threadIdx.x] = k / volume * plane;
        taps[threadIdx.x][0] = tap / a.dims[5] / a.dims[4];
        taps[threadIdx.x][1] = tap / a.dims[5] % a.dims[4];
        taps[threadIdx.x][2] = tap % a.dims[5];
      }
      for (int i = threadIdx.x; i < 16 * 64; i += 256) {
        int row = i / 16, k = i % 16;
        bool in = k < here && row0 + row < m;
        left[k][row] = in ? widen(w[weight_at(a, group, row0 + row, k0 + k)]) : 0.0f;
      }
      __syncthreads();
      for (int k = threadIdx.x / 64; k < 16; k += 4) {
        i64 at = k < here && window < n ? place_of(a, corner, taps[k][0], taps[k][1], taps[k][2]) : -1;
        right[k][threadIdx.x % 64] = at < 0 ? 0.0f : widen(x[channels[k] + at]);
      }
      __syncthreads();
      add_products(left, right, here, own_row, own_column, sum);
    }
    for (int i = 0; i < 4; i++)
      for (int j = 0; j < 4; j++) {
        i64 row = row0 + own_row + i, column = column0 + own_column + j;
        if (row < m && column < n) {
          i64 at = (matrix * m + row) * n + column;
          ((X*)a.output)[at] = narrow(X{}, finished(a, sum[i][j], group * m + row, at));
        }
      }
  }
}
";

/// The part of a convolution that its op decides.
struct Convolution {
    x: DType,
    w: DType,
    attrs: Attrs,
    /// The shape of packed weights.
    packed: Option<Vec<usize>>,
    activation: Chosen,
}

/// The kernel of a convolution.
pub(super) fn plain(conv: ConvOp, op: &DeviceOp<'_>) -> Option<Box<dyn Template>> {
    let ConvOp::Conv = conv;
    made(op, None, activation::NONE)
}

/// The kernel of a convolution with what follows it.
pub(super) fn fused(fused: FusedOp, op: &DeviceOp<'_>) -> Option<Box<dyn Template>> {
    if fused != FusedOp::FusedConv {
        return None;
    }
    let packed = match flag(op.attrs, "packed", false) {
        true => {
            let dims = op.attrs.ints("w_shape")?.iter();
            let dims: Option<Vec<usize>> = dims.map(|d| usize::try_from(*d).ok()).collect();
            Some(dims?)
        }
        false => None,
    };
    made(
        op,
        packed,
        activation::chosen(Activation::new(op.attrs).ok()?)?,
    )
}

fn made(
    op: &DeviceOp<'_>,
    packed: Option<Vec<usize>>,
    activation: Chosen,
) -> Option<Box<dyn Template>> {
    let (x, w) = (dtype_of(op, 0)?, dtype_of(op, 1)?);
    let same = |i| dtype_of(op, i).is_none_or(|d| d == x);
    (in_f32(x) && in_f32(w) && same(2) && same(3)).then(|| {
        Box::new(Convolution {
            x,
            w,
            attrs: op.attrs.clone(),
            packed,
            activation,
        }) as _
    })
}

impl Convolution {
    /// The shape of the weights, as they were before they were packed.
    fn weights<'a>(&'a self, planned: &Planned<'a>, group: usize) -> Result<&'a [usize]> {
        let (_, given) = planned.device(1)?;
        let Some(shape) = &self.packed else {
            return Ok(given);
        };
        let len = match shape.as_slice() {
            [m, depth, kernel @ ..] => packed_conv_len(*m, *depth, count(kernel), group),
            _ => None,
        };
        match len == Some(count(given)) {
            true => Ok(shape),
            false => Err(misfit(format!(
                "{given:?} are not packed weights {shape:?}"
            ))),
        }
    }

    /// Whether operand `i` is given, with so many elements.
    fn addend(&self, planned: &Planned<'_>, i: usize, elements: usize) -> Result<bool> {
        match planned.operands.get(i) {
            None | Some(Given::Nothing) => Ok(false),
            Some(_) if count(planned.device(i)?.1) == elements => Ok(true),
            Some(_) => Err(misfit(format!("operand {i} must have {elements} elements"))),
        }
    }
}

impl Template for Convolution {
    fn source(&self) -> Option<String> {
        let panel = PANEL.to_string();
        let definitions = [
            ("X", type_name(self.x)?),
            ("W", type_name(self.w)?),
            ("PANEL", &*panel),
        ];
        let family = format!("{}{}{TEXT}", super::window::TEXT, activation::text());
        Some(source(&definitions, &family))
    }

    fn plan(&self, planned: &Planned<'_>) -> Result<Work> {
        let group = ConvAttrs::group(&self.attrs).map_err(op_error)?;
        let ((_, x), output) = (planned.device(0)?, planned.output(0)?);
        let w = self.weights(planned, group)?;
        let fits = |kernel: &[usize]| (1..=SPATIAL).contains(&kernel.len());
        let ([batch, channels, input @ ..], [filters, in_group, kernel @ ..]) = (x, w) else {
            return Err(misfit(format!("{x:?} cannot be convolved by {w:?}")));
        };
        let depth = in_group.checked_mul(count(kernel));
        let depth = depth.filter(|_| fits(kernel) && in_group * group == *channels);
        let depth = depth.ok_or_else(|| misfit(format!("{x:?} cannot be convolved by {w:?}")))?;
        let elements = count(output);
        if elements == 0 {
            return Ok(Work::none());
        }
        let attrs = ConvAttrs::new(&self.attrs, kernel).map_err(op_error)?;
        let (m, n) = (filters / group, count(spatial(output)));
        let matrices = batch * group;
        let few = m < FEW_FILTERS;
        let (rows, columns) = (m.div_ceil(TILE), n.div_ceil(TILE));
        let tiles = matrices * rows * columns;
        let mut arguments = Arguments::of(if few { elements } else { tiles });
        set_windows(&mut arguments, &attrs.window, input, output)?;
        let sizes = [m, n, depth, group, rows, columns].map(|s| s as i64);
        arguments.sizes[..6].copy_from_slice(&sizes);
        let bias = self.addend(planned, 2, *filters)?;
        let residual = self.addend(planned, 3, elements)?;
        let flags = [self.packed.is_some(), bias, residual, few].map(i64::from);
        arguments.sizes[6..10].copy_from_slice(&flags);
        arguments.sizes[10] = self.activation.number;
        arguments.numbers[..2].copy_from_slice(&self.activation.parameters);
        let blocks = match few {
            true => blocks_for(elements),
            false => tiles.min(MOST_TILES) as u32,
        };
        let mut call = Call::of(blocks, arguments, 2);
        call.reads(2, bias);
        call.reads(3, residual);
        Ok(Work::one(call))
    }
}
