//! A cluster gets ready: all workers are registered and all clients connected within the bound.

use crate::invariants::invariant::{Findings, Invariant, Stage};
use crate::invariants::view::View;

pub(in crate::invariants) struct Ready;

impl Invariant for Ready {
    fn name(&self) -> &'static str {
        "the cluster gets ready"
    }

    fn at(&mut self, stage: Stage, view: &View<'_>, found: &mut Findings) {
        if stage == Stage::Ready && !view.missing().is_empty() {
            found.say(format!("not ready: {}", view.missing()));
        }
    }
}
