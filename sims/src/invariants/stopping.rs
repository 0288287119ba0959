//! After the first error all participants that can be reached stop within the bound. One whose kernel hangs is wedged
//! within its own bound: its process ends.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Found, Invariant, View};
use crate::cluster::Host;
use crate::faults::{Harm, Injured};
use crate::steps::{Key, Lease};
use crate::trace::Kind;

/// From the first error until the last participant has quiesced, kernels in between not counted: the way there, and a
/// transport that has to resend now and then.
const STOP: Duration = Duration::from_millis(1500);

/// The same once packets are not lost, late or out of order any more: a transport waits longer each time that it resends
/// in vain.
const STOP_HARMED: Duration = Duration::from_secs(4);

/// From the end of a step whose kernel hangs until the worker's process has ended: it is given 5 s to return, and says
/// goodbye.
const WEDGED: Duration = Duration::from_secs(8);

/// Steps that failed and have not stopped: since when.
#[derive(Default)]
pub(super) struct Stopping(BTreeMap<Key, Duration>);

impl Invariant for Stopping {
    fn name(&self) -> &'static str {
        "an error stops everybody in time"
    }

    fn tick(&mut self, view: &View<'_>, found: &mut Found) {
        for e in view.events {
            let key = (e.lease, e.n);
            let failed =
                matches!(e.kind, Kind::Abort) || (e.kind == Kind::Outcome && e.code.is_some());
            if failed {
                self.0.entry(key).or_insert(e.at);
            }
        }
        let late: Vec<Key> = self
            .0
            .iter()
            .filter(|(_, since)| view.now.saturating_sub(**since) >= STOP)
            .map(|(key, _)| *key)
            .collect();
        for key in late {
            let since = self.0[&key];
            match self.look(view, key, since) {
                Look::Over => drop(self.0.remove(&key)),
                Look::Wait => {}
                Look::Late(host) => {
                    self.0.remove(&key);
                    let ms = view.now.saturating_sub(since).as_millis();
                    found.say(format!(
                        "step {:x}#{}: {host} has not stopped {ms} ms after the error",
                        key.0, key.1
                    ));
                }
            }
        }
    }
}

enum Look {
    Over,
    Wait,
    Late(Host),
}

impl Stopping {
    fn look(&self, view: &View<'_>, key: Key, since: Duration) -> Look {
        let (Some(step), Some(lease)) = (view.steps.steps.get(&key), view.steps.leases.get(&key.0))
        else {
            return Look::Over;
        };
        let running = |w: &&Host| {
            // Its process may have ended before anybody knew of an error.
            let ended = |started: &Duration| {
                let mut ends = view.cluster.ends().iter();
                let killed = |i: &Injured| matches!(i.harm, Harm::Crash | Harm::PowerCut);
                let mut kills = view.injuries(*started, view.now).filter(|i| killed(i));
                ends.any(|(at, h, _)| h == *w && at >= started)
                    || kills.any(|i| i.host == **w && i.at >= *started)
            };
            let started = step.started.get(w);
            started.is_some_and(|at| !ended(at)) && !step.done.contains_key(w)
        };
        let Some(host) = lease.workers().iter().find(running) else {
            return Look::Over;
        };
        if unreachable(view, lease, since) {
            // What is lost ends otherwise, and is looked at when everything has come to rest.
            return Look::Over;
        }
        let hangs = view
            .injuries(since, view.now)
            .any(|i| i.harm == Harm::Hang && i.host == *host);
        let concerns = |i: &Injured| lease.participants.contains(&i.host);
        let harmed = view
            .injuries(since.saturating_sub(STOP), view.now)
            .filter(|i| i.harm.is_of_packets() && concerns(i));
        let (since, way) = match harmed.map(|i| i.until.unwrap_or(view.now)).max() {
            Some(until) => (since.max(until), STOP_HARMED),
            None => (since, STOP),
        };
        let kernels = view.kernel(since, view.now);
        // Kernels of other steps may come first: one job runs at a time.
        let bound = if hangs { WEDGED } else { way + 12 * kernels };
        match view.now.saturating_sub(since) > bound {
            true => Look::Late(*host),
            false => Look::Wait,
        }
    }
}

/// Whether one of the participants may not have heard of the error.
fn unreachable(view: &View<'_>, lease: &Lease, since: Duration) -> bool {
    let concerns = |host: Host| lease.participants.contains(&host);
    let harmful = view
        .injuries(since.saturating_sub(STOP), view.now)
        .any(|i| {
            let reach = i.harm.separates() && i.harm != Harm::Hang;
            reach && (concerns(i.host) || i.other.is_some_and(concerns))
        });
    harmful || view.left.keys().any(|h| concerns(*h))
}
