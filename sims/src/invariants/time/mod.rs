//! Time: losses are noticed, calls end and participants stop within their bounds.

pub(in crate::invariants) mod attempts;
pub(in crate::invariants) mod deadlines;
pub(in crate::invariants) mod detection;
pub(in crate::invariants) mod progress;
pub(in crate::invariants) mod queues;
pub(in crate::invariants) mod stopping;
