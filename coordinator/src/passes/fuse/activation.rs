//! Finds the activation that follows a value.

use convoke_graph::graph::ValueId;

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
    match &*n.op {
        "Relu" => of("Relu", vec![]),
        "Sigmoid" => of("Sigmoid", vec![]),
        "Tanh" => of("Tanh", vec![]),
        "HardSwish" => of("HardSwish", vec![]),
        "HardSigmoid" => of(
            "HardSigmoid",
            vec![n.attrs.float("alpha", 0.2), n.attrs.float("beta", 0.5)],
        ),
        "LeakyRelu" => of("LeakyRelu", vec![n.attrs.float("alpha", 0.01)]),
        "Gelu" if n.attrs.str("approximate", "none") == "none" => of("Gelu", vec![]),
        "Gelu" if n.attrs.str("approximate", "none") == "tanh" => of("GeluTanh", vec![]),
        "Swish" if n.attrs.float("alpha", 1.0) == 1.0 => of("Silu", vec![]),
        "Clip" => {
            let (min, max) = (
                e.scalar(e.operand(node, 1)?)?,
                e.scalar(e.operand(node, 2)?)?,
            );
            of("Clip", vec![min, max])
        }
        _ => None,
    }
}

/// Finds gated activations: x · sigmoid(x) is Silu, and x · hard_sigmoid(x) with alpha 1/6 and beta 1/2 is HardSwish;
/// both compute the same bits.
fn gated(e: &Edit, value: ValueId, first: usize, second: usize) -> Option<ActivationNodes> {
    let gate = &e.f.nodes[first];
    let name = match &*gate.op {
        "Sigmoid" => "Silu",
        "HardSigmoid" => {
            let exact =
                gate.attrs.float("alpha", 0.2) == 1.0 / 6.0 && gate.attrs.float("beta", 0.5) == 0.5;
            exact.then_some("HardSwish")?
        }
        _ => return None,
    };
    let gated = *gate.outputs.first()?;
    let product = &e.f.nodes[second];
    let operands = [e.operand(second, 0)?, e.operand(second, 1)?];
    let matches = &*product.op == "Mul"
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
