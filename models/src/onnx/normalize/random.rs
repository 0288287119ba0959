//! Ops that draw numbers, as ops on numbers that follow from a seed alone. The standard leaves open which numbers they
//! are.
//!
//! The seed is the node's, or follows from the node's name, so that a model gives the same numbers in every step, and a
//! node in the body of a loop the same numbers in every iteration.

use convoke_graph::graph::{Attr, Attrs, ValueId};
use convoke_graph::{DType, Tensor};

use super::super::builder::Builder;
use super::node::{ImportFailure, ImportedNode, Outputs, unsupported};

type Made = Result<ValueId, ImportFailure>;

/// The key and the stream of a node's numbers.
fn seed(b: &mut Builder, c: &mut ImportedNode) -> Made {
    let key = match c.take_float("seed")? {
        Some(seed) => i64::from(seed.to_bits()),
        None => {
            let [a, b, c, d, e, f, g, h, ..] = *blake3::hash(c.name.as_bytes()).as_bytes();
            i64::from_le_bytes([a, b, c, d, e, f, g, h])
        }
    };
    Ok(b.ints(&c.sub("seed"), &[key, 0])?)
}

/// Imports RandomUniform, RandomNormal and those of another tensor's shape.
pub(super) fn random(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let seed = seed(b, &mut c)?;
    let (shape, dtype) = match c.op.as_str() {
        "RandomUniform" | "RandomNormal" => {
            let shape = c.take_ints("shape")?;
            let shape = shape.ok_or_else(|| c.error("attribute 'shape' is missing"))?;
            (b.ints(&c.sub("shape"), &shape)?, DType::F32)
        }
        _ => {
            let x = c.need(0)?;
            let shape = c.before(b, "Shape", Attrs::default(), vec![Some(x)])?;
            (shape, c.dtype(b, 0))
        }
    };
    let mut attrs = std::mem::take(&mut c.attrs);
    if attrs.get("dtype").is_none() {
        attrs = attrs.with("dtype", Attr::DType(dtype));
    }
    let op = match c.op.starts_with("RandomUniform") {
        true => "PhiloxUniform",
        false => "PhiloxNormal",
    };
    c.finish(b, op, attrs, vec![Some(shape), Some(seed)])
}

/// Numbers of this dtype, uniform in [0, 1).
fn uniform(b: &mut Builder, c: &ImportedNode, shape: ValueId, seed: ValueId, dtype: DType) -> Made {
    let attrs = Attrs::default().with("dtype", Attr::DType(dtype));
    let operands = vec![Some(shape), Some(seed)];
    Ok(c.before(b, "PhiloxUniform", attrs, operands)?)
}

/// Imports Bernoulli: one where a uniform number is below the probability.
pub(super) fn bernoulli(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let x = c.need(0)?;
    let dtype = c.dtype(b, 0);
    if !dtype.is_float() {
        return Err(unsupported(format!("probabilities of {dtype}")));
    }
    let to = c.take("dtype").unwrap_or(Attr::DType(dtype));
    let seed = seed(b, &mut c)?;
    let shape = c.before(b, "Shape", Attrs::default(), vec![Some(x)])?;
    let drawn = uniform(b, &c, shape, seed, dtype)?;
    let below = c.before(b, "Less", Attrs::default(), vec![Some(drawn), Some(x)])?;
    let to = Attrs::default().with("to", to);
    c.finish(b, "Cast", to, vec![Some(below)])
}

/// Imports Multinomial: the number of classes whose probabilities, with those before, sum up to no more than a uniform
/// number.
pub(super) fn multinomial(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let x = c.need(0)?;
    let samples = c.take_int("sample_size")?.unwrap_or(1);
    let to = c.take("dtype").unwrap_or(Attr::DType(DType::I32));
    let seed = seed(b, &mut c)?;
    let none = Attrs::default;
    // Sums of halves would be too coarse.
    let wide = match c.dtype(b, 0) {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let widened = none().with("to", Attr::DType(wide));
    let x = c.before(b, "Cast", widened, vec![Some(x)])?;
    let along = none().with("axis", Attr::Int(1));
    let shares = c.before(b, "Softmax", along, vec![Some(x)])?;
    let axis = b.literal(&c.sub("axis"), Tensor::scalar(1i64));
    let sums = c.before(b, "CumSum", none(), vec![Some(shares), Some(axis)])?;
    // The last sum is one, up to rounding.
    let bounds = [0, -1, 1].map(|v| b.ints(&c.sub("bounds"), &[v]));
    let [from, end, second] = bounds;
    let (from, end, second) = (from?, end?, second?);
    let operands = vec![Some(sums), Some(from), Some(end), Some(second)];
    let sums = c.before(b, "Slice", none(), operands)?;
    let sums = c.before(b, "Unsqueeze", none(), vec![Some(sums), Some(second)])?;
    let first = none().with("start", Attr::Int(0)).with("end", Attr::Int(1));
    let batch = c.before(b, "Shape", first, vec![Some(x)])?;
    let count = b.ints(&c.sub("sample_size"), &[samples])?;
    let joined = none().with("axis", Attr::Int(0));
    let shape = c.before(b, "Concat", joined, vec![Some(batch), Some(count)])?;
    let drawn = uniform(b, &c, shape, seed, wide)?;
    let third = b.ints(&c.sub("axes"), &[2])?;
    let drawn = c.before(b, "Unsqueeze", none(), vec![Some(drawn), Some(third)])?;
    let passed = c.before(b, "LessOrEqual", none(), vec![Some(sums), Some(drawn)])?;
    let counted = none().with("to", Attr::DType(DType::I64));
    let passed = c.before(b, "Cast", counted, vec![Some(passed)])?;
    let flat = none().with("keepdims", Attr::Int(0));
    let chosen = c.before(b, "ReduceSum", flat, vec![Some(passed), Some(third)])?;
    c.finish(b, "Cast", none().with("to", to), vec![Some(chosen)])
}
