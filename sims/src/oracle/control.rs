//! Ops that run bodies, which are functions.

use std::sync::Arc;

use convoke_graph::graph::{Function, Node};
use convoke_graph::{DType, Tensor};

use super::evaluate::{NodeFailure, evaluate};
use super::slices::{of, tensor};

fn body<'n>(node: &'n Node, name: &str) -> &'n Arc<Function> {
    let body = node.attrs.function(name);
    body.unwrap_or_else(|| panic!("{} has no {name}", node.op))
}

/// The one bool of a condition.
fn holds(t: &Tensor) -> bool {
    assert!(t.dtype() == DType::Bool && t.elements() == 1, "a condition");
    t.bytes()[0] != 0
}

/// A number that an attribute gives, 0 where it is left out.
fn count(node: &Node, name: &str) -> usize {
    node.attrs.int(name, 0) as usize
}

/// `If(condition, captured…)`.
pub(super) fn branch(node: &Node, operands: &[Tensor]) -> Result<Vec<Tensor>, NodeFailure> {
    let name = match holds(&operands[0]) {
        true => "then_branch",
        false => "else_branch",
    };
    evaluate(body(node, name), &operands[1..])
}

/// `Loop(count, condition, carried…, captured…)`, whose body returns a condition and what is carried on.
pub(super) fn iterate(node: &Node, operands: &[Tensor]) -> Result<Vec<Tensor>, NodeFailure> {
    let most = of::<i64>(&operands[0])[0];
    let mut goes_on = holds(&operands[1]);
    let given = &operands[2..];
    let (carried, captured) = given.split_at(given.len() - count(node, "captured"));
    let mut carried = carried.to_vec();
    let mut n = 0;
    while goes_on && n < most {
        let always = Tensor::from_bools(&[], &[true]).unwrap_or_else(|e| panic!("one bool: {e}"));
        let mut params = vec![tensor(&[], &[n]), always];
        params.extend(carried.iter().chain(captured).cloned());
        let mut results = evaluate(body(node, "body"), &params)?;
        assert_eq!(results.len(), 1 + carried.len(), "results of a loop's body");
        goes_on = holds(&results[0]);
        carried = results.split_off(1);
        n += 1;
    }
    Ok(carried)
}

/// `Scan(carried…, scanned…)`, whose body returns what is carried on and an element of each collected result.
pub(super) fn scan(node: &Node, operands: &[Tensor]) -> Result<Vec<Tensor>, NodeFailure> {
    let scanned = count(node, "num_scan_inputs");
    let (carried, scanned) = operands.split_at(operands.len() - scanned);
    let mut carried = carried.to_vec();
    let length = scanned[0].shape()[0];
    let mut collected: Vec<(Vec<usize>, Vec<f32>)> = Vec::new();
    for n in 0..length {
        let slice = |t: &Tensor| {
            let shape = &t.shape()[1..];
            let elements: usize = shape.iter().product();
            tensor(shape, &of::<f32>(t)[n * elements..(n + 1) * elements])
        };
        let mut params = std::mem::take(&mut carried);
        let count = params.len();
        params.extend(scanned.iter().map(slice));
        let mut results = evaluate(body(node, "body"), &params)?;
        let made = results.split_off(count);
        carried = results;
        collected.resize(made.len(), Default::default());
        for ((shape, all), made) in collected.iter_mut().zip(&made) {
            *shape = made.shape().to_vec();
            all.extend_from_slice(of::<f32>(made));
        }
    }
    let whole = |(shape, all): &(Vec<usize>, Vec<f32>)| {
        let shape: Vec<usize> = std::iter::once(length)
            .chain(shape.iter().copied())
            .collect();
        tensor(&shape, all)
    };
    carried.extend(collected.iter().map(whole));
    Ok(carried)
}
