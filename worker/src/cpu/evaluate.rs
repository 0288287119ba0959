//! A function evaluated node by node on the calling thread: the reference that executors are compared with.
//!
//! Only tests call it. It shares only [`resolve`] with the executors.

use std::sync::atomic::AtomicBool;

use convoke_common::memory::{Ledger, Pool, Purpose};
use convoke_common::{Code, Error, Result, Site};
use convoke_graph::graph::{Function, Literal, Node, TensorType, ValueId};
use convoke_graph::{DType, Tensor};
use convoke_kernels::Exec;

use super::kernel::{Inputs, KernelFailure, Launch, Operands};
use super::resolution::resolve;

/// A function that loads the tensor of a literal.
pub type LoadLiteral<'a> = &'a dyn Fn(&Function, &Literal, &TensorType) -> Result<Tensor>;

/// Runs both parts of `f` on `params`, which have the order of `f.params`; the results have the order of `f.results`.
pub fn evaluate(f: &Function, params: &[Tensor], load: LoadLiteral<'_>) -> Result<Vec<Tensor>> {
    if params.len() != f.params.len() {
        let message = format!(
            "{} parameters given, the function takes {}",
            params.len(),
            f.params.len()
        );
        return Err(Error::new(Code::InvalidInput, message));
    }
    let cancel = AtomicBool::new(false);
    let exec = Exec::single(&cancel);
    let pool = Pool::new(&Ledger::new("evaluator", u64::MAX), Purpose::Handles, 0)?;
    let mut values: Vec<Option<Tensor>> = vec![None; f.values.len()];
    for (id, tensor) in f.params.iter().zip(params) {
        values[id.ix()] = Some(tensor.clone());
    }
    for (id, literal) in &f.literals {
        values[id.ix()] = Some(load(f, literal, f.ty(*id))?);
    }
    let last = last_uses(f);
    for (at, node) in f.nodes.iter().enumerate() {
        let inputs = operands(node, at, &last, &mut values)?;
        let signatures: Vec<String> = inputs.iter().flatten().map(Tensor::signature).collect();
        let outputs = run(node, inputs, exec, &pool).map_err(|e| {
            let (name, op) = (Some(node.name.to_string()), Some(node.op.to_string()));
            e.at(Site {
                node: name,
                op,
                operands: signatures,
                ..Site::default()
            })
        })?;
        for (id, tensor) in node.outputs.iter().zip(outputs) {
            values[id.ix()] = Some(tensor);
        }
    }
    f.results
        .iter()
        .map(|(_, id)| values[id.ix()].clone().ok_or_else(|| undefined(f, *id)))
        .collect()
}

/// By value, the last node that reads it; `None` for results, which must stay.
fn last_uses(f: &Function) -> Vec<Option<usize>> {
    let mut last = vec![None; f.values.len()];
    for (at, node) in f.nodes.iter().enumerate() {
        for id in node.inputs.iter().flatten() {
            last[id.ix()] = Some(at);
        }
    }
    for (_, id) in &f.results {
        last[id.ix()] = None;
    }
    last
}

fn operands(
    node: &Node,
    at: usize,
    last: &[Option<usize>],
    values: &mut [Option<Tensor>],
) -> Result<Inputs> {
    let again = |i: usize, id: ValueId| node.inputs[i + 1..].contains(&Some(id));
    let mut inputs = Inputs::new();
    for (i, id) in node.inputs.iter().enumerate() {
        let Some(id) = *id else {
            inputs.push(None);
            continue;
        };
        let value = &mut values[id.ix()];
        let tensor = if last[id.ix()] == Some(at) && !again(i, id) {
            value.take()
        } else {
            value.clone()
        };
        let missing =
            || Error::internal(format!("an operand of node '{}' has no value", node.name));
        inputs.push(Some(tensor.ok_or_else(missing)?));
    }
    Ok(inputs)
}

fn run(node: &Node, mut inputs: Inputs, exec: Exec<'_>, pool: &Pool) -> Result<super::Outputs> {
    let dtypes: Vec<Option<DType>> = inputs
        .iter()
        .map(|t| t.as_ref().map(Tensor::dtype))
        .collect();
    let kernel = resolve(&node.op, &node.attrs, &dtypes, node.outputs.len())
        .map_err(|e| Error::new(Code::UnsupportedOp, e.to_string()))?;
    kernel
        .launch(&mut Launch {
            inputs: Operands::given(&mut inputs),
            sizes: None,
            exec,
            pool,
        })
        .map_err(|e| match e {
            KernelFailure::Cancelled => Error::new(Code::Cancelled, "cancelled"),
            KernelFailure::Error(e) => *e,
        })
}

fn undefined(f: &Function, id: ValueId) -> Error {
    Error::new(
        Code::InvalidGraph,
        format!("result '{}' has no definition", f.value(id).name),
    )
}

/// Loads inline literals; ranges are refused.
pub fn inline_only(f: &Function, literal: &Literal, _: &TensorType) -> Result<Tensor> {
    match literal {
        Literal::Inline(t) => Ok(t.clone()),
        Literal::Range { artifact, .. } => {
            let name = &f.name;
            Err(Error::new(
                Code::NotFound,
                format!("artifact {artifact} of function '{name}' is not at hand"),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use convoke_graph::graph::{Attrs, RunsAt};

    use super::*;
    use crate::cpu::testing::vec1;

    /// The function `results = op(x, c); double = Add(y, y)` of a parameter x and an inline constant c.
    fn function(op: &str, c: Tensor) -> Function {
        let mut f = Function::default();
        let mut value = |name: &str, dtype| f.add_value(name, TensorType::fixed(dtype, &[2]));
        let (x, k) = (value("x", c.dtype()), value("c", c.dtype()));
        let (y, double) = (value("y", c.dtype()), value("double", c.dtype()));
        f.literals.push((k, Literal::Inline(c)));
        f.params.push(x);
        for (name, op, inputs, output) in [("n0", op, [x, k], y), ("n1", "Add", [y, y], double)] {
            f.nodes.push(Node {
                name: name.into(),
                op: op.into(),
                attrs: Attrs::default(),
                inputs: inputs.map(Some).into(),
                outputs: vec![output],
                runs_at: RunsAt::Step,
            });
        }
        f.results = vec![("double".into(), double), ("x".into(), x)];
        f
    }

    #[test]
    fn values_flow_and_parameters_stay() {
        let x = vec1(&[1f32, 2.0]);
        let out = evaluate(
            &function("Sub", vec1(&[10f32, 10.0])),
            std::slice::from_ref(&x),
            &inline_only,
        )
        .unwrap();
        assert_eq!(out, [vec1(&[-18f32, -16.0]), vec1(&[1f32, 2.0])]);
        assert_eq!(x, vec1(&[1f32, 2.0]));
    }

    #[test]
    fn an_error_names_its_node() {
        let e = evaluate(
            &function("Div", vec1(&[1i32, 0])),
            &[vec1(&[1i32, 1])],
            &inline_only,
        )
        .unwrap_err();
        assert_eq!(e.code, Code::KernelFailed);
        assert!(
            e.to_string()
                .contains("[node 'n0', op Div(i32[2], i32[2])]"),
            "{e}"
        );
        let e = evaluate(&function("Div", vec1(&[1f32, 0.0])), &[], &inline_only).unwrap_err();
        assert_eq!(e.code, Code::InvalidInput);
    }
}
