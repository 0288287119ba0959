//! Rest: when calls have ended nothing is left, and processes that are asked to stop leave no task.

pub(in crate::invariants) mod at_rest;
pub(in crate::invariants) mod processes;
pub(in crate::invariants) mod stops;
