//! Finds the activation that follows a value.

use convoke_graph::graph::ValueId;

use convoke_graph::ops::{BinaryOp, FloatUnary, Op, UnaryOp, float_function};

use super::fused_node::keeps_bits;
use crate::passes::edit::Edit;

/// An activation that is applied to a value with no other use.
pub struct ActivationNodes {
    pub nodes: Vec<usize>,
    /// The activation's name in the attribute `activation`.
    pub name: &'static str,
    /// The values of `act_alpha` and `act_beta`, as far as the activation has them.
    pub parameters: Vec<f32>,
}

/// Returns the activation that is the only user of `value`.
pub fn following(e: &Edit, value: ValueId) -> Option<ActivationNodes> {
    match e.users(value) {
        [_] => single(e, value, e.sole_user(value)?),
        [a, b] if !e.is_result(value) => gated(e, value, *a as usize, *b as usize),
        _ => None,
    }
}

fn single(e: &Edit, value: ValueId, node: usize) -> Option<ActivationNodes> {
    let n = &e.f.nodes[node];
    if e.operand(node, 0) != Some(value) || n.outputs.len() != 1 {
        return None;
    }
    let of = |name, parameters| {
        Some(ActivationNodes {
            nodes: vec![node],
            name,
            parameters,
        })
    };
    let Op::Unary(op) = n.kind()? else {
        return None;
    };
    if op == UnaryOp::Clip {
        let bounds = [e.operand(node, 1)?, e.operand(node, 2)?];
        return of("Clip", vec![e.scalar(bounds[0])?, e.scalar(bounds[1])?]);
    }
    // The parameters of a function are float attributes, so none is rounded here.
    match float_function(op, &n.attrs).ok()?? {
        FloatUnary::Relu => of("Relu", vec![]),
        FloatUnary::Sigmoid => of("Sigmoid", vec![]),
        FloatUnary::Tanh => of("Tanh", vec![]),
        FloatUnary::HardSwish => of("HardSwish", vec![]),
        FloatUnary::HardSigmoid { alpha, beta } => {
            of("HardSigmoid", vec![alpha as f32, beta as f32])
        }
        FloatUnary::LeakyRelu { alpha } => of("LeakyRelu", vec![alpha as f32]),
        FloatUnary::Gelu => of("Gelu", vec![]),
        FloatUnary::GeluTanh => of("GeluTanh", vec![]),
        FloatUnary::Swish { alpha: 1. } => of("Silu", vec![]),
        _ => None,
    }
}

/// Finds gated activations: in f32, x · sigmoid(x) has the bits of Silu, and x · hard_sigmoid(x) with alpha 1/6 and beta 1/2 those
/// of HardSwish. Other dtypes round the gate.
fn gated(e: &Edit, value: ValueId, first: usize, second: usize) -> Option<ActivationNodes> {
    let gate = &e.f.nodes[first];
    let Op::Unary(op) = gate.kind()? else {
        return None;
    };
    let sixth = f64::from(1f32 / 6.);
    let name = match float_function(op, &gate.attrs).ok()?? {
        FloatUnary::Sigmoid => ["Silu", "GatedSigmoid"],
        FloatUnary::HardSigmoid { alpha, beta: 0.5 } if alpha == sixth => {
            ["HardSwish", "GatedHardSigmoid"]
        }
        _ => return None,
    };
    let name = name[usize::from(!keeps_bits(e, value))];
    let gated = *gate.outputs.first()?;
    let product = &e.f.nodes[second];
    let operands = [e.operand(second, 0)?, e.operand(second, 1)?];
    let matches = product.is(BinaryOp::Mul)
        && !e.is_removed(first)
        && !e.is_removed(second)
        && e.sole_user(gated) == Some(second)
        && (operands == [value, gated] || operands == [gated, value]);
    matches.then(|| ActivationNodes {
        nodes: vec![first, second],
        name,
        parameters: vec![],
    })
}
