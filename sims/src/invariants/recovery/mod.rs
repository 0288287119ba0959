//! Recovery: once faults are healed everybody comes back, computes, and keeps what it is told.

pub(in crate::invariants) mod back;
pub(in crate::invariants) mod canary;
pub(in crate::invariants) mod keeping;
pub(in crate::invariants) mod ready;
