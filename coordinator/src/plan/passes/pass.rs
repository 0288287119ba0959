//! The type of a pass, and the words of its report.

use convoke_graph::graph::Function;

/// A pass returns the new function, and a description of its changes if it made any.
pub type Pass = fn(Function) -> (Function, Option<String>);

/// Formats a count with its noun: `1 node`, `2 nodes`.
pub fn count(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}
