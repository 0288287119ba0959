//! Workloads: random typed functions over the op set, and inputs for them.
//!
//! A model is determined by its [`ModelSpec`]: elementwise chains, fan-out and fan-in, products with constants,
//! ops of several outputs, branches and loops, a dynamic axis, tensors large enough for a stream of their own, and one node that
//! fails on values of the caller's choice (the *trap*).

mod build;
mod control;
mod inputs;
mod ops;

use std::sync::Arc;

use convoke_common::error::Code;
use convoke_coordinator::passes::optimise;
use convoke_graph::graph::Function;
use serde::{Deserialize, Serialize};

use crate::draw::Draw;

pub use inputs::inputs;

/// The name of the node that fails on demand.
pub const TRAP: &str = "trap";
/// The largest value of the dynamic axis.
pub const AXIS_BOUND: i64 = 8;

/// Which node of a model fails on demand, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trap {
    /// A gather, whose index the caller gives.
    Index,
    /// An integer division, whose divisor the caller gives.
    Divide,
    /// A constant tensor, whose number of elements the caller gives.
    Memory,
}

impl Trap {
    /// The code of the trap's error.
    pub fn code(self) -> Code {
        match self {
            Trap::Index | Trap::Divide => Code::KernelFailed,
            Trap::Memory => Code::OutOfMemory,
        }
    }
}

/// What determines a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelSpec {
    pub seed: u64,
    /// The number of growth steps, each of which adds a node or a few.
    pub nodes: u16,
    /// Whether tensors are too large to share a lane, and so have streams of their own.
    pub wide: bool,
    /// Whether the outermost axis of the first parameter is dynamic.
    pub dynamic: bool,
    pub trap: Option<Trap>,
    /// The tables that a loop of the model reads, 4 MiB each; the model has no such loop if this is 0. Where no worker has
    /// room for all of them, several workers run the loop's body.
    #[serde(default)]
    pub tables: u8,
}

/// A function, and what a script has to know of it to load and call it.
#[derive(Debug, Clone)]
pub struct Model {
    pub spec: ModelSpec,
    pub function: Arc<Function>,
    /// Names of the nodes that run in each step of the optimised function.
    pub steps: Vec<String>,
}

impl ModelSpec {
    /// Specifies a model of small tensors and fixed shapes that has no trap.
    pub fn narrow(seed: u64, nodes: u16) -> ModelSpec {
        ModelSpec {
            seed,
            nodes,
            wide: false,
            dynamic: false,
            trap: None,
            tables: 0,
        }
    }

    /// Draws the specification of a random model.
    pub fn draw(d: &mut Draw) -> ModelSpec {
        let wide = d.chance(25);
        ModelSpec {
            seed: d.word(),
            nodes: if wide { d.range(4, 10) } else { d.range(4, 24) } as u16,
            wide,
            dynamic: d.chance(40),
            trap: match d.below(5) {
                0 => Some(Trap::Index),
                1 => Some(Trap::Divide),
                2 => Some(Trap::Memory),
                _ => None,
            },
            tables: 0,
        }
    }

    /// Builds the model.
    pub fn build(self) -> Model {
        let function = build::function(self);
        let optimised = optimise(function.clone(), convoke_common::rpc::Numerics::Exact)
            .expect("generated functions verify");
        let steps = optimised.function.nodes.iter();
        Model {
            spec: self,
            steps: steps
                .filter(|n| n.runs_at == convoke_graph::graph::RunsAt::Step)
                .map(|n| n.name.to_string())
                .collect(),
            function: Arc::new(function),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::oracle::{ExpectedOutcome, expect};

    #[test]
    fn models_repeat_verify_and_evaluate() {
        let mut ops = BTreeSet::new();
        let mut d = Draw::new(1);
        for _ in 0..300 {
            let spec = ModelSpec::draw(&mut d);
            let model = spec.build();
            assert_eq!(model.function, spec.build().function);
            assert!(!model.steps.is_empty(), "{spec:?}\n{}", model.function);
            ops.extend(model.function.nodes.iter().map(|n| n.op.to_string()));
            let given = inputs(&model, d.word(), 3, false);
            match expect(&model, &given) {
                ExpectedOutcome::Results(r) => assert_eq!(r.len(), model.function.results.len()),
                ExpectedOutcome::Fails { code, .. } => panic!("{code:?} in {spec:?}"),
            }
            if let Some(trap) = spec.trap {
                let given = inputs(&model, d.word(), 3, true);
                let want = ExpectedOutcome::Fails {
                    code: trap.code(),
                    node: TRAP.into(),
                };
                assert_eq!(expect(&model, &given), want, "{spec:?}");
                assert!(model.steps.iter().any(|s| s.split('+').any(|n| n == TRAP)));
            }
        }
        assert!(ops.len() >= 25, "{ops:?}");
    }
}
