//! The expected outcome of a call, by a direct evaluation of the function as the caller wrote it, node by node.
//!
//! The evaluation shares nothing with the product but the types of a function and its tensors: no pass, no placement, no
//! executor and no kernel. Each op is written here once more, as loops over single numbers, by what ONNX says and by the
//! rules of the numerics profile (docs/internals/devices-and-numerics.md), which decide every bit. Models are planned as
//! `exact`, where no pass may change a bit, so results have to agree bit for bit.
//!
//! ```text
//! evaluate ──> ops ──> element, elementary    one number at a time
//!    ^          ├────> rows                   sums, norms, extremes along the last axis
//!    │          ├────> movement               elements that change their places
//!    └── control <──┘                         bodies, which are functions again
//! ```
//!
//! Workloads have few ops. One that is not written here panics, and with it the simulator: an op that nobody checks would
//! look like one that is right.

mod control;
mod element;
mod elementary;
mod evaluate;
mod movement;
mod ops;
mod rows;
mod slices;
#[cfg(test)]
mod tests;

use convoke_common::error::Code;
use convoke_graph::Tensor;

use crate::workload::Model;
use evaluate::evaluate;

/// The outcome of a call that nothing disturbs.
#[derive(Debug, Clone, PartialEq)]
pub enum ExpectedOutcome {
    /// The results, in the function's order.
    Results(Vec<Tensor>),
    /// An error with this code, at this node.
    Fails { code: Code, node: String },
}

/// Computes the expected outcome of `model` for these inputs.
pub fn expect(model: &Model, inputs: &[(String, Tensor)]) -> ExpectedOutcome {
    let given: Vec<Tensor> = inputs.iter().map(|(_, t)| t.clone()).collect();
    match evaluate(&model.function, &given) {
        Ok(results) => ExpectedOutcome::Results(results),
        Err(failed) => ExpectedOutcome::Fails {
            code: failed.code,
            node: failed.node,
        },
    }
}

/// Describes the first result whose dtype, shape or bytes differ.
pub fn difference(want: &[Tensor], got: &[Tensor]) -> Option<String> {
    if want.len() != got.len() {
        return Some(format!("{} results, {} expected", got.len(), want.len()));
    }
    want.iter().zip(got).enumerate().find_map(|(i, (w, g))| {
        let same = w.dtype() == g.dtype() && w.shape() == g.shape() && w.bytes() == g.bytes();
        (!same).then(|| {
            let at = w.bytes().iter().zip(g.bytes()).position(|(a, b)| a != b);
            format!(
                "result {i}: {} expected, {} came; first difference at byte {at:?}",
                w.signature(),
                g.signature()
            )
        })
    })
}
