//! What a model reports to the program's closure.

use std::time::Duration;

use convoke_common::error::Error;

use crate::calls::rerun::Rerun;

/// What a model reports while it loads, or when work is repeated after a loss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// The model's files are read once, for their hashes.
    Hashing {
        /// Bytes hashed so far.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// The load waits for workers to join.
    Workers {
        /// Workers that have joined so far.
        have: u32,
        /// Workers that the plan needs.
        need: u32,
    },
    /// The coordinator optimises, places and partitions the function.
    Planning,
    /// The function does not fit the memory that is free: the load waits until memory is released.
    Waiting {
        /// What is needed, what is free, and who has the rest.
        cause: Error,
        /// How long the load waits at most.
        most: Duration,
    },
    /// Workers load weights.
    Loading {
        /// Bytes in place so far.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// The model has something that is ignored.
    Remark(String),
    /// A worker was lost: a step runs again on other workers, or the model was loaded again on them.
    Rerun(Rerun),
}
