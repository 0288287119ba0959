//! Matrix products, with their epilogue: `MatMul`, `Gemm` and `FusedGemm`.
//!
//! Each element is a chain over ascending k from zero, in f32, of fused multiply-adds, as on the CPU. Where both matrices are f16 or
//! both are bf16, it is the sum of eight chains, one after the other along k, of a tensor core's steps of 16 products. So its bits depend on its row, its column and K alone: neither
//! on where in a batch it is, nor on how many rows or columns are beside it.

use convoke_common::error::Result;
use convoke_graph::DType;
use convoke_graph::ops::attrs::{Activation, GemmAttrs, flag};
use convoke_graph::ops::packing::{PACK_N, packed_gemm_len};
use convoke_graph::ops::{FusedOp, MatMulOp};
use convoke_worker::device::DeviceOp;

use super::activation::{self, ActivationCall};
use super::tiles::{self, LeftWalk, RightWalk, Tiles};
use crate::kernels::args::{Arguments, broadcast, dense};
use crate::kernels::launch::{Call, LaunchSignature, Template, Work, count, dtype_of, misfit};
use crate::kernels::source::{in_f32, source, type_name};

/// Columns of a panel of a packed weight; the last panel has as many as are left, rounded up to [`PACK_N`]. This is the
/// layout of `convoke_kernels::gemm::pack`.
const PANEL: usize = 48;

/// The family's text, between those of activations and of tiles. `PACKED` says that B is in panels, and `ADDEND` that there is a third operand.
const TEXT: &str = r"
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
struct Tile {
  i64 row0, column0, out;
  const A* x;
  const B* y;
  DEVICE_MEMBER Tile(const Arguments& a, i64 number, int edge) {
    column0 = number % a.sizes[10] * edge;
    row0 = number / a.sizes[10] % a.sizes[9] * edge;
    i64 at[2];
    out = places<2>(a, number / a.sizes[10] / a.sizes[9], at);
    x = (const A*)a.inputs[0] + at[0];
    y = (const B*)a.inputs[1] + at[1];
  }
};
template <int UNITS>
struct Left : Units<A, UNITS> {
  const A* x;
  i64 m, by_row;
  int by_k;
  DEVICE_MEMBER Left(const Arguments& a, const Tile& tile) : x(tile.x), m(a.sizes[0]), by_row(a.sizes[3]), by_k((int)a.sizes[4]) {
    this->depth = (int)a.sizes[2];
  }
  DEVICE_MEMBER void begin(int unit, int k, i64 row, int) { this->set(unit, x + row * by_row, row < m, k, by_k); }
};
template <int UNITS>
struct Right : Units<B, UNITS> {
  const B* y;
  i64 n, by_column;
  int by_k;
  DEVICE_MEMBER Right(const Arguments& a, const Tile& tile)
      : y(tile.y), n(a.sizes[1]), by_column(a.sizes[6]), by_k((int)a.sizes[5]) {
    this->depth = (int)a.sizes[2];
  }
  DEVICE_MEMBER void begin(int unit, int k, i64 column, int) {
    const bool is_in = column < n;
#if PACKED
    i64 first = column / PANEL * PANEL, rest = n - first;
    int width = rest >= PANEL ? PANEL : (int)((rest + PACK_N - 1) / PACK_N * PACK_N);
    this->set(unit, y + first * this->depth + (column - first), is_in, k, width);
#else
    this->set(unit, y + column * by_column, is_in, k, by_k);
#endif
  }
};
#if HALVES
template <int COLUMNS>
struct Columns : Right<COLUMNS> {
  DEVICE_MEMBER Columns(const Arguments& a, const Tile& tile) : Right<COLUMNS>(a, tile) {}
  DEVICE_MEMBER void begin(int k, i64 column) {
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) Right<COLUMNS>::begin(j, k, column + j * 8, 0);
  }
  template <bool WIDE>
  DEVICE_MEMBER void four(u32 (*into)[2], int k0) const {
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
      into[j][0] = this->template pair<WIDE>(j, k0);
      into[j][1] = this->template pair<WIDE>(j, k0 + 8);
    }
  }
};
#endif
DEVICE_CALL void put(const Arguments& a, const Tile& tile, i64 row, i64 column, f32 sum) {
  ((Y*)a.output)[tile.out + row * a.sizes[1] + column] = narrow(Y{}, finished(a, sum, row, column));
}
";

/// Whether matrices of these dtypes are multiplied by tensor cores: both have 16 bits, of the same kind.
pub(super) fn are_halves(left: DType, right: DType) -> bool {
    left == right && matches!(left, DType::F16 | DType::BF16)
}

/// The part of a product that its op decides.
struct Product {
    a: DType,
    b: DType,
    addend: Option<DType>,
    result: DType,
    /// K and N of a packed B.
    packed: Option<(usize, usize)>,
    gemm: Option<GemmAttrs>,
    activation: ActivationCall,
}

/// The kernel of a product.
pub(super) fn plain(product: MatMulOp, op: &DeviceOp<'_>) -> Option<Box<dyn Template>> {
    let gemm = match product {
        MatMulOp::MatMul => None,
        MatMulOp::Gemm => Some(GemmAttrs::new(op.attrs)),
        MatMulOp::Det | MatMulOp::Inverse => return None,
    };
    made(op, gemm, None, activation::NONE)
}

/// The kernel of a product with its epilogue.
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
    activation: ActivationCall,
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
    fn stack(&self, planned: &LaunchSignature<'_>) -> Result<Stack> {
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
    fn addend_strides(&self, planned: &LaunchSignature<'_>, sizes: [usize; 3]) -> Result<[i64; 2]> {
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
            ("L", type_name(self.a)?),
            ("HALVES", flag(are_halves(self.a, self.b))),
        ];
        let family = [&activation::text(), tiles::UNITS, TEXT, tiles::TEXT].concat();
        Some(source(&definitions, &family))
    }

    fn functions(&self) -> usize {
        tiles::FUNCTIONS
    }

    fn plan(&self, planned: &LaunchSignature<'_>) -> Result<Work> {
        let stack = self.stack(planned)?;
        let [m, n, k] = stack.sizes;
        let matrices = count(&stack.batch);
        if matrices * m * n == 0 {
            return Ok(Work::none());
        }
        if [k, n, m].iter().any(|size| *size > tiles::MOST_DEPTH) {
            return Err(misfit(format!(
                "a product of {m} by {k} by {n} is too large"
            )));
        }
        let tiles = Tiles::of(m, n, matrices);
        let mut arguments = Arguments::of(tiles.count);
        let matrix = (m * n) as i64;
        arguments.set_grid(&crate::kernels::args::Grid {
            dims: crate::kernels::args::dims(&stack.batch),
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
        arguments.sizes[9..11].copy_from_slice(&[tiles.rows as i64, tiles.columns as i64]);
        let factors = self
            .gemm
            .map_or([1.; 2], |g| [g.alpha.into(), g.beta.into()]);
        arguments.numbers[..2].copy_from_slice(&factors);
        arguments.numbers[2..].copy_from_slice(&self.activation.parameters);
        arguments.sizes[11] = self.activation.number;
        let left = match a_column {
            1 => LeftWalk::AlongK,
            _ => LeftWalk::AlongRows,
        };
        let right = match b_column == 1 || self.packed.is_some() {
            true => RightWalk::AlongColumns,
            false => RightWalk::AlongK,
        };
        tiles::set_walks(&mut arguments, left, right);
        let operands = 2 + usize::from(self.addend.is_some());
        let call = Call::of(tiles.blocks(), arguments, operands);
        Ok(Work::one(Call {
            function: tiles.function,
            ..call
        }))
    }
}
