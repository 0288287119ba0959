//! Ops that a few others compute.

pub(super) mod losses;
pub(super) mod softmax;

use convoke_graph::graph::{Attr, Attrs};
use convoke_graph::{DType, Dim};

use super::node::{Expansion, ImportedNode, Outputs, to_dtype};
use crate::onnx::builder::Builder;

/// Imports SwiGLU as `Swish(A) * B`.
pub(super) fn swiglu(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let alpha = c.take_float("alpha")?.unwrap_or(1.0);
    c.no_more_attributes()?;
    let (gate, value) = (c.need(0)?, c.need(1)?);
    let mut e = Expansion { b, c: &c };
    if let (Some(gate), Some(value)) = (e.operand(0), e.operand(1)) {
        let mut pairs = gate.shape.iter().zip(&value.shape);
        if gate.shape.len() != value.shape.len() || pairs.any(|(a, b)| differ(a, b)) {
            let msg = format!("A {gate} and B {value} differ in shape");
            return Err(c.error(msg).into());
        }
    }
    let attrs = Attrs::default().with("alpha", Attr::Float(alpha));
    let gate = e.op("Swish", attrs, &[gate])?;
    Ok(vec![e.last(0, "Mul", Attrs::default(), &[gate, value])?])
}

/// Whether two dimensions are known, and not the same.
fn differ(a: &Dim, b: &Dim) -> bool {
    matches!((a.as_const(), b.as_const()), (Some(a), Some(b)) if a != b)
}

/// Imports Shrink: `x + bias` below `-lambd`, `x - bias` above `lambd`, and 0 between them. Integers are computed as floats, whose
/// fractions are then cut off.
pub(super) fn shrink(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let bias = c.take_float("bias")?.unwrap_or(0.0);
    let lambd = c.take_float("lambd")?.unwrap_or(0.5);
    c.no_more_attributes()?;
    let x = c.need(0)?;
    let given = c.dtype(b, 0);
    let dtype = match given {
        d if d.is_float() => d,
        DType::I8 | DType::I16 | DType::U8 | DType::U16 => DType::F32,
        _ => DType::F64,
    };
    let mut e = Expansion { b, c: &c };
    let x = e.cast(x, dtype)?;
    let [low, high, bias, zero] = [
        ("low", -lambd),
        ("high", lambd),
        ("bias", bias),
        ("zero", 0.0),
    ]
    .map(|(name, v)| e.float(name, dtype, f64::from(v)));
    let (low, high, bias, zero) = (low?, high?, bias?, zero?);
    let (raised, lowered) = (e.plain("Add", &[x, bias])?, e.plain("Sub", &[x, bias])?);
    let above = e.plain("Greater", &[x, high])?;
    let rest = e.plain("Where", &[above, lowered, zero])?;
    let below = e.plain("Less", &[x, low])?;
    let operands = [below, raised, rest];
    Ok(vec![match given == dtype {
        true => e.last(0, "Where", Attrs::default(), &operands)?,
        false => {
            let y = e.plain("Where", &operands)?;
            e.last(0, "Cast", to_dtype(given), &[y])?
        }
    }])
}

/// Imports GroupNormalization of operator set 18, whose scales and biases are those of the groups: instance normalisation of the
/// groups as channels.
pub(super) fn group_norm(b: &mut Builder, mut c: ImportedNode) -> Outputs {
    let groups = c.take_int("num_groups")?;
    let groups = groups.ok_or_else(|| c.error("attribute 'num_groups' is missing"))?;
    let epsilon = c.take_float("epsilon")?.unwrap_or(1e-5);
    c.no_more_attributes()?;
    let (x, scale, bias) = (c.need(0)?, c.need(1)?, c.need(2)?);
    if c.follows_a_refusal(b) {
        return Ok(b.stand_ins(&c.outputs));
    }
    let mut e = Expansion { b, c: &c };
    let channels = e.shape(x)?.get(1).and_then(Dim::as_const);
    if groups < 1 || channels.is_some_and(|n| n % groups != 0) {
        let channels = channels.map_or("the".into(), |n| n.to_string());
        let msg = format!("{channels} channels are not divided by {groups} groups");
        return Err(c.error(msg).into());
    }
    let shape = e.plain("Shape", &[x])?;
    let grouped = e.reshaped(x, &[0, groups, -1])?;
    let attrs = Attrs::default().with("epsilon", Attr::Float(epsilon));
    let y = e.op("InstanceNormalization", attrs, &[grouped, scale, bias])?;
    Ok(vec![e.last(0, "Reshape", Attrs::default(), &[y, shape])?])
}
