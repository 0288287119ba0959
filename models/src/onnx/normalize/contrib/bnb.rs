//! MatMulBnb4: a product with weights in the 4-bit formats of bitsandbytes, which become numbers once, at install.
//!
//! ```text
//! B, bytes of two codes ── the number of each code ── × absmax of each block ── [N, K]ᵀ ──┐
//! A ──────────────────────────────────────────────────────────────────────────────── MatMul ── Y
//! ```

use convoke_graph::graph::Attrs;
use convoke_graph::{DType, Tensor};

use super::super::super::builder::Builder;
use super::super::node::{Expansion, ImportedNode, Outputs, axis_of, unsupported};
use super::super::quantised::{First, unpacked};

/// The numbers of the codes of FP4, whose greatest number is 12 there: a sign, and subnormal numbers.
const FP4: [f32; 16] = [
    0.0,
    5.208_333_3e-3,
    0.666_666_7,
    1.0,
    0.333_333_34,
    0.5,
    0.166_666_67,
    0.25,
    -0.0,
    -5.208_333_3e-3,
    -0.666_666_7,
    -1.0,
    -0.333_333_34,
    -0.5,
    -0.166_666_67,
    -0.25,
];

/// The numbers of the codes of NF4, between which a normal distribution is equally frequent.
const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// Imports MatMulBnb4.
pub(super) fn product(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let needed = |c: &mut ImportedNode, attr: &str| match c.take_int(attr)? {
        Some(n) if n > 0 => Ok(n),
        _ => Err(c.wrong(attr, "a number above zero")),
    };
    let (k, n) = (needed(&mut c, "K")?, needed(&mut c, "N")?);
    let block = needed(&mut c, "block_size")?;
    let table = match c.take_int("quant_type")? {
        Some(0) => FP4,
        Some(1) => NF4,
        _ => return Err(c.wrong("quant_type", "0 or 1").into()),
    };
    // This concerns training alone.
    c.take_int("training_mode")?;
    if !c.take_flag("transB", true)? {
        return Err(unsupported("weights that are not transposed"));
    }
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let count = n.checked_mul(k).filter(|count| *count < i64::MAX / 4);
    let count = count.ok_or_else(|| c.error("has too large weights"))?;
    let block = block.min(count);
    let blocks = (count - 1) / block + 1;
    // The padding of the last block has codes as well; its numbers are cut off again.
    let filled = blocks * block;
    let bytes = count / 2 + count % 2;
    let (a, packed, scales) = (c.need(0)?, c.need(1)?, c.need(2)?);
    let mut e = Expansion { b, c: &c };
    let e = &mut e;
    let packed = e.reshaped(packed, &[bytes])?;
    let mut codes = unpacked(e, packed, 4, First::High)?;
    let missing = filled.saturating_sub(2 * bytes);
    if missing > 0 {
        let pads = e.ints("pads", &[0, missing])?;
        codes = e.plain("Pad", &[codes, pads])?;
    }
    if 2 * bytes > filled {
        codes = e.slice(codes, 0, 0, filled, 1)?;
    }
    let codes = e.cast(codes, DType::I32)?;
    let table = Tensor::from_slice(&[table.len()], &table);
    let table = table.map_err(|error| c.error(error.to_string()))?;
    let table = e.b.literal(&c.sub("table"), table);
    let numbers = e.op("Gather", axis_of(0), &[table, codes])?;
    let numbers = e.reshaped(numbers, &[blocks, block])?;
    let scales = e.reshaped(scales, &[blocks, 1])?;
    let scales = e.cast(scales, DType::F32)?;
    let mut weights = e.plain("Mul", &[numbers, scales])?;
    if filled != count {
        weights = e.reshaped(weights, &[filled])?;
        weights = e.slice(weights, 0, 0, count, 1)?;
    }
    weights = e.reshaped(weights, &[n, k])?;
    let dtype = e.ty(a)?.dtype;
    weights = e.cast(weights, dtype)?;
    weights = e.transposed(weights, &[1, 0])?;
    Ok(vec![e.last(
        0,
        "MatMul",
        Attrs::default(),
        &[a, weights],
    )?])
}
