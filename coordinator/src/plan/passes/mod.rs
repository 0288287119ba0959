//! Optimisation: passes from function to function, all before placement.
//!
//! ```text
//! prune, fold, transpose, identity, cse -> init -> rewrite, batch norm, coded -> sink, bodies -> fuse, pack
//!     -> cse, prune
//! ```
//!
//! Invariants
//! 1. No pass reads a weight: nodes that depend on weights alone move to the init part, which the worker that owns the
//!    weights runs.
//! 2. Only `rewrite`, `batch_norm` and `coded` change values, each only where the caller's choice of [`Numerics`]
//!    includes it. Every other pass keeps every bit.
//!    They run before nodes move into branches or out of loops, so that no value depends on where a node ends up.
//! 3. Names, types and order of parameters and results stay.
//! 4. Each pass is linear in the graph, and is given and yields a function that verifies.

mod approximate;
mod bodies;
mod cse;
mod edit;
mod fold;
mod fuse;
mod identity;
mod init;
mod pack;
mod pass;
mod prune;
mod sink;
mod transpose;

use convoke_common::rpc::Numerics;
use convoke_common::{Code, Error, Result};
use convoke_graph::graph::{Function, GraphError};

use approximate::{batch_norm, coded, rewrite};
pub use bodies::{Bodies, control_op, read_by};
use pass::Pass;
pub use sink::StaysInPlace;

/// An optimised function, and one line for each pass that changed something.
#[derive(Debug, Clone)]
pub struct OptimisedFunction {
    pub function: Function,
    pub report: Vec<String>,
    /// Whether nodes have moved into branches of control flow, which could have stayed.
    pub moved: bool,
}

/// The changes that a pass may make.
enum PassKind {
    /// It keeps every bit of every value.
    Exact(Pass),
    /// It may change values, and runs where this choice is included.
    Approximate(Numerics, Pass),
    /// It keeps values, and leaves nodes of these names where they are.
    Moving(fn(Function, StaysInPlace<'_>) -> (Function, Option<String>)),
}

/// Each pass with its name.
const PASSES: &[(&str, PassKind)] = &[
    ("prune", PassKind::Exact(prune::run)),
    ("fold", PassKind::Exact(fold::run)),
    ("transpose", PassKind::Exact(transpose::run)),
    ("identity", PassKind::Exact(identity::run)),
    ("cse", PassKind::Exact(cse::run)),
    ("init", PassKind::Exact(init::run)),
    (
        "rewrite",
        PassKind::Approximate(Numerics::Standard, rewrite::run),
    ),
    (
        "batch norm",
        PassKind::Approximate(Numerics::Standard, batch_norm::run),
    ),
    ("coded", PassKind::Approximate(Numerics::Int8, coded::run)),
    ("sink", PassKind::Moving(sink::run)),
    ("bodies", PassKind::Exact(bodies::run)),
    ("fuse", PassKind::Exact(fuse::run)),
    ("pack", PassKind::Exact(pack::run)),
    ("cse", PassKind::Exact(cse::run)),
    ("prune", PassKind::Exact(prune::run)),
];

/// Optimises `function`. `numerics` says what may happen to values.
pub fn optimise(function: Function, numerics: Numerics) -> Result<OptimisedFunction> {
    optimise_in_place(function, numerics, &|_| false)
}

/// As [`optimise`]. A node that `stays` names does not move into a branch of control flow.
pub fn optimise_in_place(
    function: Function,
    numerics: Numerics,
    stays: StaysInPlace<'_>,
) -> Result<OptimisedFunction> {
    function.verify().map_err(|e| {
        let code = match e {
            GraphError::Unsupported { .. } => Code::UnsupportedOp,
            _ => Code::InvalidGraph,
        };
        Error::new(code, e.to_string())
    })?;
    let (mut function, mut report, mut moved) = (function, Vec::new(), false);
    for (name, pass) in PASSES {
        let (next, line) = match pass {
            PassKind::Approximate(of, _) if numerics < *of => continue,
            PassKind::Exact(pass) | PassKind::Approximate(_, pass) => pass(function),
            PassKind::Moving(pass) => pass(function, stays),
        };
        function = next;
        moved |= matches!(pass, PassKind::Moving(_)) && line.is_some();
        report.extend(line.map(|l| format!("{name}: {l}")));
        if cfg!(debug_assertions) {
            verify_after(&function, name)?;
        }
    }
    verify_after(&function, "the last pass")?;
    Ok(OptimisedFunction {
        function,
        report,
        moved,
    })
}

fn verify_after(f: &Function, pass: &str) -> Result<()> {
    f.verify()
        .map_err(|e| Error::internal(format!("after {pass}: {e}")))
}

#[cfg(test)]
mod tests;
