//! Scaled dot-product attention: `FusedAttention`.
//!
//! A block makes four rows of queries. It takes the keys in pieces of 256 in ascending order, one key a thread, and keeps the
//! greatest score and the sum of the weights so far; what was summed before is scaled where a greater score comes. So the order
//! depends on the numbers of keys and of elements of a key alone.

use convoke_common::error::Result;
use convoke_graph::DType;
use convoke_graph::ops::FusedOp;
use convoke_worker::device::DeviceOp;

use super::rows;
use crate::kernels::args::{Arguments, broadcast};
use crate::kernels::launch::{
    Call, LaunchSignature, MOST_BLOCKS, OperandView, Template, Work, dtype_of, misfit,
};
use crate::kernels::source::{in_f32, source, type_name};

/// Rows of queries that a block makes together.
const ROWS: usize = 4;

/// The family's text. `CAP` is 1 where scores are capped.
const TEXT: &str = r"
template <typename C>
DEVICE void combined_rows(f32* own, f32 (*shared)[256], C combine) {
  __syncthreads();
  for (int r = 0; r < ROWS; r++) shared[r][threadIdx.x] = own[r];
  __syncthreads();
  for (int half = 128; half > 0; half >>= 1) {
    if (threadIdx.x < half)
      for (int r = 0; r < ROWS; r++)
        shared[r][threadIdx.x] = combine(shared[r][threadIdx.x], shared[r][threadIdx.x + half]);
    __syncthreads();
  }
  for (int r = 0; r < ROWS; r++) own[r] = shared[r][0];
}
KERNEL(0) {
  SHARED f32 tile[16][257];
  SHARED f32 query[ROWS][16];
  SHARED f32 weights[ROWS][256];
  SHARED f32 shared[ROWS][256];
  SHARED f32 factors[ROWS];
  SHARED f32 visible[ROWS];
  const i64 heads = a.sizes[0], group = a.sizes[1], queries = a.sizes[2], keys = a.sizes[3];
  const i64 size = a.sizes[4], values = a.sizes[5], parts = (queries + ROWS - 1) / ROWS;
  const f32 scale = (f32)a.numbers[0], cap = (f32)a.numbers[1];
  (void)cap;
  for (i64 part = blockIdx.x; part < a.elements; part += gridDim.x) {
    const i64 head = part / parts, first = part % parts * ROWS;
    const i64 rows = queries - first < ROWS ? queries - first : ROWS;
    const X* q = (const X*)a.inputs[0] + (head * queries + first) * size;
    const X* k = (const X*)a.inputs[1] + head / group * keys * size;
    const X* v = (const X*)a.inputs[2] + head / group * keys * values;
    const X* bias = (const X*)a.inputs[3];
    const i64 bias0 = head / heads * a.strides[3][0] + head % heads * a.strides[3][1];
    X* y = (X*)a.output + (head * queries + first) * values;
    for (i64 e0 = 0; e0 < values; e0 += 512) {
      const i64 width = values - e0 < 512 ? values - e0 : 512;
      f32 sums[8] = {}, top[ROWS], total[ROWS] = {}, seen[ROWS];
      for (int r = 0; r < ROWS; r++) top[r] = -INFINITE, seen[r] = a.sizes[6] ? -INFINITE : 0.0f;
      for (i64 t0 = 0; t0 < keys; t0 += 256) {
        const i64 key = t0 + threadIdx.x, piece = keys - t0 < 256 ? keys - t0 : 256;
        f32 score[ROWS] = {}, own[ROWS], shrunk[ROWS];
        for (i64 d0 = 0; d0 < size; d0 += 16) {
          const int here = size - d0 < 16 ? (int)(size - d0) : 16;
          __syncthreads();
          for (int i = threadIdx.x; i < 16 * 256; i += 256) {
            int other = i / 16, d = i % 16;
            tile[d][other] = d < here && other < piece ? widen(k[(t0 + other) * size + d0 + d]) : 0.0f;
          }
          if (threadIdx.x < 16 * ROWS) {
            int r = threadIdx.x / 16, d = threadIdx.x % 16;
            query[r][d] = r < rows && d < here ? widen(q[r * size + d0 + d]) : 0.0f;
          }
          __syncthreads();
          for (int d = 0; d < here; d++)
            for (int r = 0; r < ROWS; r++) score[r] = fmaf(query[r][d], tile[d][threadIdx.x], score[r]);
        }
        for (int r = 0; r < ROWS; r++) {
          f32 s = score[r] * scale;
#if CAP
          s = cap * fn_tanh(s / cap);
#endif
          bool in = key < keys && r < rows;
          shrunk[r] = -INFINITE;
          if (in && a.sizes[6]) {
            shrunk[r] = widen(bias[bias0 + (first + r) * a.strides[3][2] + key * a.strides[3][3]]);
            s = s + shrunk[r];
          }
          score[r] = in ? s : -INFINITE;
          own[r] = score[r];
        }
        if (a.sizes[6]) {
          combined_rows(shrunk, shared, Greatest{});
          for (int r = 0; r < ROWS; r++) seen[r] = greatest(seen[r], shrunk[r]);
        }
        combined_rows(own, shared, Greatest{});
        for (int r = 0; r < ROWS; r++) {
          f32 next = greatest(top[r], own[r]);
          shrunk[r] = top[r] == next ? 1.0f : fn_exp(top[r] - next);
          top[r] = next;
          own[r] = key >= keys || next == -INFINITE ? 0.0f : fn_exp(score[r] - next);
          weights[r][threadIdx.x] = own[r];
          if (threadIdx.x == 0) factors[r] = shrunk[r];
        }
        combined_rows(own, shared, Sum{});
        for (int r = 0; r < ROWS; r++) total[r] = fmaf(total[r], shrunk[r], own[r]);
        for (int i = 0; i < 8; i++) {
          i64 item = threadIdx.x + i * 256, row = item / width, e = e0 + item % width;
          if (row >= rows) break;
          f32 s = sums[i] * factors[row];
          for (i64 t = 0; t < piece; t++) s = fmaf(weights[row][t], widen(v[(t0 + t) * values + e]), s);
          sums[i] = s;
        }
      }
      __syncthreads();
      if (threadIdx.x == 0)
        for (int r = 0; r < ROWS; r++) factors[r] = total[r], visible[r] = keys > 0 ? seen[r] : -INFINITE;
      __syncthreads();
      for (int i = 0; i < 8; i++) {
        i64 item = threadIdx.x + i * 256, row = item / width, e = e0 + item % width;
        if (row >= rows) break;
        // A row from which the bias hides every key is zero, as on the CPU.
        y[row * values + e] = narrow(X{}, visible[row] == -INFINITE ? 0.0f : sums[i] / factors[row]);
      }
    }
  }
}
";

/// The part of attention that its op decides.
struct Attention {
    dtype: DType,
    scale: f32,
    softcap: f32,
}

/// The kernel of attention.
pub(super) fn fused(fused: FusedOp, op: &DeviceOp<'_>) -> Option<Box<dyn Template>> {
    if fused != FusedOp::FusedAttention {
        return None;
    }
    let dtype = dtype_of(op, 0).filter(|d| in_f32(*d))?;
    let same = |i| dtype_of(op, i).is_none_or(|d| d == dtype);
    (1..4).all(same).then(|| {
        Box::new(Attention {
            dtype,
            scale: op.attrs.float("scale", 1.0),
            softcap: op.attrs.float("softcap", 0.0),
        }) as _
    })
}

impl Template for Attention {
    fn source(&self) -> Option<String> {
        let cap = if self.softcap > 0.0 { "1" } else { "0" };
        let rows = ROWS.to_string();
        let definitions = [
            ("X", type_name(self.dtype)?),
            ("CAP", cap),
            ("ROWS", &*rows),
        ];
        Some(source(
            &definitions,
            &format!("{}{TEXT}", rows::SHARED_TEXT),
        ))
    }

    fn plan(&self, planned: &LaunchSignature<'_>) -> Result<Work> {
        let ((_, q), (_, k), (_, v)) = (planned.device(0)?, planned.device(1)?, planned.device(2)?);
        let unfit = || {
            misfit(format!(
                "{q:?}, {k:?} and {v:?} do not fit together in attention"
            ))
        };
        let (&[batch, heads, queries, size], &[k_batch, shared, keys, k_size]) = (q, k) else {
            return Err(unfit());
        };
        let &[v_batch, v_heads, v_keys, values] = v else {
            return Err(unfit());
        };
        let group = heads.checked_div(shared).unwrap_or(0);
        if (k_batch, v_batch, v_heads, v_keys, k_size) != (batch, batch, shared, keys, size)
            || group * shared != heads
        {
            return Err(unfit());
        }
        if batch * heads * queries * values == 0 {
            return Ok(Work::none());
        }
        let parts = batch * heads * queries.div_ceil(ROWS);
        let mut arguments = Arguments::of(parts);
        let sizes = [heads, group, queries, keys, size, values].map(|s| s as i64);
        arguments.sizes[..6].copy_from_slice(&sizes);
        let bias = match planned.operands.get(3) {
            None | Some(OperandView::Nothing) => false,
            Some(_) => {
                let (_, bias) = planned.device(3)?;
                let scores = [batch, heads, queries, keys];
                let strides = broadcast(bias, &scores)
                    .ok_or_else(|| misfit(format!("{bias:?} is not broadcast to {scores:?}")))?;
                arguments.strides[3][..4].copy_from_slice(&strides);
                true
            }
        };
        arguments.sizes[6] = i64::from(bias);
        arguments.numbers[..2].copy_from_slice(&[self.scale.into(), self.softcap.into()]);
        let blocks = parts.min(MOST_BLOCKS) as u32;
        let mut call = Call::of(blocks, arguments, 3);
        call.reads(3, bias);
        Ok(Work::one(call))
    }
}
