//! Results: they are right, each send meets one recv, and client and participants agree on each outcome.

pub(in crate::invariants) mod agreement;
pub(in crate::invariants) mod delivery;
pub(in crate::invariants) mod one_life;
pub(in crate::invariants) mod results;
