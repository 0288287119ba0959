//! QMoE, mixtures of experts whose weights are codes. The codes of each expert stay packed:
//!
//! ```text
//! X ── MatMulNBits by the codes of an expert ── activation ── MatMulNBits ──┐
//!      (once for each expert)                                               Concat [experts, tokens, hidden] ── as MoE
//! ```

use convoke_graph::graph::{Attr, Attrs, ValueId};
use convoke_graph::{DType, Dim, Tensor};

use super::super::super::builder::Builder;
use super::super::node::{
    Expansion, ImportFailure, ImportedNode, Made, Outputs, axis_of, unsupported,
};
use super::moe::{Gate, Routing, combined, gated, tokens};
use super::norm::wide;

/// The weights of one product of all experts: their operands, and the bits of a code.
struct Codes {
    weights: usize,
    zeros: usize,
    bits: i64,
}

impl Codes {
    fn scales(&self) -> usize {
        self.weights + 1
    }

    fn bias(&self) -> usize {
        self.weights + 2
    }
}

/// The weights that a token's experts have, where they are an operand of their own.
const SHARES: usize = 14;

/// Imports QMoE.
pub(super) fn qmoe(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let gate = Gate::take(&mut c)?;
    let mut routing = Routing::take(&mut c)?;
    // ONNX Runtime takes the softmax of the chosen experts alone, whatever the attribute says: their weights sum to one.
    routing.normalised |= c.input(SHARES).is_none();
    if let Some(kind) = c.take_name("quant_type")?.filter(|kind| kind != "int") {
        return Err(unsupported(format!("weights of the type {kind}")));
    }
    if c.take_int("weights_prepacked")? == Some(1) {
        return Err(unsupported("weights that are packed for a device"));
    }
    // A hint about the precision of sums, which are f32 here. The blocks follow from the shape of the scales.
    c.take_int("accuracy_level")?;
    c.take_int("block_size")?;
    let bits = c.take_int("expert_weight_bits")?.unwrap_or(4);
    let mut codes = |name: &str, weights, zeros| {
        let own = c.take_int(name)?.unwrap_or(bits);
        match own {
            2 | 4 | 8 => Ok(Codes {
                weights,
                zeros,
                bits: own,
            }),
            _ => Err(ImportFailure::from(c.wrong(name, "2, 4 or 8"))),
        }
    };
    let first = codes("fc1_expert_weight_bits", 2, 11)?;
    let second = codes("fc2_expert_weight_bits", 5, 12)?;
    let third = codes("fc3_expert_weight_bits", 8, 13)?;
    c.no_more_attributes()?;
    if (15..c.inputs.len()).any(|i| c.input(i).is_some()) {
        return Err(unsupported("scales of whole experts or of activations"));
    }
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let mut e = Expansion { b, c: &c };
    let e = &mut e;
    let experts = match e.shape(c.need(2)?)?.as_slice() {
        [experts, _, _] => experts.as_const(),
        _ => return Err(c.error("weights of experts must have rank 3").into()),
    };
    let experts = experts.ok_or_else(|| unsupported("experts of a number that is not known"))?;
    let x = tokens(e)?;
    let x = wide(e, x)?;
    let mut results = vec![];
    for expert in 0..experts {
        let at = e.int("expert", expert)?;
        let sums = product(e, x, &first, at)?;
        let mut linear = |e: &mut Expansion<'_>| product(e, x, &third, at);
        let linear = c
            .input(third.weights)
            .is_some()
            .then_some(&mut linear as &mut dyn FnMut(&mut Expansion<'_>) -> Made);
        let inner = gated(e, &gate, sums, linear)?;
        let y = product(e, inner, &second, at)?;
        results.push(e.unsqueezed(y, &[0])?);
    }
    let results = e.joined(0, &results)?;
    combined(e, &routing, results, c.input(SHARES))
}

/// The product of `x` [tokens, k] with the weights of expert `at`, and the bias that follows it.
fn product(e: &mut Expansion<'_>, x: ValueId, of: &Codes, at: ValueId) -> Made {
    let known = |e: &mut Expansion<'_>, i: usize| -> Result<(ValueId, Vec<i64>), ImportFailure> {
        let all = e.c.need(i)?;
        let own = e.op("Gather", axis_of(0), &[all, at])?;
        let shape: Option<Vec<i64>> = e.shape(own)?.iter().map(Dim::as_const).collect();
        let shape = shape.ok_or_else(|| unsupported("weights of a shape that is not known"))?;
        Ok((own, shape))
    };
    let (codes, shape) = known(e, of.weights)?;
    let [n, bytes] = shape[..] else {
        return Err(e.c.error("weights of experts must have rank 3").into());
    };
    let k = bytes
        .checked_mul(8 / of.bits)
        .ok_or_else(|| e.c.error("has too large weights"))?;
    let (scales, shape) = known(e, of.scales())?;
    let blocks = match shape[..] {
        [_] => 1,
        [_, blocks] => blocks,
        _ => return Err(e.c.error("scales must have rank 2 or 3").into()),
    };
    if blocks < 1 || k % blocks != 0 {
        let reason = format!("{k} weights of a row do not divide into {blocks} blocks");
        return Err(e.c.error(reason).into());
    }
    let scales = wide(e, scales)?;
    let zeros = match e.c.input(of.zeros) {
        None => None,
        Some(_) => {
            let (own, shape) = known(e, of.zeros)?;
            // Rows without blocks have their zero points side by side in bytes.
            Some(match shape.len() {
                1 if of.bits < 8 => numbers(e, own, n, of.bits)?,
                _ => own,
            })
        }
    };
    let bias = match e.c.input(of.bias()) {
        None => None,
        Some(bias) => {
            let bias = e.op("Gather", axis_of(0), &[bias, at])?;
            Some(wide(e, bias)?)
        }
    };
    let attrs = Attrs::default()
        .with("K", Attr::Int(k))
        .with("N", Attr::Int(n))
        .with("bits", Attr::Int(of.bits))
        .with("block_size", Attr::Int(k / blocks));
    let operands = vec![Some(x), Some(codes), Some(scales), zeros, bias];
    Ok(e.c.before(e.b, "MatMulNBits", attrs, operands)?)
}

/// The first `n` codes that lie in bytes, those in low bits first, as numbers.
fn numbers(e: &mut Expansion<'_>, packed: ValueId, n: i64, bits: i64) -> Made {
    let bits = bits as u8;
    let places: Vec<u8> = (0..8).step_by(bits.into()).collect();
    let places = Tensor::from_slice(&[places.len()], &places);
    let places = places.map_err(|error| e.c.error(error.to_string()))?;
    let places = e.b.literal(&e.c.sub("places"), places);
    let mask =
        e.b.literal(&e.c.sub("mask"), Tensor::scalar((1u8 << bits) - 1));
    let bytes = e.unsqueezed(packed, &[1])?;
    let right = Attrs::default().with("direction", Attr::Str("RIGHT".into()));
    let shifted = e.op("BitShift", right, &[bytes, places])?;
    let codes = e.plain("BitwiseAnd", &[shifted, mask])?;
    let codes = e.reshaped(codes, &[-1])?;
    let codes = e.slice(codes, 0, 0, n, 1)?;
    e.cast(codes, DType::F32)
}
