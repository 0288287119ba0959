//! Products with weights that stay codes of a few bits: `MatMulNBits` whose codes were packed at install.
//!
//! A weight is `(code - zero) * scale`, rounded once, and an element is the chain of a product, as on the CPU. A block makes a tile
//! of 64 by 64. Where there are few rows, a thread makes one element at a time.

use convoke_common::error::Result;
use convoke_graph::DType;
use convoke_graph::ops::QuantisedOp;
use convoke_graph::ops::attrs::BlockWeightAttrs;
use convoke_graph::ops::packing::{PACK_CODES, packed_codes_len};
use convoke_worker::device::DeviceOp;

use super::args::Arguments;
use super::product::{MOST_TILES, TILE};
use super::{
    Call, Planned, Template, Work, blocks_for, count, dtype_of, in_f32, misfit, source, type_name,
};

/// With more rows, an element's weights are used again within a tile.
const FEW_ROWS: usize = 8;

/// The family's text. `BITS` are those of a code, and `ZEROS` says what zero points are: 0 the middle of the codes, 1 codes that are
/// packed as the weights are, 2 numbers.
const TEXT: &str = r"
// The code of a row and column. Byte i of a row of 64 columns has those of columns i, i + SPAN and so on, from its low bits on.
#define SPAN (64 * BITS / 8)
DEVICE f32 code_at(const u8* codes, i64 rows, i64 row, i64 column) {
  i64 own = column % 64;
  u8 byte = codes[(column / 64 * rows + row) * SPAN + own % SPAN];
  return (f32)((byte >> (own / SPAN * BITS)) & ((1 << BITS) - 1));
}
struct Block {
  f32 zero, scale;
};
DEVICE Block block_at(const Arguments& a, i64 block, i64 column) {
  f32 scale = widen(((const X*)a.inputs[2])[block * a.sizes[1] + column]);
#if ZEROS == 0
  return Block{(f32)(1 << (BITS - 1)), scale};
#elif ZEROS == 1
  return Block{code_at((const u8*)a.inputs[3], a.sizes[5], block, column), scale};
#else
  return Block{widen(((const Z*)a.inputs[3])[block * a.sizes[1] + column]), scale};
#endif
}
DEVICE f32 finished(const Arguments& a, f32 x, i64 column) {
  return a.sizes[6] ? x + widen(((const X*)a.inputs[4])[column]) : x;
}
DEVICE void one_by_one(const Arguments& a) {
  const i64 n = a.sizes[1], depth = a.sizes[2], block = a.sizes[3], rows = a.sizes[4];
  for (i64 i = first_element(); i < a.elements; i += element_step()) {
    const X* x = (const X*)a.inputs[0] + i / n * depth;
    const i64 column = i % n;
    f32 sum = 0.0f;
    for (i64 first = 0; first < depth; first += block) {
      const Block own = block_at(a, first / block, column);
      const i64 end = first + block < depth ? first + block : depth;
      for (i64 k = first; k < end; k++)
        sum = fmaf(widen(x[k]), (code_at((const u8*)a.inputs[1], rows, k, column) - own.zero) * own.scale, sum);
    }
    ((X*)a.output)[i] = narrow(X{}, finished(a, sum, column));
  }
}
KERNEL(const Arguments a) {
  SHARED f32 left[16][65];
  SHARED f32 right[16][65];
  if (a.sizes[7]) {
    one_by_one(a);
    return;
  }
  const i64 m = a.sizes[0], n = a.sizes[1], depth = a.sizes[2], block = a.sizes[3], rows = a.sizes[4];
  const int own_row = threadIdx.x / 16 * 4, own_column = threadIdx.x % 16 * 4;
  const X* x = (const X*)a.inputs[0];
  for (i64 tile = blockIdx.x; tile < a.elements; tile += gridDim.x) {
    const i64 column0 = tile % a.sizes[8] * 64, row0 = tile / a.sizes[8] * 64;
    const i64 column = column0 + threadIdx.x % 64;
    f32 sum[4][4] = {};
    for (i64 k0 = 0; k0 < depth; k0 += 16) {
      const int here = depth - k0 < 16 ? (int)(depth - k0) : 16;
      __syncthreads();
      for (int i = threadIdx.x; i < 16 * 64; i += 256) {
        int row = i / 16, k = i % 16;
        bool in = k < here && row0 + row < m;
        left[k][row] = in ? widen(x[(row0 + row) * depth + k0 + k]) : 0.0f;
      }
      for (int k = threadIdx.x / 64; k < 16; k += 4) {
        f32 weight = 0.0f;
        if (k < here && column < n) {
          const Block own = block_at(a, (k0 + k) / block, column);
          weight = (code_at((const u8*)a.inputs[1], rows, k0 + k, column) - own.zero) * own.scale;
        }
        right[k][threadIdx.x % 64] = weight;
      }
      __syncthreads();
      add_products(left, right, here, own_row, own_column, sum);
    }
    for (int i = 0; i < 4; i++)
      for (int j = 0; j < 4; j++) {
        i64 row = row0 + own_row + i, at = column0 + own_column + j;
        if (row < m && at < n) ((X*)a.output)[row * n + at] = narrow(X{}, finished(a, sum[i][j], at));
      }
  }
}
";

/// The kind of zero points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Zeros {
    Middle,
    Codes,
    Numbers(DType),
}

struct BlockProduct {
    dtype: DType,
    zeros: Zeros,
    weights: BlockWeightAttrs,
}

/// The kernel of a product with weights that are packed codes.
pub(super) fn product(quantised: QuantisedOp, op: &DeviceOp<'_>) -> Option<Box<dyn Template>> {
    if quantised != QuantisedOp::MatMulNBits || dtype_of(op, 1) != Some(DType::U8) {
        return None;
    }
    let weights = BlockWeightAttrs::new(op.attrs).ok()?;
    let dtype = dtype_of(op, 0).filter(|d| in_f32(*d))?;
    let same = |i| dtype_of(op, i).is_none_or(|d| d == dtype);
    let zeros = match dtype_of(op, 3) {
        None => Zeros::Middle,
        Some(DType::U8) => Zeros::Codes,
        Some(numbers) if in_f32(numbers) => Zeros::Numbers(numbers),
        Some(_) => return None,
    };
    (weights.packed && same(2) && same(4)).then(|| {
        Box::new(BlockProduct {
            dtype,
            zeros,
            weights,
        }) as _
    })
}

impl BlockProduct {
    /// Rows of packed zero points, with those that fill the last byte.
    fn zero_rows(&self) -> usize {
        self.weights.packed_zeros() * 8 / self.weights.bits
    }

    /// Checks that operand `i` has so many elements.
    fn holds(&self, planned: &Planned<'_>, i: usize, elements: Option<usize>) -> Result<()> {
        let (_, shape) = planned.device(i)?;
        match Some(count(shape)) == elements {
            true => Ok(()),
            false => Err(misfit(format!(
                "operand {i} is {shape:?}, which does not fit"
            ))),
        }
    }
}

impl Template for BlockProduct {
    fn source(&self) -> Option<String> {
        let bits = self.weights.bits.to_string();
        let (zeros, numbers) = match self.zeros {
            Zeros::Middle => ("0", self.dtype),
            Zeros::Codes => ("1", self.dtype),
            Zeros::Numbers(dtype) => ("2", dtype),
        };
        let definitions = [
            ("X", type_name(self.dtype)?),
            ("Z", type_name(numbers)?),
            ("BITS", &*bits),
            ("ZEROS", zeros),
        ];
        Some(source(&definitions, TEXT))
    }

    fn plan(&self, planned: &Planned<'_>) -> Result<Work> {
        let (_, x) = planned.device(0)?;
        let w = &self.weights;
        let (rows, blocks) = (w.blocks() * w.block, w.blocks());
        let parameters = blocks.checked_mul(w.n);
        self.holds(planned, 1, packed_codes_len(w.bits, rows, w.n))?;
        self.holds(planned, 2, parameters)?;
        match self.zeros {
            Zeros::Middle => {}
            Zeros::Codes => {
                self.holds(planned, 3, packed_codes_len(w.bits, self.zero_rows(), w.n))?;
            }
            Zeros::Numbers(_) => self.holds(planned, 3, parameters)?,
        }
        let bias = planned.is_given(4);
        if bias {
            self.holds(planned, 4, Some(w.n))?;
        }
        let m = count(x) / w.k;
        if m == 0 {
            return Ok(Work::none());
        }
        let few = m < FEW_ROWS;
        let columns = w.n.div_ceil(TILE);
        let tiles = m.div_ceil(TILE) * columns;
        let mut arguments = Arguments::of(if few { m * w.n } else { tiles });
        let sizes = [m, w.n, w.k, w.block, rows, self.zero_rows()].map(|s| s as i64);
        arguments.sizes[..6].copy_from_slice(&sizes);
        arguments.sizes[6..9].copy_from_slice(&[bias.into(), few.into(), columns as i64]);
        let blocks = match few {
            true => blocks_for(m * w.n),
            false => tiles.min(MOST_TILES) as u32,
        };
        let mut call = Call::of(blocks, arguments, 3);
        call.reads(3, self.zeros != Zeros::Middle);
        call.reads(4, bias);
        Ok(Work::one(call))
    }
}

const _: () = assert!(PACK_CODES == 64, "the text has this many columns");
