//! Ops on handles. They have no kernel here: the executor runs them itself, since they need the caller's session.

use convoke_common::Error;

use crate::cpu::call::{FamilyAnswer, Spec, body};

pub(super) fn find(spec: &Spec<'_>) -> FamilyAnswer {
    match spec.op {
        "HandleIn" | "HandleOut" => {
            body(|_| Err(Error::internal("a handle outside a step").into())).map(Some)
        }
        _ => Ok(None),
    }
}
