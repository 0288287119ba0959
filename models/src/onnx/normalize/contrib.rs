//! Ops of ONNX Runtime's domain `com.microsoft` that can be expressed by standard ops.

use convoke_graph::graph::{Attr, Attrs, ValueId};

use super::super::builder::Builder;
use super::{ImportedNode, Outputs, operands, unsupported};

/// Imports a node of the domain `com.microsoft`.
pub(in super::super) fn microsoft(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    match c.op.as_str() {
        "Gelu" => c.emit(b),
        "BiasGelu" => gelu(b, c, "none"),
        "FastGelu" => gelu(b, c, "tanh"),
        "QuickGelu" => quick_gelu(b, c),
        "LayerNormalization" => c.emit(b),
        "SkipLayerNormalization" => skip_layer_norm(b, c),
        _ => {
            c.op = format!("com.microsoft.{}", c.op);
            b.unsupported(&c.name, &c.op, None);
            Ok(b.stand_ins(&c.outputs))
        }
    }
}

/// Imports Gelu of the sum of the operands.
fn gelu(b: &mut Builder, c: ImportedNode, approximate: &str) -> Outputs {
    let x = sum(b, &c, c.need(0)?, c.input(1))?;
    let attrs = Attrs::default().with("approximate", Attr::Str(approximate.into()));
    c.finish(b, "Gelu", attrs, vec![Some(x)])
}

/// Imports QuickGelu as `x * sigmoid(alpha * x)`.
fn quick_gelu(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let x = c.need(0)?;
    let alpha = c.take_float("alpha")?.unwrap_or(1.702);
    let alpha = operands::scalar(b, &c, "alpha", alpha)?;
    let inner = c.before(b, "Mul", Attrs::default(), vec![Some(x), Some(alpha)])?;
    let gate = c.before(b, "Sigmoid", Attrs::default(), vec![Some(inner)])?;
    c.finish(b, "Mul", Attrs::default(), vec![Some(x), Some(gate)])
}

/// Imports layer normalisation of `input + skip + bias`. The sum is the optional fourth output.
fn skip_layer_norm(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let (x, skip, scale) = (c.need(0)?, c.need(1)?, c.need(2)?);
    let (beta, bias) = (c.input(3), c.input(4));
    if c.outputs.len() > 4 {
        return Err(c.error("has more than four outputs").into());
    }
    if c.outputs.iter().take(3).skip(1).any(|o| !o.is_empty()) {
        return Err(unsupported("outputs of mean and variance"));
    }
    let epsilon = c.take_float("epsilon")?.unwrap_or(1e-12);
    let with_skip = sum(b, &c, x, Some(skip))?;
    let total = sum(b, &c, with_skip, bias)?;
    let attrs = Attrs::default()
        .with("axis", Attr::Int(-1))
        .with("epsilon", Attr::Float(epsilon));
    let others = c.outputs.len() - 1;
    c.outputs.truncate(1);
    let mut out = c.finish(
        b,
        "LayerNormalization",
        attrs,
        vec![Some(total), Some(scale), beta],
    )?;
    // The second and third output, which nothing reads, and the fourth one are all the sum.
    out.extend(std::iter::repeat_n(total, others));
    Ok(out)
}

fn sum(
    b: &mut Builder,
    c: &ImportedNode,
    x: ValueId,
    y: Option<ValueId>,
) -> Result<ValueId, super::ImportFailure> {
    match y {
        None => Ok(x),
        Some(_) => Ok(c.before(b, "Add", Attrs::default(), vec![Some(x), y])?),
    }
}
