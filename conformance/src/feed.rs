//! A variant of a function that three workers can run: each parameter first passes through two nodes that undo each
//! other, and each result last. One worker can run the nodes before the function, another one those behind it, and a
//! third one the function itself, without changing a bit.

use std::sync::Arc;

use convoke_graph::graph::{Attr, Attrs, Function, Literal, Node, RunsAt, TensorType, ValueId};
use convoke_graph::{DType, Tensor};

/// The pattern that matches the names of the nodes before a function, and no name of its own nodes.
pub const BEFORE: &str = "fed-from-elsewhere/*";
/// The pattern that matches the names of the nodes behind a function, and no name of its own nodes.
pub const BEHIND: &str = "read-elsewhere/*";

/// Returns `f` with two nodes between each parameter and its uses, and between each result and the caller.
pub fn surrounded(f: &Function) -> Function {
    let mut made = f.clone();
    let mut stands_for: Vec<ValueId> = (0..f.values.len() as u32).map(ValueId).collect();
    let mut feeders = Vec::new();
    for &param in &f.params {
        stands_for[param.ix()] = there_and_back(&mut made, BEFORE, param, &mut feeders);
    }
    for node in &mut made.nodes {
        for input in node.inputs.iter_mut().flatten() {
            *input = stands_for[input.ix()];
        }
    }
    let mut readers = Vec::new();
    for at in 0..f.results.len() {
        let result = stands_for[f.results[at].1.ix()];
        made.results[at].1 = there_and_back(&mut made, BEHIND, result, &mut readers);
    }
    made.nodes.splice(0..0, feeders);
    made.nodes.extend(readers);
    made
}

/// Adds two nodes that undo each other to `nodes`, with names that `pattern` matches. Returns the value behind them.
fn there_and_back(
    f: &mut Function,
    pattern: &str,
    mut value: ValueId,
    nodes: &mut Vec<Node>,
) -> ValueId {
    let (ty, count) = (f.ty(value).clone(), nodes.len());
    for step in ["there", "back"] {
        let name = format!("{step}/{count}/{}", f.value(value).name);
        let name: Arc<str> = pattern.replace('*', &name).into();
        let (op, attrs, dtype) = step_op(ty.dtype, step == "there");
        let out = f.add_value(name.clone(), TensorType::new(dtype, ty.shape.clone()));
        let mut inputs = vec![Some(value)];
        if op == "StringConcat" {
            let empty = Tensor::zeros(DType::Str, &[]).expect("an empty string fits");
            let ty = TensorType::fixed(DType::Str, &[]);
            let id = f.add_value(format!("{name}/empty"), ty);
            f.literals.push((id, Literal::Inline(empty)));
            inputs.push(Some(id));
        }
        nodes.push(Node {
            name,
            op: op.into(),
            attrs,
            inputs,
            outputs: vec![out],
            runs_at: RunsAt::Step,
        });
        value = out;
    }
    value
}

/// The op and attributes of the first or the second of two nodes that undo each other for values of `dtype`, with the
/// dtype of its result: a function that is its own inverse, which for strings adds an empty one, or a conversion of a
/// narrow dtype there and back.
fn step_op(dtype: DType, there: bool) -> (&'static str, Attrs, DType) {
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
    fn every_use_and_every_result_is_surrounded() {
        for dtype in DType::ALL {
            let mut f = Function::default();
            let x = f.add_value("x", TensorType::fixed(dtype, &[2]));
            f.params.push(x);
            f.results = vec![("y".into(), x), ("again".into(), x)];
            let made = surrounded(&f);
            made.verify().unwrap_or_else(|e| panic!("{dtype}: {e}"));
            assert_eq!(made.nodes.len(), 6);
            let fed = made.nodes[1].outputs[0];
            for (at, reader) in [(0, 2), (1, 4)] {
                assert_eq!(made.nodes[reader].inputs[0], Some(fed));
                assert_eq!(made.results[at].1, made.nodes[reader + 1].outputs[0]);
            }
            assert_eq!(made.params, f.params);
        }
    }
}
