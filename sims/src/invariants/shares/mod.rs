//! Budgets: memory and compute are shared as promised, and who is revoked is refused.

pub(in crate::invariants) mod budgets;
pub(in crate::invariants) mod fairness;
pub(in crate::invariants) mod revocation;
