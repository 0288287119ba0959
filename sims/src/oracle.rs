//! The expected outcome of a call, by a direct evaluation of the function as the caller wrote it, node by node.
//!
//! The evaluation shares nothing with the product except the kernels: no pass, no placement, no executor. Models are
//! planned as `exact`, where no pass may change a bit, so results have to agree bit for bit.

use convoke_common::error::Code;
use convoke_graph::Tensor;
use convoke_worker::cpu::evaluate::{evaluate, inline_only};

use crate::workload::{Model, TRAP, Trap};

/// The outcome of a call that nothing disturbs.
#[derive(Debug, Clone, PartialEq)]
pub enum ExpectedOutcome {
    /// The results, in the function's order.
    Results(Vec<Tensor>),
    /// An error with this code, at this node.
    Fails { code: Code, node: String },
}

/// A number of elements that only a sprung trap asks for more than.
const ABSURD: i64 = 1 << 30;

/// Computes the expected outcome of `model` for these inputs.
pub fn expect(model: &Model, inputs: &[(String, Tensor)]) -> ExpectedOutcome {
    let size =
        |(name, t): &(String, Tensor)| name == "size" && t.to_i64s().is_some_and(|v| v[0] > ABSURD);
    if inputs.iter().any(size) {
        // The evaluator has no memory limit, so it would really allocate the tensor.
        return ExpectedOutcome::Fails {
            code: Trap::Memory.code(),
            node: TRAP.into(),
        };
    }
    let given: Vec<Tensor> = inputs.iter().map(|(_, t)| t.clone()).collect();
    match evaluate(&model.function, &given, &inline_only) {
        Ok(results) => ExpectedOutcome::Results(results),
        Err(e) => ExpectedOutcome::Fails {
            code: e.code,
            node: e.site.and_then(|s| s.node).unwrap_or_default(),
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
