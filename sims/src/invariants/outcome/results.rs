//! A call that succeeds yields the results of a direct evaluation, bit for bit.

use crate::invariants::invariant::{Findings, Invariant};
use crate::invariants::view::View;
use crate::oracle::{ExpectedOutcome, difference};
use crate::script::CallOutcome;

/// Indices of the records that were checked.
#[derive(Default)]
pub(in crate::invariants) struct Results(std::collections::BTreeSet<usize>);

impl Invariant for Results {
    fn name(&self) -> &'static str {
        "results equal a direct evaluation"
    }

    fn tick(&mut self, view: &View<'_>, found: &mut Findings) {
        for (i, r) in view.records.iter().enumerate() {
            let (Some(call), Some((_, CallOutcome::Results(got)))) = (r.call, &r.ended) else {
                continue;
            };
            if !self.0.insert(i) {
                continue;
            }
            let complaint = match view.expected.get(&(r.client, call)) {
                Some(ExpectedOutcome::Results(want)) => difference(want, got),
                Some(ExpectedOutcome::Fails { node, .. }) => {
                    Some(format!("succeeded, though node '{node}' fails"))
                }
                None => Some("nobody knows what it should yield".to_owned()),
            };
            if let Some(complaint) = complaint {
                found.say(format!("call {call} of c{}: {complaint}", r.client));
            }
        }
    }
}
