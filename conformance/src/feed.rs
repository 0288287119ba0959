//! A variant of a function whose operands come from another worker: each parameter first passes through two nodes that
//! undo each other. One worker can run these nodes and another one the rest, without changing a bit.

use std::sync::Arc;

use convoke_graph::graph::{Attr, Attrs, Function, Literal, Node, RunsAt, TensorType, ValueId};
use convoke_graph::{DType, Tensor};

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
            let (op, attrs, dtype) = feeder(f.ty(param).dtype, step == "there");
            let ty = TensorType::new(dtype, f.ty(param).shape.clone());
            let out = fed.add_value(name.clone(), ty);
            let mut inputs = vec![Some(value)];
            if op == "StringConcat" {
                let empty = Tensor::zeros(DType::Str, &[]).expect("an empty string fits");
                let ty = TensorType::fixed(DType::Str, &[]);
                let id = fed.add_value(format!("{name}/empty"), ty);
                fed.literals.push((id, Literal::Inline(empty)));
                inputs.push(Some(id));
            }
            feeders.push(Node {
                name,
                op: op.into(),
                attrs,
                inputs,
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

/// The op and attributes of the first or the second feeding node of a parameter of `dtype`, with the dtype of its result:
/// a function that is its own inverse, which for strings adds an empty one, or a conversion of a narrow dtype there
/// and back.
fn feeder(dtype: DType, there: bool) -> (&'static str, Attrs, DType) {
    if dtype.is_narrow() {
        let to = if there { dtype.widened() } else { dtype };
        let attrs = Attrs::default().with("to", Attr::DType(to));
        // Infinities stay infinite, and the least power of two stays itself.
        let attrs = attrs.with("saturate", Attr::Int(0));
        return (
            "Cast",
            attrs.with("round_mode", Attr::Str("down".into())),
            to,
        );
    }
    let op = match dtype {
        DType::Bool => "Not",
        DType::Str => "StringConcat",
        _ if dtype.is_float() => "Neg",
        // Not `Neg`, since the least integer has no negation.
        _ => "BitwiseNot",
    };
    (op, Attrs::default(), dtype)
}

#[cfg(test)]
mod tests {
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
