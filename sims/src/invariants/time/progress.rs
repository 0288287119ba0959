//! Nothing starves and nothing hangs: every call and every load ends within its bound.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::invariants::invariant::{Findings, Invariant};
use crate::invariants::view::View;
use crate::script::Record;

/// How long a call may take, from its begin or from the end of the last fault if that is later. It may be run again
/// twice, each time after a loss was noticed, a worker wedged, and a plan waited for a worker to return.
pub const CALL_BOUND: Duration = Duration::from_secs(60);

/// How long a call may take if nothing disturbs it: the calls of all clients may be ahead of it, and their kernels run
/// one at a time.
const UNDISTURBED: Duration = Duration::from_secs(20);

/// How much longer a load may take that asks for a number of workers, while fewer are there: it waits for them.
const WORKERS_BOUND: Duration = Duration::from_secs(30);

/// How long after the last fault all processes are back.
pub const SETTLE_BOUND: Duration = Duration::from_secs(20);

/// How long after the last call nothing is left of any call.
pub const REST_BOUND: Duration = Duration::from_secs(15);

/// How long after that the coordinator holds nothing either: it notices within three seconds that a client vanished, and
/// keeps its leases for three more.
pub const KEPT_BOUND: Duration = Duration::from_secs(7);

/// Indices of the records that a violation was already reported for.
#[derive(Default)]
pub(in crate::invariants) struct Progress(BTreeSet<usize>);

impl Invariant for Progress {
    fn name(&self) -> &'static str {
        "every call ends"
    }

    fn tick(&mut self, view: &View<'_>, found: &mut Findings) {
        let now = view.now.saturating_sub(view.zero);
        let faulty = view.separated(Duration::ZERO, view.now);
        for (i, r) in view.records.iter().enumerate() {
            if r.ended.is_some() || self.0.contains(&i) {
                continue;
            }
            let healed = view
                .injured
                .iter()
                .map(|i| i.until.unwrap_or(view.now))
                .max();
            let healed = healed.unwrap_or_default().saturating_sub(view.zero);
            let bound = if faulty || !view.injured.is_empty() {
                CALL_BOUND
            } else if r.call.is_none() && asks_for_workers(view, r) {
                UNDISTURBED + WORKERS_BOUND
            } else {
                UNDISTURBED
            };
            let since = r.begun.max(healed);
            if now.saturating_sub(since) > bound {
                self.0.insert(i);
                let what = match r.call {
                    Some(call) => format!("call {call}"),
                    None => format!("the load of model {}", r.model),
                };
                let ms = now.saturating_sub(r.begun).as_millis();
                found.say(format!(
                    "{what} of c{} has not ended after {ms} ms",
                    r.client
                ));
            }
        }
    }
}

/// Whether a load asks for a number of workers.
fn asks_for_workers(view: &View<'_>, load: &Record) -> bool {
    let client = view.scenario.clients.get(load.client);
    let model = client.and_then(|c| c.models.get(load.model));
    model.is_some_and(|m| m.workers.is_some())
}
