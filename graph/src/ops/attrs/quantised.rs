//! Attributes of the ops on quantised numbers, and the parameters that belong to each element.

use super::{bad, flag, normalize_axis};
use crate::DType;
use crate::graph::Attrs;
use crate::ops::error::OpError;

/// The dtypes of quantised numbers.
pub const QUANTISED: &[DType] = &[
    DType::U8,
    DType::I8,
    DType::U16,
    DType::I16,
    DType::U4,
    DType::I4,
    DType::U2,
    DType::I2,
    DType::F8E4M3FN,
    DType::F8E4M3FNUZ,
    DType::F8E5M2,
    DType::F8E5M2FNUZ,
    DType::F4E2M1,
];

/// The elements that share a scale and a zero point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Granularity {
    /// All elements of the tensor.
    Tensor,
    /// Those of one index of an axis.
    Axis(usize),
    /// Every `size` elements along an axis.
    Blocks { axis: usize, size: usize },
    /// All elements along an axis.
    Whole { axis: usize },
}

/// The shape of scales and zero points, as far as it decides their granularity.
#[derive(Debug, Clone, Copy)]
pub struct ParameterShape {
    pub rank: usize,
    /// Whether there is exactly one parameter.
    pub single: bool,
}

impl ParameterShape {
    /// The shape of parameters whose sizes are known.
    pub fn of(shape: &[usize]) -> ParameterShape {
        ParameterShape {
            rank: shape.len(),
            single: shape.iter().all(|d| *d == 1),
        }
    }
}

/// Attributes of `QuantizeLinear` and `DequantizeLinear`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuantiseAttrs {
    axis: i64,
    /// The length of blocks; 0 where there are none.
    block_size: usize,
    /// Whether a number beyond the largest one of a float dtype becomes that one.
    pub saturate: bool,
    /// The dtype of the result, where it is stated.
    pub output_dtype: Option<DType>,
    /// The dtype of the division, where it is stated.
    pub precision: Option<DType>,
}

impl QuantiseAttrs {
    /// Reads and checks the attributes.
    pub fn new(attrs: &Attrs) -> Result<QuantiseAttrs, OpError> {
        let block_size = usize::try_from(attrs.int("block_size", 0));
        let precision = attrs.dtype("precision");
        let divides = [None, Some(DType::F32), Some(DType::F16), Some(DType::BF16)];
        if !divides.contains(&precision) {
            return Err(bad("precision", "must be f32, f16 or bf16"));
        }
        Ok(QuantiseAttrs {
            axis: attrs.int("axis", 1),
            block_size: block_size.map_err(|_| bad("block_size", "must not be negative"))?,
            saturate: flag(attrs, "saturate", true),
            output_dtype: attrs.dtype("output_dtype"),
            precision,
        })
    }

    /// The granularity of parameters for a tensor of `rank`.
    pub fn granularity(
        &self,
        rank: usize,
        parameters: ParameterShape,
    ) -> Result<Granularity, OpError> {
        match parameters.rank {
            0 => Ok(Granularity::Tensor),
            r if self.block_size > 0 && r == rank => Ok(Granularity::Blocks {
                axis: normalize_axis(self.axis, rank)?,
                size: self.block_size,
            }),
            1 if parameters.single => Ok(Granularity::Tensor),
            1 if self.block_size == 0 => Ok(Granularity::Axis(normalize_axis(self.axis, rank)?)),
            r => Err(OpError::shape(format!(
                "scales of rank {r} with blocks of {} do not fit a tensor of rank {rank}",
                self.block_size
            ))),
        }
    }
}

/// The granularity of zero points of an operand of a matrix product: one, one for each row of the left operand or column
/// of the right one, or one for each row or column of each matrix.
pub fn product_granularity(
    left: bool,
    rank: usize,
    parameters: ParameterShape,
) -> Result<Granularity, OpError> {
    let (own, other) = match (left, rank) {
        (true, 2..) => (Some(rank - 2), rank - 1),
        (false, 2..) => (Some(rank - 1), rank - 2),
        _ => (None, 0),
    };
    match (parameters.rank, own) {
        (0, _) => Ok(Granularity::Tensor),
        (1, _) if parameters.single => Ok(Granularity::Tensor),
        (1, Some(axis)) => Ok(Granularity::Axis(axis)),
        (r, Some(_)) if r == rank => Ok(Granularity::Whole { axis: other }),
        (r, _) => Err(OpError::shape(format!(
            "zero points of rank {r} do not fit an operand of rank {rank}"
        ))),
    }
}

/// Attributes of `MatMulNBits`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockWeightAttrs {
    /// The size of the weights.
    pub k: usize,
    pub n: usize,
    pub bits: usize,
    /// Weights in a block.
    pub block: usize,
    /// Whether codes are as [`PackCodesAttrs`] describes, and scales and zero points block by block.
    pub packed: bool,
}

/// The longest blocks of products of codes.
const MAX_CODED_BLOCK: usize = 256;

/// The largest size of weights. The limit keeps products of sizes inside an i64.
const MAX_SIZE: i64 = 1 << 31;

impl BlockWeightAttrs {
    /// Reads and checks the attributes.
    pub fn new(attrs: &Attrs) -> Result<BlockWeightAttrs, OpError> {
        let size = |name: &str, default: i64| {
            let v = attrs.int(name, default);
            let inside = (1..=MAX_SIZE).contains(&v);
            inside
                .then_some(v as usize)
                .ok_or_else(|| bad(name, format!("{v} is outside 1 to {MAX_SIZE}")))
        };
        let read = BlockWeightAttrs {
            k: size("K", 0)?,
            n: size("N", 0)?,
            bits: size("bits", 4)?,
            block: size("block_size", 0)?,
            packed: flag(attrs, "packed", false),
        };
        if ![2, 4, 8].contains(&read.bits) {
            return Err(bad("bits", "must be 2, 4 or 8"));
        }
        if !(read.block * read.bits).is_multiple_of(8) {
            return Err(bad(
                "block_size",
                "must be such that a block takes whole bytes",
            ));
        }
        Ok(read)
    }

    /// Whether the left operand can be codes of eight bits in the same blocks: they have a multiple of 16 weights, at most
    /// 256.
    pub fn fits_codes(&self) -> bool {
        self.block <= MAX_CODED_BLOCK && self.block.is_multiple_of(16)
    }

    /// Blocks of a column.
    pub fn blocks(&self) -> usize {
        self.k.div_ceil(self.block)
    }

    /// Bytes of a block.
    pub fn blob(&self) -> usize {
        self.block * self.bits / 8
    }

    /// Bytes of the packed zero points of a column.
    pub fn packed_zeros(&self) -> usize {
        (self.blocks() * self.bits).div_ceil(8)
    }
}

/// Attributes of `PackCodes`. The packed form has the codes of a row of 64 columns together: byte i of a row holds those of
/// columns i, i + 64 / c and so on, c being the codes of a byte, from its low bits on. Signed codes have the middle added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackCodesAttrs {
    pub bits: usize,
    /// Columns, each of which begins with a whole byte before it is packed.
    pub n: usize,
}

impl PackCodesAttrs {
    /// Reads and checks the attributes.
    pub fn new(attrs: &Attrs) -> Result<PackCodesAttrs, OpError> {
        let (bits, n) = (attrs.int("bits", 0), attrs.int("N", 0));
        if ![2, 4, 8].contains(&bits) {
            return Err(bad("bits", "must be 2, 4 or 8"));
        }
        match usize::try_from(n) {
            Ok(n) if n > 0 => Ok(PackCodesAttrs {
                bits: bits as usize,
                n,
            }),
            _ => Err(bad("N", "must be positive")),
        }
    }

    /// Rows of a tensor of `elements` elements.
    pub fn rows(&self, dtype: DType, elements: usize) -> Result<usize, OpError> {
        let own = dtype.bits();
        if own != 8 && own != self.bits {
            return Err(OpError::shape(format!(
                "elements of {dtype} have not {} bits",
                self.bits
            )));
        }
        let each = 8 / own;
        let (bytes, rest) = (elements / each, elements % each);
        if rest != 0 || !bytes.is_multiple_of(self.n) {
            return Err(OpError::shape(format!(
                "{elements} codes are not whole bytes of {} columns",
                self.n
            )));
        }
        (bytes / self.n)
            .checked_mul(8 / self.bits)
            .ok_or_else(|| OpError::shape("the codes are too many"))
    }
}
