//! What a call has to yield: a direct evaluation of the function as the caller wrote it, node by node.
//!
//! It shares nothing with the product but the kernels: no pass, no placement, no executor. Models are planned as
//! `exact`, where no pass may change a bit, so the results have to agree bit for bit.

use convoke_common::Tensor;
use convoke_common::error::Code;
use convoke_worker::cpu::evaluate::{evaluate, inline_only};

use crate::workload::{Model, TRAP, Trap};

/// What a call yields when nothing disturbs it.
#[derive(Debug, Clone, PartialEq)]
pub enum Expected {
    /// These results, in their order.
    Results(Vec<Tensor>),
    /// This error, of this node.
    Fails { code: Code, node: String },
}

/// Bytes that only a sprung trap asks for.
const ABSURD: i64 = 1 << 30;

/// What `model` yields for these inputs.
pub fn expect(model: &Model, inputs: &[(String, Tensor)]) -> Expected {
    let size =
        |(name, t): &(String, Tensor)| name == "size" && t.to_i64s().is_some_and(|v| v[0] > ABSURD);
    if inputs.iter().any(size) {
        // The evaluator has no budget, so it would really allocate.
        return Expected::Fails {
            code: Trap::Memory.code(),
            node: TRAP.into(),
        };
    }
    let given: Vec<Tensor> = inputs.iter().map(|(_, t)| t.clone()).collect();
    match evaluate(&model.function, &given, &inline_only) {
        Ok(results) => Expected::Results(results),
        Err(e) => Expected::Fails {
            code: e.code,
            node: e.site.and_then(|s| s.node).unwrap_or_default(),
        },
    }
}

/// The first result whose dtype, shape or bytes differ.
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
