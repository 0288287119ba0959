//! A call with a deadline has ended by its deadline, whatever it waits for.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::cluster::Host;
use crate::faults::Harm;
use crate::invariants::invariant::{Findings, Invariant};
use crate::invariants::view::View;

/// How long after its deadline a call may end: timers have a resolution of 1 ms.
const SLACK: Duration = Duration::from_millis(50);

/// Indices of the records that were checked.
#[derive(Default)]
pub(in crate::invariants) struct Deadlines(BTreeSet<usize>);

impl Invariant for Deadlines {
    fn name(&self) -> &'static str {
        "a deadline is kept"
    }

    fn tick(&mut self, view: &View<'_>, found: &mut Findings) {
        let now = view.now.saturating_sub(view.zero);
        for (i, r) in view.records.iter().enumerate() {
            let Some(call) = r.call else { continue };
            let spec = &view.scenario.clients[r.client].calls[call];
            let Some(deadline) = spec.deadline.map(|ms| Duration::from_millis(ms.into())) else {
                continue;
            };
            let until = r.ended.as_ref().map_or(now, |(at, _)| *at);
            let late = until.saturating_sub(r.begun) > deadline + SLACK;
            if !(late || r.ended.is_some()) || !self.0.insert(i) {
                continue;
            }
            if late && !is_stopped(view, r.client, r.begun, until) {
                let ms = until.saturating_sub(r.begun).as_millis();
                found.say(format!(
                    "call {call} of c{} goes on after {ms} ms, its deadline was {deadline:?}",
                    r.client
                ));
            }
        }
    }
}

/// Whether a client's process was stopped or dead at some time between `from` and `to`, as times of the scenario.
fn is_stopped(view: &View<'_>, client: usize, from: Duration, to: Duration) -> bool {
    let host = Host::Client(client as u16);
    view.injuries(view.zero + from, view.zero + to)
        .any(|i| i.host == host && (i.harm.kills() || i.harm == Harm::Pause))
}
