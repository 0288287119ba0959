//! A call that succeeds yields the results of a direct evaluation, bit for bit.

use super::{Found, Invariant, View};
use crate::oracle::{Expected, difference};
use crate::script::Ended;

/// Indices of the records that were checked.
#[derive(Default)]
pub(super) struct Results(std::collections::BTreeSet<usize>);

impl Invariant for Results {
    fn name(&self) -> &'static str {
        "results equal a direct evaluation"
    }

    fn tick(&mut self, view: &View<'_>, found: &mut Found) {
        for (i, r) in view.records.iter().enumerate() {
            let (Some(call), Some((_, Ended::Results(got)))) = (r.call, &r.ended) else {
                continue;
            };
            if !self.0.insert(i) {
                continue;
            }
            let complaint = match view.expected.get(&(r.client, call)) {
                Some(Expected::Results(want)) => difference(want, got),
                Some(Expected::Fails { node, .. }) => {
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
