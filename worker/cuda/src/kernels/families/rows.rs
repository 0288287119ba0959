//! Kernels in which a block makes a row: reductions, softmax and normalisations.
//!
//! Thread t of a block takes the elements t, t + 256, … of its row in ascending order, and the partial results are combined
//! by a tree over the threads. So the order depends on the row's length alone.

use convoke_common::error::Result;
use convoke_graph::DType;
use convoke_graph::ops::attrs::{ReduceAttrs, axis, epsilon};
use convoke_graph::ops::{NormOp, ReduceOp};
use convoke_worker::device::DeviceOp;

use crate::kernels::args::{Arguments, broadcast, dense};
use crate::kernels::launch::{
    Call, LaunchSignature, MOST_BLOCKS, Template, Work, count, dtype_of, misfit, op_error,
};
use crate::kernels::source::{in_f32, source, type_name};

/// The text that the families of this module share: the place of an element of a row, and the tree. The row's own axes are the
/// dimensions from `a.rank` on, `a.sizes[0]` of them, and `a.sizes[1]` are its elements.
pub(super) const SHARED_TEXT: &str = r"
DEVICE i64 row_start(const Arguments& a, i64 row, int operand) {
  i64 at = 0;
  for (i64 d = a.rank - 1; d >= 0; d--) {
    i64 own;
    row = divided(row, a.dims[d], &own);
    at += own * a.strides[operand][d];
  }
  return at;
}
DEVICE i64 in_row(const Arguments& a, i64 k, int operand) {
  i64 at = 0;
  for (i64 d = a.rank + a.sizes[0] - 1; d >= a.rank; d--) {
    i64 own = k;
    k = d > a.rank ? divided(k, a.dims[d], &own) : 0;
    at += own * a.strides[operand][d];
  }
  return at;
}
struct Sum {
  DEVICE_MEMBER f32 operator()(f32 a, f32 b) const { return a + b; }
};
struct Product {
  DEVICE_MEMBER f32 operator()(f32 a, f32 b) const { return a * b; }
};
struct Greatest {
  DEVICE_MEMBER f32 operator()(f32 a, f32 b) const { return greatest(a, b); }
};
struct Least {
  DEVICE_MEMBER f32 operator()(f32 a, f32 b) const { return least(a, b); }
};
template <typename C>
DEVICE f32 combined(f32 own, f32* shared, C combine) {
  __syncthreads();
  shared[threadIdx.x] = own;
  __syncthreads();
  for (int half = 128; half > 0; half >>= 1) {
    if (threadIdx.x < half) shared[threadIdx.x] = combine(shared[threadIdx.x], shared[threadIdx.x + half]);
    __syncthreads();
  }
  return shared[0];
}
";

/// Reductions: `FROM`, `TERM` of `x`, `COMBINE` and `LAST` of `s` and `n` say which.
const REDUCE_TEXT: &str = r"
KERNEL(0) {
  SHARED f32 shared[256];
  const X* data = (const X*)a.inputs[0];
  f32 n = (f32)a.sizes[1];
  for (i64 row = blockIdx.x; row < a.elements; row += gridDim.x) {
    i64 start = row_start(a, row, 0);
    f32 s = FROM;
    for (i64 k = threadIdx.x; k < a.sizes[1]; k += 256) {
      f32 x = widen(data[start + in_row(a, k, 0)]);
      s = COMBINE{}(s, TERM);
    }
    s = combined(s, shared, COMBINE{});
    if (threadIdx.x == 0) ((X*)a.output)[row] = narrow(X{}, LAST);
    (void)n;
  }
}
";

/// Softmax, or its logarithm where `LOG` is 1.
const SOFTMAX_TEXT: &str = r"
KERNEL(0) {
  SHARED f32 shared[256];
  for (i64 row = blockIdx.x; row < a.elements; row += gridDim.x) {
    i64 start = row_start(a, row, 0);
    const X* x = (const X*)a.inputs[0] + start;
    X* y = (X*)a.output + start;
    i64 n = a.sizes[1], step = a.strides[0][a.rank];
    f32 top = -INFINITE;
    for (i64 k = threadIdx.x; k < n; k += 256) top = greatest(top, widen(x[k * step]));
    top = combined(top, shared, Greatest{});
    f32 sum = 0.0f;
    for (i64 k = threadIdx.x; k < n; k += 256) sum = sum + fn_exp(widen(x[k * step]) - top);
    sum = combined(sum, shared, Sum{});
    f32 scale = 1.0f / sum, ln = LOG ? fn_log(sum) : sum;
    for (i64 k = threadIdx.x; k < n; k += 256) {
      f32 e = widen(x[k * step]) - top;
      y[k * step] = narrow(X{}, LOG ? e - ln : fn_exp(e) * scale);
    }
  }
}
";

/// Layer normalisation, or by the root of the mean square where `RMS` is 1. Operand 1 is the scale; operand 2, where
/// `BIAS` is 1, the bias. Both are broadcast to the operand.
const NORM_TEXT: &str = r"
KERNEL(0) {
  SHARED f32 shared[256];
  const X* scale = (const X*)a.inputs[1];
  const X* bias = (const X*)a.inputs[2];
  i64 n = a.sizes[1];
  for (i64 row = blockIdx.x; row < a.elements; row += gridDim.x) {
    const X* x = (const X*)a.inputs[0] + row * n;
    X* y = (X*)a.output + row * n;
    const X* own_scale = scale + row_start(a, row, 1);
    const X* own_bias = BIAS ? bias + row_start(a, row, 2) : bias;
    (void)own_bias;
    f32 mean = 0.0f;
    if (!RMS) {
      for (i64 k = threadIdx.x; k < n; k += 256) mean = mean + widen(x[k]);
      mean = combined(mean, shared, Sum{}) / (f32)n;
    }
    f32 squares = 0.0f;
    for (i64 k = threadIdx.x; k < n; k += 256) {
      f32 d = widen(x[k]) - mean;
      squares = fmaf(d, d, squares);
    }
    squares = combined(squares, shared, Sum{}) / (f32)n;
    f32 inverse = 1.0f / sqrtf(squares + (f32)a.numbers[0]);
    for (i64 k = threadIdx.x; k < n; k += 256) {
      f32 normal = (widen(x[k]) - mean) * inverse;
      f32 factor = widen(own_scale[in_row(a, k, 1)]);
      f32 made = BIAS ? fmaf(normal, factor, widen(own_bias[in_row(a, k, 2)])) : normal * factor;
      y[k] = narrow(X{}, made);
    }
  }
}
";

fn rows_source(definitions: &[(&str, &str)], text: &str) -> String {
    source(definitions, &format!("{SHARED_TEXT}{text}"))
}

/// Sets the axes that number the rows, then those of a row, with the strides of operand 0.
fn set_rows(arguments: &mut Arguments, shape: &[usize], in_row: &[usize]) {
    let strides = dense(shape);
    let kept = (0..shape.len()).filter(|d| !in_row.contains(d));
    for (at, d) in kept.chain(in_row.iter().copied()).enumerate() {
        arguments.dims[at] = shape[d] as i64;
        arguments.strides[0][at] = strides[d];
    }
    arguments.rank = (shape.len() - in_row.len()) as i64;
    arguments.sizes[0] = in_row.len() as i64;
    arguments.sizes[1] = in_row.iter().map(|d| shape[*d] as i64).product();
}

fn row_blocks(rows: usize) -> u32 {
    rows.clamp(1, MOST_BLOCKS) as u32
}

/// A reduction over axes.
struct Reduction {
    dtype: DType,
    attrs: ReduceAttrs,
    definitions: [(&'static str, &'static str); 4],
}

/// The kernel of a reduction.
pub(super) fn reduction(reduce: ReduceOp, op: &DeviceOp<'_>) -> Option<Box<dyn Template>> {
    use ReduceOp as R;
    let dtype = dtype_of(op, 0).filter(|d| in_f32(*d))?;
    let of = |from, term, combine, last| {
        [
            ("FROM", from),
            ("TERM", term),
            ("COMBINE", combine),
            ("LAST", last),
        ]
    };
    let definitions = match reduce {
        R::ReduceSum => of("0.0f", "x", "Sum", "s"),
        R::ReduceMean => of("0.0f", "x", "Sum", "s / n"),
        R::ReduceMax => of("-INFINITE", "x", "Greatest", "s"),
        R::ReduceMin => of("INFINITE", "x", "Least", "s"),
        R::ReduceProd => of("1.0f", "x", "Product", "s"),
        R::ReduceL1 => of("0.0f", "fabsf(x)", "Sum", "s"),
        R::ReduceL2 => of("0.0f", "x * x", "Sum", "sqrtf(s)"),
        R::ReduceSumSquare => of("0.0f", "x * x", "Sum", "s"),
        R::ReduceLogSum => of("0.0f", "x", "Sum", "fn_log(s)"),
        // The exponentials need the greatest element first; the others give places, not elements.
        R::ReduceLogSumExp | R::ArgMax | R::ArgMin => return None,
    };
    let attrs = ReduceAttrs::new(op.attrs);
    Some(Box::new(Reduction {
        dtype,
        attrs,
        definitions,
    }))
}

impl Template for Reduction {
    fn source(&self) -> Option<String> {
        let mut definitions = self.definitions.to_vec();
        definitions.push(("X", type_name(self.dtype)?));
        Some(rows_source(&definitions, REDUCE_TEXT))
    }

    fn plan(&self, planned: &LaunchSignature<'_>) -> Result<Work> {
        let (_, shape) = planned.device(0)?;
        let axes = planned.ints(1)?.unwrap_or_default();
        let axes = self.attrs.axes(&axes, shape.len()).map_err(op_error)?;
        let rows = count(planned.output(0)?);
        if rows == 0 {
            return Ok(Work::none());
        }
        let mut arguments = Arguments::of(rows);
        set_rows(&mut arguments, shape, &axes);
        Ok(Work::one(Call::of(row_blocks(rows), arguments, 1)))
    }
}

/// The reduction of every plane of a tensor [N, C, ..].
struct Planes {
    dtype: DType,
    definitions: [(&'static str, &'static str); 4],
}

/// The kernel of a pool over whole planes: where the result starts, how elements are combined, and what becomes of them.
pub(super) fn planes(
    dtype: DType,
    from: &'static str,
    combine: &'static str,
    last: &'static str,
) -> Option<Box<dyn Template>> {
    let definitions = [
        ("FROM", from),
        ("TERM", "x"),
        ("COMBINE", combine),
        ("LAST", last),
    ];
    Some(Box::new(Planes { dtype, definitions }))
}

impl Template for Planes {
    fn source(&self) -> Option<String> {
        let mut definitions = self.definitions.to_vec();
        definitions.push(("X", type_name(self.dtype)?));
        Some(rows_source(&definitions, REDUCE_TEXT))
    }

    fn plan(&self, planned: &LaunchSignature<'_>) -> Result<Work> {
        let (_, shape) = planned.device(0)?;
        let rows = count(planned.output(0)?);
        if rows == 0 {
            return Ok(Work::none());
        }
        let mut arguments = Arguments::of(rows);
        let in_row: Vec<usize> = (2..shape.len()).collect();
        set_rows(&mut arguments, shape, &in_row);
        Ok(Work::one(Call::of(row_blocks(rows), arguments, 1)))
    }
}

/// Softmax along an axis.
struct Softmax {
    dtype: DType,
    axis: i64,
    log: bool,
}

impl Template for Softmax {
    fn source(&self) -> Option<String> {
        let log = if self.log { "1" } else { "0" };
        let definitions = [("X", type_name(self.dtype)?), ("LOG", log)];
        Some(rows_source(&definitions, SOFTMAX_TEXT))
    }

    fn plan(&self, planned: &LaunchSignature<'_>) -> Result<Work> {
        let (_, shape) = planned.device(0)?;
        if count(shape) == 0 {
            return Ok(Work::none());
        }
        let axis = convoke_graph::ops::normalize_axis(self.axis, shape.len()).map_err(op_error)?;
        let rows = count(shape) / shape[axis];
        let mut arguments = Arguments::of(rows);
        set_rows(&mut arguments, shape, &[axis]);
        Ok(Work::one(Call::of(row_blocks(rows), arguments, 1)))
    }
}

/// Layer normalisation, or normalisation by the root of the mean square.
struct Normalisation {
    dtype: DType,
    attrs: convoke_graph::graph::Attrs,
    rms: bool,
    bias: bool,
}

/// The kernel of a normalisation.
pub(super) fn normalisation(norm: NormOp, op: &DeviceOp<'_>) -> Option<Box<dyn Template>> {
    let dtype = dtype_of(op, 0).filter(|d| in_f32(*d))?;
    let same = |i: usize| dtype_of(op, i).is_none_or(|d| d == dtype);
    match norm {
        NormOp::Softmax | NormOp::LogSoftmax => Some(Box::new(Softmax {
            dtype,
            axis: op.attrs.int("axis", -1),
            log: norm == NormOp::LogSoftmax,
        })),
        NormOp::LayerNormalization | NormOp::RMSNormalization if same(1) && same(2) => {
            Some(Box::new(Normalisation {
                dtype,
                attrs: op.attrs.clone(),
                rms: norm == NormOp::RMSNormalization,
                bias: dtype_of(op, 2).is_some(),
            }))
        }
        _ => None,
    }
}

impl Template for Normalisation {
    fn source(&self) -> Option<String> {
        let flag = |on: bool| if on { "1" } else { "0" };
        let definitions = [
            ("X", type_name(self.dtype)?),
            ("RMS", flag(self.rms)),
            ("BIAS", flag(self.bias)),
        ];
        Some(rows_source(&definitions, NORM_TEXT))
    }

    fn plan(&self, planned: &LaunchSignature<'_>) -> Result<Work> {
        let (_, shape) = planned.device(0)?;
        if count(shape) == 0 {
            return Ok(Work::none());
        }
        let axis = axis(&self.attrs, -1, shape.len()).map_err(op_error)?;
        let outer = &shape[..axis];
        let mut arguments = Arguments::of(count(outer));
        let in_row: Vec<usize> = (axis..shape.len()).collect();
        set_rows(&mut arguments, shape, &in_row);
        for i in 1..=usize::from(self.bias) + 1 {
            let (_, own) = planned.device(i)?;
            let strides = broadcast(own, shape);
            let strides =
                strides.ok_or_else(|| misfit(format!("{own:?} is not broadcast to {shape:?}")))?;
            arguments.strides[i][..shape.len()].copy_from_slice(&strides);
        }
        arguments.numbers[0] = f64::from(epsilon(&self.attrs));
        let call = Call::of(
            row_blocks(count(outer)),
            arguments,
            2 + usize::from(self.bias),
        );
        Ok(Work::one(call))
    }
}
