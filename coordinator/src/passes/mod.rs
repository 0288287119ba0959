//! Optimisation: passes from function to function, all before placement.
//!
//! ```text
//! prune, fold, transpose, identity, cse -> init -> rewrite, batch norm -> fuse, pack -> cse, prune
//! ```
//!
//! Invariants
//! 1. No pass reads a weight: what depends on weights becomes nodes of the init part, run by the worker
//!    that owns them.
//! 2. Only `rewrite` and `batch_norm` change values, and they are off when the caller asks for exact
//!    results. Every other pass keeps every bit.
//! 3. Names, types and order of parameters and results stay.
//! 4. Each pass is linear in the graph, and is given and yields a function that verifies.

mod batch_norm;
mod cse;
mod edit;
mod fold;
mod fuse;
mod identity;
mod init;
mod pack;
mod prune;
mod rewrite;
mod transpose;

use convoke_common::{Code, Error, Result};
use convoke_graph::graph::{Function, GraphError};

/// An optimised function, and one line for each pass that changed something.
#[derive(Debug, Clone)]
pub struct OptimisedFunction {
    pub function: Function,
    pub report: Vec<String>,
}

/// A pass returns the new function, and a description of its changes if it made any.
type Pass = fn(Function) -> (Function, Option<String>);

/// Each pass with its name, and whether it may change values.
const PASSES: &[(&str, bool, Pass)] = &[
    ("prune", false, prune::run),
    ("fold", false, fold::run),
    ("transpose", false, transpose::run),
    ("identity", false, identity::run),
    ("cse", false, cse::run),
    ("init", false, init::run),
    ("rewrite", true, rewrite::run),
    ("batch norm", true, batch_norm::run),
    ("fuse", false, fuse::run),
    ("pack", false, pack::run),
    ("cse", false, cse::run),
    ("prune", false, prune::run),
];

/// Optimises `function`. With `exact` no value changes in any bit.
pub fn optimise(function: Function, exact: bool) -> Result<OptimisedFunction> {
    function.verify().map_err(|e| {
        let code = match e {
            GraphError::Unsupported { .. } => Code::UnsupportedOp,
            _ => Code::InvalidGraph,
        };
        Error::new(code, e.to_string())
    })?;
    let (mut function, mut report) = (function, Vec::new());
    for (name, changes_values, pass) in PASSES {
        if *changes_values && exact {
            continue;
        }
        let (next, line) = pass(function);
        function = next;
        report.extend(line.map(|l| format!("{name}: {l}")));
        if cfg!(debug_assertions) {
            verify_after(&function, name)?;
        }
    }
    verify_after(&function, "the last pass")?;
    Ok(OptimisedFunction { function, report })
}

fn verify_after(f: &Function, pass: &str) -> Result<()> {
    f.verify()
        .map_err(|e| Error::internal(format!("after {pass}: {e}")))
}

/// Formats a count with its noun: `1 node`, `2 nodes`.
fn count(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests;
