//! Ops on handles. They have no kernel here: the executor runs them itself, since they need the caller's session.

use convoke_common::Error;
use convoke_graph::ops::HandleOp;

use crate::cpu::kernel::{FamilyAnswer, body};

/// Makes the kernel of an op that only executors run.
pub(super) fn find(op: HandleOp) -> FamilyAnswer {
    body(move |_| Err(Error::internal(format!("{} outside a step", op.name())).into()))
}
