//! Convolutions over one to three spatial axes, with their epilogue: `Conv` and `FusedConv`.
//!
//! Each element is a chain over (channel of the group, taps) in ascending order from zero, in f32, and padding is a zero like any
//! other: of fused multiply-adds, as on the CPU. Where input and filters are both f16 or both bf16, it is the sum of eight such chains,
//! one after the other along k, of a tensor core's steps of 16 products. So its bits depend on its window and its filter alone. Filters are the rows of tiles, and windows their columns.
//! Where a group has few filters, a thread makes one element at a time, of multiply-adds whatever the dtypes.

use convoke_common::error::Result;
use convoke_graph::DType;
use convoke_graph::graph::Attrs;
use convoke_graph::ops::attrs::{Activation, ConvAttrs, Window, flag};
use convoke_graph::ops::packing::packed_conv_len;
use convoke_graph::ops::{ConvOp, FusedOp};
use convoke_worker::device::DeviceOp;

use super::activation::{self, ActivationCall};
use super::product::are_halves;
use super::tiles::{self, LeftWalk, RightWalk, Tiles};
use super::window::{SPATIAL, set_windows, spatial};
use crate::kernels::args::Arguments;
use crate::kernels::launch::{
    Call, LaunchSignature, OperandView, Template, Work, blocks_for, count, dtype_of, misfit,
    op_error,
};
use crate::kernels::source::{in_f32, source, type_name};

/// Rows of a panel of packed weights; the last panel of a group has as many as are left. This is the layout of
/// `convoke_kernels::conv::pack_conv_weights_into`.
const PANEL: usize = 8;

/// Groups with fewer filters are not computed in tiles, because most of a tile would be empty.
const FEW_FILTERS: usize = 16;

/// The family's text, between those of windows and activations and that of tiles.
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
#define ONE_BY_ONE
struct Tile {
  i64 row0, column0, matrix, group;
  DEVICE_MEMBER Tile(const Arguments& a, i64 number, int edge) {
    column0 = number % a.sizes[5] * edge;
    row0 = number / a.sizes[5] % a.sizes[4] * edge;
    matrix = number / a.sizes[5] / a.sizes[4];
    group = matrix % a.sizes[3];
  }
};
template <int UNITS>
struct Left : Units<W, UNITS> {
  const W* w;
  i64 m;
  bool packed;
  DEVICE_MEMBER Left(const Arguments& a, const Tile& tile)
      : w((const W*)a.inputs[1] + tile.group * a.sizes[0] * a.sizes[2]), m(a.sizes[0]), packed(a.sizes[6]) {
    this->depth = (int)a.sizes[2];
  }
  DEVICE_MEMBER void begin(int unit, int k, i64 row, int) {
    const bool is_in = row < m;
    if (!packed) return this->set(unit, w + row * this->depth, is_in, k, 1);
    i64 first = row / PANEL * PANEL;
    this->set(unit, w + first * this->depth + (row - first), is_in, k, m - first < PANEL ? (int)(m - first) : PANEL);
  }
};
// A number of k as a channel and a tap.
struct Digits {
  int c, d, h, w;
  DEVICE_MEMBER void of(const Arguments& a, int k) {
    const int kd = (int)a.dims[3], kh = (int)a.dims[4], kw = (int)a.dims[5];
    w = k % kw;
    h = k / kw % kh;
    d = k / kw / kh % kd;
    c = k / kw / kh / kd;
  }
};
// A walk over the elements of windows along k: all windows of a thread are at the same k.
struct Walk {
  const Arguments* arguments;
  const X* x;
  int sizes[3], taps[3], dilations[3], plane, channels;
  bool pointwise;
  Digits own;
  DEVICE_MEMBER Walk(const Arguments& a, const Tile& tile) : arguments(&a) {
    for (int d = 0; d < 3; d++) sizes[d] = (int)a.dims[d], taps[d] = (int)a.dims[3 + d], dilations[d] = (int)a.strides[1][d];
    plane = sizes[0] * sizes[1] * sizes[2];
    channels = (int)(a.sizes[2] / (taps[0] * taps[1] * taps[2]));
    x = (const X*)a.inputs[0] + tile.matrix * channels * plane;
    pointwise = taps[0] * taps[1] * taps[2] == 1;
  }
  // The corner of a window. Beyond the matrix it is so far off that every tap lies in the padding.
  DEVICE_MEMBER void set(int* corner, i64 column) const {
    const Corner first = corner_of(*arguments, column);
    corner[0] = column < arguments->sizes[1] ? (int)first.d : -(1 << 30);
    corner[1] = (int)first.h, corner[2] = (int)first.w;
  }
  // The place within a plane of a tap, or -1 where it lies in the padding.
  DEVICE_MEMBER int place(const int* corner, int kd, int kh, int kw) const {
    const int d = corner[0] + kd * dilations[0], h = corner[1] + kh * dilations[1], w = corner[2] + kw * dilations[2];
    const bool in = (u32)d < (u32)sizes[0] && (u32)h < (u32)sizes[1] && (u32)w < (u32)sizes[2];
    return in ? (d * sizes[1] + h) * sizes[2] + w : -1;
  }
  DEVICE_MEMBER void go(const Digits& by) {
    own.c += by.c;
    own.w += by.w;
    int over = own.w >= taps[2];
    own.w -= over ? taps[2] : 0;
    own.h += by.h + over;
    over = own.h >= taps[1];
    own.h -= over ? taps[1] : 0;
    own.d += by.d + over;
    over = own.d >= taps[0];
    own.d -= over ? taps[0] : 0;
    own.c += over;
  }
  // The element of a channel at a place within its plane.
  DEVICE_MEMBER X element(int channel, int tap) const {
    return read(x + ((i64)channel * plane + tap), channel < channels && tap >= 0);
  }
  // The element of a window.
  DEVICE_MEMBER X element(const int* corner) const { return element(own.c, place(corner, own.d, own.h, own.w)); }
};
// The elements of a thread's window, one after the other: all units of a thread have one column.
template <int UNITS>
struct Right : Walk {
  static const bool wide = false;
  int corner[3], first;
  Digits step, next;
  DEVICE_MEMBER Right(const Arguments& a, const Tile& tile) : Walk(a, tile) { next.of(a, 1); }
  DEVICE_MEMBER void begin(int unit, int k, i64 column, int by) {
    if (unit > 0) return;
    set(corner, column);
    own.of(*arguments, k);
    step.of(*arguments, by - HALVES);
    first = place(corner, 0, 0, 0);
  }
  DEVICE_MEMBER f32 one(int, int) {
    if (pointwise) {
      f32 found = widen(element(own.c, first));
      own.c += step.c;
      return found;
    }
    f32 found = widen(element(corner));
    go(step);
    return found;
  }
#if HALVES
  template <bool WIDE>
  DEVICE_MEMBER u32 pair(int, int) {
    if (pointwise) {
      u32 low = element(own.c, first).bits, high = element(own.c + 1, first).bits;
      own.c += 1 + step.c;
      return low | high << 16;
    }
    u32 low = element(corner).bits;
    go(next);
    u32 high = element(corner).bits;
    go(step);
    return low | high << 16;
  }
#endif
};
#if HALVES
template <int COLUMNS>
struct Columns : Walk {
  static const bool wide = false;
  int corners[COLUMNS][3], firsts[COLUMNS];
  Digits next, rest;
  DEVICE_MEMBER Columns(const Arguments& a, const Tile& tile) : Walk(a, tile) {
    next.of(a, 1);
    rest.of(a, 7);
  }
  DEVICE_MEMBER void begin(int k, i64 column) {
    own.of(*arguments, k);
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
      set(corners[j], column + j * 8);
      firsts[j] = place(corners[j], 0, 0, 0);
    }
  }
  template <bool WIDE>
  DEVICE_MEMBER void four(u32 (*into)[2], int) {
    if (pointwise) {
#pragma unroll
      for (int half = 0; half < 2; half++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
          const int channel = own.c + half * 8;
          into[j][half] = element(channel, firsts[j]).bits | (u32)element(channel + 1, firsts[j]).bits << 16;
        }
      own.c += 16;
      return;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
      for (int j = 0; j < COLUMNS; j++) into[j][half] = element(corners[j]).bits;
      go(next);
#pragma unroll
      for (int j = 0; j < COLUMNS; j++) into[j][half] |= (u32)element(corners[j]).bits << 16;
      go(rest);
    }
  }
};
#endif
DEVICE_CALL void put(const Arguments& a, const Tile& tile, i64 row, i64 column, f32 sum) {
  const i64 m = a.sizes[0], n = a.sizes[1], at = (tile.matrix * m + row) * n + column;
  ((X*)a.output)[at] = narrow(X{}, finished(a, sum, tile.group * m + row, at));
}
";

/// The part of a convolution that its op decides.
struct Convolution {
    x: DType,
    w: DType,
    attrs: Attrs,
    /// The shape of packed weights.
    packed: Option<Vec<usize>>,
    activation: ActivationCall,
}

/// The kernel of a convolution.
pub(super) fn plain(conv: ConvOp, op: &DeviceOp<'_>) -> Option<Box<dyn Template>> {
    let ConvOp::Conv = conv;
    made(op, None, activation::NONE)
}

/// The kernel of a convolution with its epilogue.
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
    activation: ActivationCall,
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
    fn weights<'a>(&'a self, planned: &LaunchSignature<'a>, group: usize) -> Result<&'a [usize]> {
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

    /// Whether operand `i` is given and has this many elements.
    fn addend(&self, planned: &LaunchSignature<'_>, i: usize, elements: usize) -> Result<bool> {
        match planned.operands.get(i) {
            None | Some(OperandView::Nothing) => Ok(false),
            Some(_) if count(planned.device(i)?.1) == elements => Ok(true),
            Some(_) => Err(misfit(format!("operand {i} must have {elements} elements"))),
        }
    }
}

/// Whether the text of tiles, which has 32 bits for places in a plane, can count these.
fn is_counted(window: &Window, input: &[usize], depth: usize) -> bool {
    let extents = window.kernel.iter().zip(&window.dilations);
    let mut sizes = extents.map(|(taps, dilation)| taps.saturating_mul(*dilation));
    sizes.all(|size| size <= tiles::MOST_DEPTH) && count(input).max(depth) <= tiles::MOST_DEPTH
}

impl Template for Convolution {
    fn source(&self) -> Option<String> {
        let panel = PANEL.to_string();
        let halves = if are_halves(self.x, self.w) { "1" } else { "0" };
        let definitions = [
            ("X", type_name(self.x)?),
            ("W", type_name(self.w)?),
            ("PANEL", &*panel),
            ("L", type_name(self.x)?),
            ("HALVES", halves),
        ];
        let parts = [
            super::window::TEXT,
            &activation::text(),
            tiles::UNITS,
            TEXT,
            tiles::TEXT,
        ];
        let family = parts.concat();
        Some(source(&definitions, &family))
    }

    fn functions(&self) -> usize {
        tiles::FUNCTIONS + 1
    }

    fn plan(&self, planned: &LaunchSignature<'_>) -> Result<Work> {
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
        // The text of tiles counts places in a plane by 32 bits, which padding and dilation take part in.
        let few = m < FEW_FILTERS || !is_counted(&attrs.window, input, depth);
        let tiles = Tiles::of(m, n, matrices);
        let mut arguments = Arguments::of(if few { elements } else { tiles.count });
        set_windows(&mut arguments, &attrs.window, input, output)?;
        let sizes = [m, n, depth, group, tiles.rows, tiles.columns].map(|s| s as i64);
        arguments.sizes[..6].copy_from_slice(&sizes);
        let bias = self.addend(planned, 2, *filters)?;
        let residual = self.addend(planned, 3, elements)?;
        let flags = [self.packed.is_some(), bias, residual].map(i64::from);
        arguments.sizes[6..9].copy_from_slice(&flags);
        arguments.sizes[10] = self.activation.number;
        arguments.numbers[..2].copy_from_slice(&self.activation.parameters);
        let (function, blocks) = match few {
            true => (tiles::ONE_BY_ONE, blocks_for(elements)),
            false => (tiles.function, tiles.blocks()),
        };
        let left = match self.packed {
            Some(_) => LeftWalk::Panels,
            None => LeftWalk::AlongK,
        };
        tiles::set_walks(&mut arguments, left, RightWalk::AlongColumns);
        let mut call = Call::of(blocks, arguments, 2);
        call.function = function;
        call.reads(2, bias);
        call.reads(3, residual);
        Ok(Work::one(call))
    }
}
