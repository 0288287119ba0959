//! Products with weights that stay codes of a few bits: `MatMulNBits` whose codes were packed at install.
//!
//! A weight is `(code - zero) * scale`, rounded once, and an element is the chain of a product, as on the CPU, whatever
//! the dtypes. Where there are few rows, a thread makes one element at a time.

use convoke_common::error::Result;
use convoke_graph::DType;
use convoke_graph::ops::QuantisedOp;
use convoke_graph::ops::attrs::BlockWeightAttrs;
use convoke_graph::ops::packing::{PACK_CODES, packed_codes_len};
use convoke_worker::device::DeviceOp;

use super::tiles::{self, LeftWalk, RightWalk, Tiles};
use crate::kernels::args::Arguments;
use crate::kernels::launch::{
    Call, LaunchSignature, Template, Work, blocks_for, count, dtype_of, misfit,
};
use crate::kernels::source::{in_f32, source, type_name};

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
#define ONE_BY_ONE
struct Tile {
  i64 row0, column0;
  DEVICE_MEMBER Tile(const Arguments& a, i64 number, int edge)
      : row0(number / a.sizes[8] * edge), column0(number % a.sizes[8] * edge) {}
};
template <int UNITS>
struct Left : Units<X, UNITS> {
  const X* x;
  i64 m;
  DEVICE_MEMBER Left(const Arguments& a, const Tile&) : x((const X*)a.inputs[0]), m(a.sizes[0]) { this->depth = (int)a.sizes[2]; }
  DEVICE_MEMBER void begin(int unit, int k, i64 row, int) { this->set(unit, x + row * this->depth, row < m, k, 1); }
};
template <int UNITS>
struct Right {
  const Arguments& a;
  i64 columns[UNITS];
  int firsts[UNITS];
  DEVICE_MEMBER Right(const Arguments& a, const Tile&) : a(a) {}
  DEVICE_MEMBER void begin(int unit, int k, i64 column, int) { columns[unit] = column, firsts[unit] = k; }
  DEVICE_MEMBER f32 one(int unit, int k0) const {
    const i64 column = columns[unit];
    const int k = firsts[unit] + k0;
    if (k >= a.sizes[2] || column >= a.sizes[1]) return 0.0f;
    const Block own = block_at(a, k / (int)a.sizes[3], column);
    return (code_at((const u8*)a.inputs[1], a.sizes[4], k, column) - own.zero) * own.scale;
  }
};
DEVICE_CALL void put(const Arguments& a, const Tile&, i64 row, i64 column, f32 sum) {
  ((X*)a.output)[row * a.sizes[1] + column] = narrow(X{}, finished(a, sum, column));
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

    /// Checks that operand `i` has this many elements.
    fn holds(
        &self,
        planned: &LaunchSignature<'_>,
        i: usize,
        elements: Option<usize>,
    ) -> Result<()> {
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
            ("HALVES", "0"),
        ];
        Some(source(
            &definitions,
            &[tiles::UNITS, TEXT, tiles::TEXT].concat(),
        ))
    }

    fn functions(&self) -> usize {
        tiles::FUNCTIONS + 1
    }

    fn plan(&self, planned: &LaunchSignature<'_>) -> Result<Work> {
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
        let tiles = Tiles::of(m, w.n, 1);
        let mut arguments = Arguments::of(if few { m * w.n } else { tiles.count });
        let sizes = [m, w.n, w.k, w.block, rows, self.zero_rows()].map(|s| s as i64);
        arguments.sizes[..6].copy_from_slice(&sizes);
        arguments.sizes[6..9].copy_from_slice(&[bias.into(), 0, tiles.columns as i64]);
        let (function, blocks) = match few {
            true => (tiles::ONE_BY_ONE, blocks_for(m * w.n)),
            false => (tiles.function, tiles.blocks()),
        };
        tiles::set_walks(&mut arguments, LeftWalk::AlongK, RightWalk::AlongColumns);
        let mut call = Call::of(blocks, arguments, 3);
        call.function = function;
        call.reads(3, self.zeros != Zeros::Middle);
        call.reads(4, bias);
        Ok(Work::one(call))
    }
}

const _: () = assert!(PACK_CODES == 64, "the text has this many columns");
