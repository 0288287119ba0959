//! A variant of a function whose operands come from another worker: each parameter first passes through two nodes that
//! undo each other. One worker can run these nodes and another one the rest, without changing a bit.

use std::sync::Arc;

use convoke_graph::DType;
use convoke_graph::graph::{Attrs, Function, Node, RunsAt, ValueId};

/// The pattern that matches the names of the feeding nodes, and no name of the function's own nodes.
pub const FEEDERS: &str = "fed-from-elsewhere/*";

/// Returns `f` with every use of a parameter replaced by the result of its feeding nodes.
pub fn fed(f: &Function) -> Function {
    let mut fed = f.clone();
    let mut feeders = Vec::new();
    let mut stands_for: Vec<ValueId> = (0..f.values.len() as u32).map(ValueId).collect();
    for &param in &f.params {
        let mut value = param;
        for step in ["there", "back"] {
            let name: Arc<str> = FEEDERS
                .replace('*', &format!("{step}/{}", f.value(param).name))
                .into();
            let out = fed.add_value(name.clone(), f.ty(param).clone());
            feeders.push(Node {
                name,
                op: self_inverse(f.ty(param).dtype).into(),
                attrs: Attrs::default(),
                inputs: vec![Some(value)],
                outputs: vec![out],
                runs_at: RunsAt::Step,
            });
            value = out;
        }
        stands_for[param.ix()] = value;
    }
    for node in &mut fed.nodes {
        for input in node.inputs.iter_mut().flatten() {
            *input = stands_for[input.ix()];
        }
    }
    for (_, result) in &mut fed.results {
        *result = stands_for[result.ix()];
    }
    fed.nodes.splice(0..0, feeders);
    fed
}

/// An op that returns its operand when it is applied twice.
fn self_inverse(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "Not",
        _ if dtype.is_float() => "Neg",
        // Not `Neg`, since the least integer has no negation.
        _ => "BitwiseNot",
    }
}

#[cfg(test)]
mod tests {
    use convoke_graph::graph::TensorType;

    use super::*;

    #[test]
    fn every_use_is_fed() {
        for dtype in DType::ALL {
            let mut f = Function::default();
            let x = f.add_value("x", TensorType::fixed(dtype, &[2]));
            f.params.push(x);
            f.results = vec![("y".into(), x), ("again".into(), x)];
            let fed = fed(&f);
            fed.verify().unwrap_or_else(|e| panic!("{dtype}: {e}"));
            assert_eq!(fed.nodes.len(), 2);
            assert!(
                fed.results
                    .iter()
                    .all(|(_, v)| *v == fed.nodes[1].outputs[0])
            );
            assert_eq!(fed.params, f.params);
        }
    }
}
