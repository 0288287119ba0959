//! After faults heal, a step of each client succeeds within the bound, with the right result.

use convoke::Error;
use convoke_graph::Tensor;

use crate::invariants::{Findings, Invariant, Stage, View};
use crate::oracle::difference;

/// The canary of one client: a step that it runs after all faults are healed.
pub struct Canary {
    pub client: u16,
    pub want: Vec<Tensor>,
    /// The step's outcome, or `None` if it did not end in time.
    pub got: Option<Result<Vec<Tensor>, Error>>,
}

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
