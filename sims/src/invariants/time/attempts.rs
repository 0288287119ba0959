//! A call of a loaded model is tried three times at most.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::cluster::Host;
use crate::faults::{Harm, Injury};
use crate::invariants::invariant::{Findings, Invariant};
use crate::invariants::view::View;
use crate::script::Record;
use crate::steps::Lease;

/// The attempts of one call: the first, and two more after losses.
const MOST: usize = 3;

/// Indices of the records that were checked.
#[derive(Default)]
pub(in crate::invariants) struct Attempts(BTreeSet<usize>);

impl Invariant for Attempts {
    fn name(&self) -> &'static str {
        "a call is tried three times at most"
    }

    fn tick(&mut self, view: &View<'_>, found: &mut Findings) {
        for (i, r) in view.records.iter().enumerate() {
            let (Some(call), Some((ended, _))) = (r.call, &r.ended) else {
                continue;
            };
            if !self.0.insert(i) || !is_alone(view, i, r, *ended) {
                continue;
            }
            let begun = steps_begun(view, r, *ended);
            if begun > MOST {
                found.say(format!("call {call} of c{} began {begun} steps", r.client));
            }
        }
    }
}

/// Whether the steps that the client began meanwhile can only be those of this call: no other call of the client began
/// before this one ended, and ended after this one began.
fn is_alone(view: &View<'_>, index: usize, call: &Record, ended: Duration) -> bool {
    let me = Some(Host::Client(call.client as u16));
    let floods = |i: &Injury| matches!(i.harm, Harm::Flood { .. }) && i.other == me;
    let over = |r: &Record| matches!(r.ended, Some((at, _)) if at < call.begun);
    let mut others = view.records.iter().enumerate();
    let mine = |r: &Record| r.client == call.client && r.call.is_some();
    let beside = others.any(|(i, r)| i != index && mine(r) && r.begun <= ended && !over(r));
    !beside && !view.injured.iter().any(floods)
}

fn steps_begun(view: &View<'_>, call: &Record, ended: Duration) -> usize {
    let me = Some(Host::Client(call.client as u16));
    let (from, to) = (view.zero + call.begun, view.zero + ended);
    let mine = |lease: u64| view.steps.leases.get(&lease).and_then(Lease::driver) == me;
    let meanwhile = |at: &Duration| *at >= from && *at <= to;
    let steps = view.steps.steps.iter();
    let begun = steps.filter(|(_, s)| s.begun.first().is_some_and(meanwhile));
    begun.filter(|((lease, _), _)| mine(*lease)).count()
}
