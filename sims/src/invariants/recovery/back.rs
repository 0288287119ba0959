//! After faults heal, all processes come back within the bound, except those that were told to leave.

use crate::invariants::invariant::{Findings, Invariant, Stage};
use crate::invariants::view::View;

pub(in crate::invariants) struct Back;

impl Invariant for Back {
    fn name(&self) -> &'static str {
        "everybody comes back"
    }

    fn at(&mut self, stage: Stage, view: &View<'_>, found: &mut Findings) {
        if stage == Stage::Back && !view.missing().is_empty() {
            let missing = view.missing();
            found.say(format!("not back after all is mended: {missing}"));
        }
    }
}
