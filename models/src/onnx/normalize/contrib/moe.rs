//! MoE, mixtures of experts:
//!
//! ```text
//! X [tokens, hidden] ── of every expert: product, activation, product ── [experts, tokens, hidden] ─┐
//! router [tokens, experts] ── Softmax ── the greatest k, others zero ─────────────────────────── sum of products ── Y
//! ```
//!
//! Every expert computes every token, because which of them a token needs is known only when it is there.

use convoke_graph::DType;
use convoke_graph::graph::{Attr, Attrs, ValueId};

use super::super::super::builder::Builder;
use super::super::node::{
    Expansion, ImportFailure, ImportedNode, Made, Outputs, axis_of, unsupported, without_axes,
};
use super::norm::wide;

/// The activation that an expert applies to its first product.
pub(super) enum Gate {
    Op(&'static str, Attrs),
    Identity,
    /// Its result is multiplied by the third product, where that is given.
    Silu,
    /// A gated unit. How its two halves lie is the op's `swiglu_fusion`.
    SwiGlu {
        fusion: i64,
        alpha: f32,
        beta: f32,
        limit: Option<f32>,
    },
}

impl Gate {
    pub fn take(c: &mut ImportedNode) -> Result<Gate, ImportFailure> {
        let name = c.take_name("activation_type")?;
        let alpha = c.take_float("activation_alpha")?.unwrap_or(1.0);
        let beta = c.take_float("activation_beta")?.unwrap_or(0.0);
        let fusion = c.take_int("swiglu_fusion")?.unwrap_or(0);
        let limit = c.take_float("swiglu_limit")?;
        Ok(match name.as_deref() {
            None | Some("relu") => Gate::Op("Relu", Attrs::default()),
            Some("gelu") => {
                let attrs = Attrs::default().with("approximate", Attr::Str("tanh".into()));
                Gate::Op("Gelu", attrs)
            }
            Some("silu") => Gate::Silu,
            Some("identity") => Gate::Identity,
            Some("swiglu") if (0..=2).contains(&fusion) => Gate::SwiGlu {
                fusion,
                alpha,
                beta,
                limit,
            },
            Some("swiglu") => return Err(c.wrong("swiglu_fusion", "0, 1 or 2").into()),
            Some(other) => return Err(unsupported(format!("the activation {other}"))),
        })
    }
}

/// How tokens choose their experts.
pub(super) struct Routing {
    /// How many experts a token has.
    k: i64,
    /// Whether the weights of a token's experts sum to one.
    pub normalised: bool,
}

impl Routing {
    pub fn take(c: &mut ImportedNode) -> Result<Routing, ImportFailure> {
        let k = c.take_int("k")?.unwrap_or(1);
        if k < 1 {
            return Err(c.wrong("k", "above zero").into());
        }
        let normalised = c.take_flag("normalize_routing_weights", false)?;
        match c.take_flag("use_sparse_mixer", false)? {
            true => Err(unsupported("attribute 'use_sparse_mixer'")),
            false => Ok(Routing { k, normalised }),
        }
    }
}

/// Imports MoE.
pub(super) fn moe(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let gate = Gate::take(&mut c)?;
    let routing = Routing::take(&mut c)?;
    c.no_more_attributes()?;
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let mut e = Expansion { b, c: &c };
    let e = &mut e;
    let tokens = tokens(e)?;
    let tokens = e.unsqueezed(tokens, &[0])?;
    let first = product(e, tokens, 2)?;
    let third = c.input(6).is_some() || c.input(7).is_some();
    let mut linear = |e: &mut Expansion<'_>| product(e, tokens, 6);
    let inner = gated(e, &gate, first, third.then_some(&mut linear))?;
    let results = product(e, inner, 4)?;
    combined(e, &routing, results, None)
}

/// The operand as [tokens, hidden].
pub(super) fn tokens(e: &mut Expansion<'_>) -> Made {
    let x = e.c.need(0)?;
    let hidden = e.shape(x)?.last().and_then(|d| d.as_const());
    let hidden = hidden.ok_or_else(|| unsupported("tokens of a size that is not known"))?;
    e.reshaped(x, &[-1, hidden])
}

/// Applies the activation to the first product. `third` makes the third product, where it is given.
pub(super) fn gated(
    e: &mut Expansion<'_>,
    gate: &Gate,
    first: ValueId,
    third: Option<&mut dyn FnMut(&mut Expansion<'_>) -> Made>,
) -> Made {
    match (gate, third) {
        (Gate::Silu, None) => e.plain("Swish", &[first]),
        (Gate::Silu, Some(third)) => {
            let gate = e.plain("Swish", &[first])?;
            let linear = third(e)?;
            e.plain("Mul", &[gate, linear])
        }
        (Gate::SwiGlu { fusion: 0, .. }, None) => Err(e.c.error("has no third product").into()),
        (Gate::SwiGlu { fusion: 1.., .. } | Gate::Op(..) | Gate::Identity, Some(_)) => {
            Err(unsupported("a third product"))
        }
        (Gate::Identity, None) => Ok(first),
        (Gate::Op(op, attrs), None) => e.op(op, attrs.clone(), &[first]),
        (
            Gate::SwiGlu {
                fusion,
                alpha,
                beta,
                limit,
            },
            third,
        ) => {
            let (gate, linear) = match third {
                Some(third) => (first, third(e)?),
                None => halves(e, first, *fusion == 1)?,
            };
            swiglu(e, gate, linear, (*alpha, *beta, *limit))
        }
    }
}

/// The sum of the experts' `results` [experts, tokens, hidden] by the weights of each token, in the shape of the
/// operand. `shares` [tokens, experts] are the weights, if they do not follow from the router's scores.
pub(super) fn combined(
    e: &mut Expansion<'_>,
    routing: &Routing,
    results: ValueId,
    shares: Option<ValueId>,
) -> Outputs {
    let results = wide(e, results)?;
    let dtype = e.ty(results)?.dtype;
    let weights = weights(e, routing, shares, dtype)?;
    // An expert that was not chosen may compute infinities, which must not reach the sum. Nor must weights that are not
    // numbers, as those of a token whose weights sum to zero.
    let zero = e.float("zero", dtype, 0.0)?;
    let chosen = e.plain("Greater", &[weights, zero])?;
    let results = e.plain("Where", &[chosen, results, zero])?;
    let weights = e.plain("Where", &[chosen, weights, zero])?;
    let parts = e.plain("Mul", &[results, weights])?;
    let axes = e.ints("axes", &[0])?;
    let y = e.op("ReduceSum", without_axes(), &[parts, axes])?;
    let x = e.c.need(0)?;
    let y = e.cast(y, e.ty(x)?.dtype)?;
    let shape = e.op("Shape", Attrs::default(), &[x])?;
    Ok(vec![e.last(0, "Reshape", Attrs::default(), &[y, shape])?])
}

/// The product of each expert with operand `weight` [experts, rows, columns], and the bias that follows it.
fn product(e: &mut Expansion<'_>, x: ValueId, weight: usize) -> Made {
    let (weight, bias) = (e.c.need(weight)?, e.c.input(weight + 1));
    if e.shape(weight)?.len() != 3 {
        return Err(e.c.error("weights of experts must have rank 3").into());
    }
    let weight = e.transposed(weight, &[0, 2, 1])?;
    let y = e.plain("MatMul", &[x, weight])?;
    match bias {
        None => Ok(y),
        Some(bias) => {
            let bias = e.unsqueezed(bias, &[1])?;
            e.plain("Add", &[y, bias])
        }
    }
}

/// The two halves of the last axis, which alternate or follow each other.
fn halves(
    e: &mut Expansion<'_>,
    x: ValueId,
    alternating: bool,
) -> Result<(ValueId, ValueId), ImportFailure> {
    if alternating {
        let gate = e.slice(x, -1, 0, i64::MAX, 2)?;
        return Ok((gate, e.slice(x, -1, 1, i64::MAX, 2)?));
    }
    let columns = e.shape(x)?.last().and_then(|d| d.as_const());
    let columns = columns.ok_or_else(|| unsupported("weights of a shape that is not known"))?;
    let gate = e.slice(x, -1, 0, columns / 2, 1)?;
    Ok((gate, e.slice(x, -1, columns / 2, i64::MAX, 1)?))
}

fn swiglu(
    e: &mut Expansion<'_>,
    mut gate: ValueId,
    mut linear: ValueId,
    (alpha, beta, limit): (f32, f32, Option<f32>),
) -> Made {
    let dtype = e.ty(gate)?.dtype;
    if let Some(limit) = limit {
        let high = e.float("limit", dtype, limit.into())?;
        let low = e.float("limit", dtype, (-limit).into())?;
        gate = e.plain("Min", &[gate, high])?;
        linear = e.plain("Clip", &[linear, low, high])?;
    }
    let attrs = Attrs::default().with("alpha", Attr::Float(alpha));
    let gate = e.op("Swish", attrs, &[gate])?;
    if beta != 0.0 {
        let beta = e.float("beta", dtype, beta.into())?;
        linear = e.plain("Add", &[linear, beta])?;
    }
    e.plain("Mul", &[gate, linear])
}

/// The weight of each expert for each token, [experts, tokens, 1]: zero except for the greatest `k` of a token. Among
/// experts with equal logits, the last ones are chosen.
fn weights(
    e: &mut Expansion<'_>,
    routing: &Routing,
    shares: Option<ValueId>,
    dtype: DType,
) -> Made {
    let router = e.c.need(1)?;
    let router = wide(e, router)?;
    let all = match shares {
        Some(shares) => wide(e, shares)?,
        None => e.op("Softmax", axis_of(-1), &[router])?,
    };
    // TopK chooses the first ones of equal elements.
    let reversed = e.slice(router, -1, -1, i64::MIN, -1)?;
    let count = e.ints("k", &[routing.k])?;
    let name = e.c.sub("TopK");
    let names = [format!("{name}.0"), format!("{name}.1")];
    let operands = vec![Some(reversed), Some(count)];
    let made = e.b.emit("TopK", &name, axis_of(-1), operands, &names)?;
    let [_, places] = made[..] else {
        return Err(e.c.error("has no experts").into());
    };
    let experts = e.length(router, -1)?;
    let one = e.ints("one", &[1])?;
    let last = e.plain("Sub", &[experts, one])?;
    let experts = e.plain("Sub", &[last, places])?;
    let mut greatest = e.op("GatherElements", axis_of(-1), &[all, experts])?;
    if routing.normalised {
        let axes = e.ints("axes", &[-1])?;
        let sum = e.plain("ReduceSum", &[greatest, axes])?;
        greatest = e.plain("Div", &[greatest, sum])?;
    }
    let shape = e.plain("Shape", &[all])?;
    let precise = e.ty(all)?.dtype;
    let zero = e.float("zero", precise, 0.0)?;
    let none = e.plain("Expand", &[zero, shape])?;
    let weights = e.op("ScatterElements", axis_of(1), &[none, experts, greatest])?;
    let weights = e.cast(weights, dtype)?;
    let weights = e.transposed(weights, &[1, 0])?;
    e.unsqueezed(weights, &[2])
}
