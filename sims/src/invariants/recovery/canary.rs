//! After faults heal, a step of each client succeeds within the bound, with the right result.

use crate::invariants::invariant::{Findings, Invariant, Stage};
use crate::invariants::view::{Canary, View};
use crate::oracle::difference;

pub(in crate::invariants) struct Canaries;

impl Invariant for Canaries {
    fn name(&self) -> &'static str {
        "a step succeeds after all is mended"
    }

    fn at(&mut self, stage: Stage, view: &View<'_>, found: &mut Findings) {
        if stage != Stage::Rest {
            return;
        }
        for Canary { client, want, got } in view.canaries {
            let complaint = match got {
                Some(Ok(got)) => difference(want, got),
                Some(Err(e)) => Some(format!("{}: {e}", e.code.name())),
                None => Some("no answer in time".to_owned()),
            };
            if let Some(complaint) = complaint {
                found.say(format!("c{client}: {complaint}"));
            }
        }
    }
}
