//! Attributes of ops of classical models.

use super::bad;
use crate::graph::Attrs;
use crate::ops::error::OpError;

/// The most targets of an ensemble of trees.
const MOST_TARGETS: i64 = 1 << 20;

/// How the weights of one target become its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aggregate {
    Sum,
    Average,
    Min,
    Max,
}

/// Attributes of `TreeEnsemble`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeAttrs {
    pub aggregate: Aggregate,
    pub targets: usize,
}

impl TreeAttrs {
    /// Reads the attributes of a node.
    pub fn new(attrs: &Attrs) -> Result<TreeAttrs, OpError> {
        let aggregate = match attrs.str("aggregate_function", "SUM") {
            "SUM" => Aggregate::Sum,
            "AVERAGE" => Aggregate::Average,
            "MIN" => Aggregate::Min,
            "MAX" => Aggregate::Max,
            other => return Err(bad("aggregate_function", format!("'{other}' is unknown"))),
        };
        let targets = attrs.int("n_targets", 0);
        if !(1..=MOST_TARGETS).contains(&targets) {
            let why = format!("must be between 1 and {MOST_TARGETS}, not {targets}");
            return Err(bad("n_targets", why));
        }
        Ok(TreeAttrs {
            aggregate,
            targets: targets as usize,
        })
    }
}
