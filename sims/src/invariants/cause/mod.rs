//! Cause: what ends a call is what was done to it, and nothing ends one that had to succeed.

pub(in crate::invariants) mod given_up;
pub(in crate::invariants) mod must_succeed;
pub(in crate::invariants) mod refused;
pub(in crate::invariants) mod root_cause;
pub(in crate::invariants) mod undisturbed;
