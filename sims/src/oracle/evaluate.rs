//! A function, evaluated node by node in the order in which it lists them.

use convoke_common::error::Code;
use convoke_graph::Tensor;
use convoke_graph::graph::{Function, Literal, ValueId};

use super::ops;

/// An evaluation that a node ended.
#[derive(Debug, PartialEq)]
pub(super) struct NodeFailure {
    pub code: Code,
    pub node: String,
}

/// Evaluates `f` for parameters in its order; results have its order as well.
pub(super) fn evaluate(f: &Function, given: &[Tensor]) -> Result<Vec<Tensor>, NodeFailure> {
    assert_eq!(given.len(), f.params.len(), "parameters of '{}'", f.name);
    let mut values: Vec<Option<Tensor>> = vec![None; f.values.len()];
    for (id, tensor) in f.params.iter().zip(given) {
        values[id.ix()] = Some(tensor.clone());
    }
    for (id, literal) in &f.literals {
        let Literal::Inline(tensor) = literal else {
            panic!("the oracle reads no artifact, as '{}' asks it to", f.name);
        };
        values[id.ix()] = Some(tensor.clone());
    }
    let value = |values: &[Option<Tensor>], at: usize| -> Tensor {
        let known = values[at].clone();
        known.unwrap_or_else(|| panic!("value {at} of '{}' is used before it is made", f.name))
    };
    for node in &f.nodes {
        let operand = |id: &Option<ValueId>| {
            let id = id.unwrap_or_else(|| panic!("{} lacks an operand", node.op));
            value(&values, id.ix())
        };
        let operands: Vec<Tensor> = node.inputs.iter().map(operand).collect();
        let outputs = ops::apply(node, &operands)?;
        assert_eq!(outputs.len(), node.outputs.len(), "outputs of {node:?}");
        for (id, tensor) in node.outputs.iter().zip(outputs) {
            values[id.ix()] = Some(tensor);
        }
    }
    let results = f.results.iter();
    Ok(results.map(|(_, id)| value(&values, id.ix())).collect())
}
