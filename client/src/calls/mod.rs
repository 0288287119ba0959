//! Calls of functions: their leases and attempts, and what a call on handles or a partial call gives.

pub(crate) mod attempts;
pub(crate) mod axes;
pub(crate) mod function;
pub(crate) mod holder;
pub(crate) mod install;
pub(crate) mod lease;
pub(crate) mod options;
pub(crate) mod partial;
pub(crate) mod plan;
pub(crate) mod ready;
pub(crate) mod rerun;
pub(crate) mod result;
pub(crate) mod step;
pub(crate) mod worker_process;
