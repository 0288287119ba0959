//! Matrix products, with what follows them: `MatMul`, `Gemm` and `FusedGemm`.
//!
//! Each element is one chain of fused multiply-adds over ascending k from zero, in f32, as on the CPU. So its bits depend on
//! its row, its column and K alone: neither on where in a batch it is, nor on how many rows or columns are beside it. A block
//! makes a tile of 64 by 64, a thread 4 by 4 of them.

use convoke_common::error::Result;
use convoke_graph::DType;
use convoke_graph::ops::attrs::{Activation, GemmAttrs, flag};
use convoke_graph::ops::packing::{PACK_N, packed_gemm_len};
use convoke_graph::ops::{FusedOp, MatMulOp};
use convoke_worker::device::DeviceOp;

use super::activation::{self, Chosen};
use super::args::{Arguments, broadcast, dense};
use super::{Call, Planned, Template, Work, count, dtype_of, in_f32, misfit, source, type_name};

/// Rows and columns of a tile.
pub(super) const TILE: usize = 64;

/// Columns of a panel of a packed weight; the last panel has as many as are left, rounded up to [`PACK_N`]. This is the
/// layout of `convoke_kernels::gemm::pack`.
const PANEL: usize = 48;

/// The most blocks of a launch; a block goes on with further tiles.
pub(super) const MOST_TILES: usize = 1 << 20;

/// The family's text, behind that of activations. `PACKED` says that B is in panels, and `ADDEND` that there is a third operand.
const TEXT: &str = r"
DEVICE i64 packed_at(const Arguments& a, i64 k, i64 column) {
  i64 first = column / PANEL * PANEL, rest = a.sizes[1] - first;
  i64 width = rest >= PANEL ? PANEL : (rest + PACK_N - 1) / PACK_N * PACK_N;
  return first * a.sizes[2] + k * width + (column - first);
}
DEVICE f32 finished(const Arguments& a, f32 x, i64 row, i64 column) {
  const f32 alpha = (f32)a.numbers[0], beta = (f32)a.numbers[1];
  if (alpha != 1.0f) x = alpha * x;
#if ADDEND
  f32 c = widen(((const C*)a.inputs[2])[row * a.sizes[7] + column * a.sizes[8]]);
  x = x + (beta != 1.0f ? beta * c : c);
#endif
  (void)beta;
  return activated(a.sizes[11], x, (f32)a.numbers[2], (f32)a.numbers[3]);
}
KERNEL(const Arguments a) {
  SHARED f32 left[16][65];
  SHARED f32 right[16][65];
  const i64 m = a.sizes[0], n = a.sizes[1], depth = a.sizes[2];
  const int own_row = threadIdx.x / 16 * 4, own_column = threadIdx.x % 16 * 4;
  for (i64 tile = blockIdx.x; tile < a.elements; tile += gridDim.x) {
    i64 column0 = tile % a.sizes[10] * 64;
    i64 row0 = tile / a.sizes[10] % a.sizes[9] * 64;
    i64 matrix = tile / a.sizes[10] / a.sizes[9];
    i64 at[2];
    i64 out = places<2>(a, matrix, at);
    const A* x = (const A*)a.inputs[0] + at[0];
    const B* y = (const B*)a.inputs[1] + at[1];
    f32 sum[4][4] = {};
    for (i64 k0 = 0; k0 < depth; k0 += 16) {
      int here = depth - k0 < 16 ? (int)(depth - k0) : 16;
      __syncthreads();
      for (int i = threadIdx.x; i < 16 * 64; i += 256) {
        int row = i / 16, k = i % 16;
        bool in = k < here && row0 + row < m;
        left[k][row] = in ? widen(x[(row0 + row) * a.sizes[3] + (k0 + k) * a.sizes[4]]) : 0.0f;
      }
      for (int i = threadIdx.x; i < 16 * 64; i += 256) {
        int column = i % 64, k = i / 64;
        bool in = k < here && column0 + column < n;
#if PACKED
        right[k][column] = in ? widen(y[packed_at(a, k0 + k, column0 + column)]) : 0.0f;
#else
        right[k][column] = in ? widen(y[(k0 + k) * a.sizes[5] + (column0 + column) * a.sizes[6]]) : 0.0f;
#endif
      }
      __syncthreads();
      add_products(left, right, here, own_row, own_column, sum);
    }
    for (int i = 0; i < 4; i++)
      for (int j = 0; j < 4; j++) {
        i64 row = row0 + own_row + i, column = column0 + own_column + j;
        if (row < m && column < n)
          ((Y*)a.output)[out + row * n + column] = narrow(Y{}, finished(a, sum[i][j], row, column));
      }
  }
}
";

/// The part of a product that its op decides.
struct Product {
    a: DType,
    b: DType,
    addend: Option<DType>,
    result: DType,
    /// K and N of a packed B.
    packed: Option<(usize, usize)>,
    gemm: Option<GemmAttrs>,
    activation: Chosen,
}

/// The kernel of a product.
pub(super) fn plain(product: MatMulOp, op: &DeviceOp<'_>) -> Option<Box<dyn Template>> {
    let gemm = match product {
        MatMulOp::MatMul => None,
        MatMulOp::Gemm => Some(GemmAttrs::new(op.attrs)),
        MatMulOp::Det => return None,
    };
    made(op, gemm, None, activation::NONE)
}

/// The kernel of a product with what follows it.
pub(super) fn fused(fused: FusedOp, op: &DeviceOp<'_>) -> Option<Box<dyn Template>> {
    if fused != FusedOp::FusedGemm {
        return None;
    }
    let size = |name| usize::try_from(op.attrs.int(name, -1)).ok();
    let packed = match flag(op.attrs, "packed", false) {
        true => Some((size("k")?, size("n")?)),
        false => None,
    };
    let activation = activation::chosen(Activation::new(op.attrs).ok()?)?;
    made(op, None, packed, activation)
}

fn made(
    op: &DeviceOp<'_>,
    gemm: Option<GemmAttrs>,
    packed: Option<(usize, usize)>,
    activation: Chosen,
) -> Option<Box<dyn Template>> {
    let (a, b, addend) = (dtype_of(op, 0)?, dtype_of(op, 1)?, dtype_of(op, 2));
    let computed = [Some(a), Some(b), addend];
    computed.iter().flatten().all(|d| in_f32(*d)).then(|| {
        Box::new(Product {
            a,
            b,
            addend,
            result: a,
            packed,
            gemm,
            activation,
        }) as _
    })
}

/// A stack of products: M, N and K, the strides of A and B along rows and columns, and the axes of the stack.
struct Stack {
    sizes: [usize; 3],
    a: [usize; 2],
    b: [usize; 2],
    batch: Vec<usize>,
    a_batch: Vec<i64>,
    b_batch: Vec<i64>,
}

fn stack(a: &[usize], b: &[usize]) -> Option<Stack> {
    let (a_outer, m, k) = match a {
        [] => return None,
        [k] => (&a[..0], 1, *k),
        [outer @ .., m, k] => (outer, *m, *k),
    };
    let (b_outer, b_k, n) = match b {
        [] => return None,
        [k] => (&b[..0], *k, 1),
        [outer @ .., k, n] => (outer, *k, *n),
    };
    if k != b_k {
        return None;
    }
    let one = |m| Stack {
        sizes: [m, n, k],
        a: [k, 1],
        b: [n, 1],
        batch: vec![],
        a_batch: vec![],
        b_batch: vec![],
    };
    // With one right-hand matrix for all, the rows of the whole stack are the rows of one product.
    if b_outer.iter().all(|d| *d == 1) && b_outer.len() <= a_outer.len() {
        return Some(one(count(a_outer) * m));
    }
    let rank = a_outer.len().max(b_outer.len());
    let at =
        |outer: &[usize], d: usize| (d + outer.len()).checked_sub(rank).map_or(1, |d| outer[d]);
    let batch: Vec<usize> = (0..rank)
        .map(|d| match at(a_outer, d) {
            1 => at(b_outer, d),
            own => own,
        })
        .collect();
    let scaled = |outer: &[usize], matrix: usize| {
        let strides = broadcast(outer, &batch)?;
        Some(strides.iter().map(|s| s * matrix as i64).collect())
    };
    let (a_batch, b_batch) = (scaled(a_outer, m * k)?, scaled(b_outer, k * n)?);
    Some(Stack {
        batch,
        a_batch,
        b_batch,
        ..one(m)
    })
}

/// The product of matrices that are stored transposed where the attributes say so.
fn gemm_stack(attrs: &GemmAttrs, a: &[usize], b: &[usize]) -> Option<Stack> {
    let (&[a_rows, a_columns], &[b_rows, b_columns]) = (a, b) else {
        return None;
    };
    let oriented = |transposed, rows, columns| match transposed {
        true => (columns, rows, [1, columns]),
        false => (rows, columns, [columns, 1]),
    };
    let (m, k, a) = oriented(attrs.trans_a, a_rows, a_columns);
    let (b_k, n, b) = oriented(attrs.trans_b, b_rows, b_columns);
    (k == b_k).then(|| Stack {
        sizes: [m, n, k],
        a,
        b,
        batch: vec![],
        a_batch: vec![],
        b_batch: vec![],
    })
}

impl Product {
    fn stack(&self, planned: &Planned<'_>) -> Result<Stack> {
        let ((_, a), (_, b)) = (planned.device(0)?, planned.device(1)?);
        let found = match (self.packed, &self.gemm) {
            (Some((k, n)), _) => {
                let whole = packed_gemm_len(k, n) == Some(count(b));
                whole.then(|| stack(a, &[k, n])).flatten()
            }
            (None, Some(attrs)) => gemm_stack(attrs, a, b),
            (None, None) => stack(a, b),
        };
        found.ok_or_else(|| misfit(format!("{a:?} and {b:?} cannot be multiplied")))
    }

    /// The strides of the third operand along the rows and columns of the product.
    fn addend_strides(&self, planned: &Planned<'_>, sizes: [usize; 3]) -> Result<[i64; 2]> {
        let (_, shape) = planned.device(2)?;
        let strides = broadcast(shape, &sizes[..2]);
        let strides =
            strides.ok_or_else(|| misfit(format!("{shape:?} is not added to {sizes:?}")))?;
        Ok([strides[0], strides[1]])
    }
}

impl Template for Product {
    fn source(&self) -> Option<String> {
        let flag = |on: bool| if on { "1" } else { "0" };
        let (panel, pad) = (PANEL.to_string(), PACK_N.to_string());
        let definitions = [
            ("A", type_name(self.a)?),
            ("B", type_name(self.b)?),
            ("C", type_name(self.addend.unwrap_or(self.a))?),
            ("Y", type_name(self.result)?),
            ("PACKED", flag(self.packed.is_some())),
            ("ADDEND", flag(self.addend.is_some())),
            ("PANEL", &*panel),
            ("PACK_N", &*pad),
        ];
        Some(source(
            &definitions,
            &format!("{}{TEXT}", activation::text()),
        ))
    }

    fn plan(&self, planned: &Planned<'_>) -> Result<Work> {
        let stack = self.stack(planned)?;
        let [m, n, k] = stack.sizes;
        let matrices = count(&stack.batch);
        if matrices * m * n == 0 {
            return Ok(Work::none());
        }
        let (rows, columns) = (m.div_ceil(TILE), n.div_ceil(TILE));
        let mut arguments = Arguments::of(matrices * rows * columns);
        let matrix = (m * n) as i64;
        arguments.set_grid(&super::args::Grid {
            dims: super::args::dims(&stack.batch),
            out: dense(&stack.batch).iter().map(|s| s * matrix).collect(),
            operands: vec![stack.a_batch, stack.b_batch],
        });
        let addend = match planned.is_given(2) && self.addend.is_some() {
            true => self.addend_strides(planned, stack.sizes)?,
            false => [0; 2],
        };
        let ([a_row, a_column], [b_row, b_column]) = (stack.a, stack.b);
        let sizes = [m, n, k, a_row, a_column, b_row, b_column].map(|s| s as i64);
        arguments.sizes[..7].copy_from_slice(&sizes);
        arguments.sizes[7..9].copy_from_slice(&addend);
        arguments.sizes[9..11].copy_from_slice(&[rows as i64, columns as i64]);
        let factors = self
            .gemm
            .map_or([1.; 2], |g| [g.alpha.into(), g.beta.into()]);
        arguments.numbers[..2].copy_from_slice(&factors);
        arguments.numbers[2..].copy_from_slice(&self.activation.parameters);
        arguments.sizes[11] = self.activation.number;
        let blocks = (matrices * rows * columns).min(MOST_TILES) as u32;
        let operands = 2 + usize::from(self.addend.is_some());
        Ok(Work::one(Call::of(blocks, arguments, operands)))
    }
}
