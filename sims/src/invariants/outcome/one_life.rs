//! Each step begins, starts, has its outcome, quiesces and retires once and in this order, and no further event of the
//! step follows.

use std::collections::BTreeSet;
use std::time::Duration;

use convoke_common::detection::bounds::LOST;

use crate::cluster::Host;
use crate::event_log::{Event, Kind};
use crate::invariants::invariant::{Findings, Invariant};
use crate::invariants::view::View;
use crate::steps::{Key, Lease, Step};

pub(in crate::invariants) struct OneLife;

impl Invariant for OneLife {
    fn name(&self) -> &'static str {
        "a step lives once"
    }

    fn tick(&mut self, view: &View<'_>, found: &mut Findings) {
        let mut seen = BTreeSet::new();
        for e in view.events.iter().filter(|e| e.kind.is_of_step()) {
            let key = (e.lease, e.n);
            let Some(step) = view.steps.steps.get(&key) else {
                continue;
            };
            if let Some(wrong) = wrong(e, step, &mut seen) {
                found.say(format!("step {:x}#{}: {wrong} at {}", e.lease, e.n, e.host));
            }
            if let (Kind::Retire, Some(lease)) = (e.kind, view.steps.leases.get(&e.lease)) {
                check_retired(view, key, step, lease, found);
            }
        }
    }
}

/// A kind of event that was seen of a step in this tick, at this host, and whether at its driver's end.
type EventKey = (Key, Host, bool, Kind);

/// Returns what is wrong with an event, if anything is. `step` is the state after the tick.
fn wrong(e: &Event, step: &Step, seen: &mut BTreeSet<EventKey>) -> Option<&'static str> {
    let here = |kind| ((e.lease, e.n), e.host, e.by_driver, kind);
    // Within one tick, events are checked in the order in which the trace recorded them.
    let again = !seen.insert(here(e.kind));
    let earlier = |at: Option<&Duration>| at.is_some_and(|at| *at < e.at);
    let started_here = earlier(step.started.get(&e.host));
    let done_here = !e.by_driver && earlier(step.done.get(&e.host));
    let done_now = seen.contains(&here(Kind::Done));
    let retired = earlier(step.retired.first()) && e.by_driver;
    let mut aborts = step.aborts.iter();
    let ended_here = aborts.any(|a| (a.host, a.by_driver) == (e.host, e.by_driver) && a.at < e.at)
        || seen.contains(&here(Kind::Abort));
    match e.kind {
        Kind::Start if again || started_here => Some("started twice"),
        Kind::Done if again || done_here => Some("quiesced twice"),
        Kind::Outcome if step.outcomes.len() > 1 => Some("it has two outcomes"),
        Kind::Retire if step.retired.len() > 1 => Some("retired twice"),
        Kind::Retire if step.outcomes.is_empty() => Some("retired without an outcome"),
        Kind::Begin if step.begun.len() > 1 => Some("began twice"),
        Kind::Start | Kind::Taken | Kind::Sent if done_here || done_now => {
            Some("something of it happened after it had quiesced")
        }
        Kind::Filled if done_here || done_now => Some("a slot was filled after it had quiesced"),
        Kind::Filled if ended_here => Some("a slot was filled after it had ended there"),
        Kind::Filled | Kind::Taken if retired => Some("a slot was used after it had retired"),
        _ => None,
    }
}

/// Checks that every worker had quiesced a step when it retired, or was lost to the driver. A link that died before the
/// lease began may be found dead only during the lease.
fn check_retired(view: &View<'_>, key: Key, step: &Step, lease: &Lease, found: &mut Findings) {
    let since = lease.since.saturating_sub(LOST);
    for w in lease.workers() {
        let quiesced = step.done.contains_key(w);
        if !quiesced && !view.separated(since, view.now) {
            found.say(format!(
                "step {:x}#{}: retired although {w} has not quiesced it",
                key.0, key.1
            ));
        }
    }
}
