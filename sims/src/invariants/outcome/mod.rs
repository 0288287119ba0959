//! Outcomes: results are right, each send meets one recv, client and participants agree on each outcome, and what the
//! coordinator answers has an order.

pub(in crate::invariants) mod agreement;
pub(in crate::invariants) mod delivery;
pub(in crate::invariants) mod one_life;
pub(in crate::invariants) mod order;
pub(in crate::invariants) mod results;
