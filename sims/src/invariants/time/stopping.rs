//! After the first error, or after the loss of a participant, every other participant stops the step within the bound.
//! A process that is paused stops it when it resumes. A worker whose kernel hangs becomes wedged and its process ends,
//! within a bound of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use convoke_common::detection::bounds::LOST;

use crate::cluster::Host;
use crate::event_log::Kind;
use crate::faults::{Harm, Injury};
use crate::invariants::invariant::{Findings, Invariant};
use crate::invariants::view::View;
use crate::steps::{Key, Lease, Step};

/// How long the last participant takes to quiesce after the first error, kernels that run meanwhile not counted: the
/// error has to travel, and the transport resends now and then.
const STOP: Duration = Duration::from_millis(1500);

/// The same bound after faults that made packets lost, late or reordered: the transport waits longer each time that it
/// resends in vain.
const STOP_HARMED: Duration = Duration::from_secs(4);

/// How long a worker's process takes to end after the end of a step whose kernel hangs: the kernel has 5 s to return,
/// and the worker then leaves.
const WEDGED: Duration = Duration::from_secs(8);

/// The steps that failed and have not stopped, and since when.
#[derive(Default)]
pub(in crate::invariants) struct Stopping {
    failed: BTreeMap<Key, Duration>,
    /// How many injuries were looked at.
    injuries: usize,
}

impl Invariant for Stopping {
    fn name(&self) -> &'static str {
        "an error stops everybody in time"
    }

    fn tick(&mut self, view: &View<'_>, found: &mut Findings) {
        for e in view.events {
            let failed =
                matches!(e.kind, Kind::Abort) || (e.kind == Kind::Outcome && e.code.is_some());
            if failed {
                self.failed.entry((e.lease, e.n)).or_insert(e.at);
            }
        }
        for injury in &view.injured[self.injuries..] {
            if injury.harm.kills() {
                self.died(view, injury);
            }
        }
        self.injuries = view.injured.len();
        self.failed
            .retain(|key, since| match look(view, *key, *since) {
                StopVerdict::Over => false,
                StopVerdict::Wait => true,
                StopVerdict::Late(host) => {
                    let ms = view.now.saturating_sub(*since).as_millis();
                    let (lease, n) = key;
                    found.say(format!(
                        "step {lease:x}#{n}: {host} has not stopped {ms} ms after the error"
                    ));
                    false
                }
            });
    }
}

impl Stopping {
    /// Marks the steps of a participant that died as failed, whether or not somebody reports it.
    fn died(&mut self, view: &View<'_>, injury: &Injury) {
        let part = |l: &Lease| l.participants.contains(&injury.host);
        let leases = view.steps.leases.iter().filter(|(_, l)| part(l));
        for (id, lease) in leases {
            for (key, step) in view.steps.steps.range((*id, 0)..=(*id, u64::MAX)) {
                let runs = |w: &Host| step.started.contains_key(w) && !step.done.contains_key(w);
                if lease.workers().iter().any(runs) {
                    self.failed.entry(*key).or_insert(injury.at);
                }
            }
        }
    }
}

enum StopVerdict {
    Over,
    Wait,
    Late(Host),
}

fn look(view: &View<'_>, key: Key, since: Duration) -> StopVerdict {
    if view.now < since + STOP {
        return StopVerdict::Wait;
    }
    let (steps, leases) = (&view.steps.steps, &view.steps.leases);
    let (Some(step), Some(lease)) = (steps.get(&key), leases.get(&key.0)) else {
        return StopVerdict::Over;
    };
    let mut running = lease
        .workers()
        .iter()
        .filter(|w| runs(lease, step, **w))
        .peekable();
    if running.peek().is_none() {
        return StopVerdict::Over;
    }
    match running.find(|w| view.now > latest(view, key, lease, since, **w)) {
        Some(late) => StopVerdict::Late(*late),
        None => StopVerdict::Wait,
    }
}

/// Whether a worker that started a step has neither quiesced it nor ended since. Its process may have ended before anybody
/// knew of the error.
fn runs(lease: &Lease, step: &Step, worker: Host) -> bool {
    let Some(started) = step.started.get(&worker) else {
        return false;
    };
    let ended = lease.ended.get(&worker).is_some_and(|at| at >= started);
    !ended && !step.done.contains_key(&worker)
}

/// When the other steps of a lease were done whose work may lie before a failed step's in the queue of a worker's device.
/// A step is over only after an event behind all that it enqueued. One that is not done counts only for those that the
/// worker started after it: so the oldest of those that do not end is always held to its bound.
fn queued_before(view: &View<'_>, (lease, n): Key, since: Duration, worker: Host) -> Duration {
    let on_device = |at| {
        let spec = view.scenario.workers.get(usize::from(at));
        spec.is_some_and(|w| w.simgpu)
    };
    if !matches!(worker, Host::Worker(at) if on_device(at)) {
        return since;
    }
    let steps = &view.steps.steps;
    let started = |n: u64| Some((*steps.get(&(lease, n))?.started.get(&worker)?, n));
    let own = started(n);
    let others = steps.range((lease, 0)..=(lease, u64::MAX));
    let over = others.filter_map(|((_, other), step)| {
        let begun = started(*other).filter(|(at, _)| *other != n && *at <= since)?;
        let done = step.done.get(&worker).copied();
        done.or_else(|| (Some(begun) < own).then_some(view.now))
    });
    over.fold(since, Duration::max)
}

/// The latest time by which a worker has stopped a step that failed.
fn latest(view: &View<'_>, key: Key, lease: &Lease, since: Duration, worker: Host) -> Duration {
    let concerns = |host: Host| lease.participants.contains(&host);
    let mut from = queued_before(view, key, since, worker);
    let mut bound = STOP;
    let injuries = view.injuries(since.saturating_sub(STOP_HARMED), view.now);
    for i in injuries.filter(|i| concerns(i.host) || i.other.is_some_and(concerns)) {
        let until = i.until.unwrap_or(view.now);
        let known = match i.harm {
            Harm::Hang if i.host == worker => {
                bound = bound.max(WEDGED);
                continue;
            }
            // A paused worker finds out when it resumes.
            Harm::Pause if i.host == worker => until + LOST,
            harm if harm.is_of_packets() => until,
            // A host that is still heard reports the error; a host that is not heard is noticed as lost.
            harm if harm.separates() => i.at + LOST,
            _ => continue,
        };
        from = from.max(known);
        bound = bound.max(STOP_HARMED);
    }
    for (at, host, _) in view.cluster.ends() {
        if *at >= since && concerns(*host) {
            from = from.max(*at + LOST);
        }
    }
    // Kernels of other steps may come first, since a worker runs one job at a time.
    from + bound + 12 * view.kernel(since, view.now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Cluster, Setup};
    use crate::event_log::Event;
    use crate::invariants::testing::FeignedRun;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// An event of the worker about a step of the lease 1.
    fn event(at: u64, kind: Kind, n: u64) -> Event {
        Event {
            at: ms(at),
            host: Host::Worker(0),
            kind,
            lease: 1,
            by_driver: false,
            n,
            slot: None,
            peer: None,
            checksum: None,
            code: (kind == Kind::Abort).then(|| "kernel_failed".to_owned()),
            participants: None,
        }
    }

    /// Has the checker see these events, and returns what it says later.
    fn says(events: &[Event], later: u64) -> Vec<String> {
        let lease = Event {
            host: Host::Client(0),
            participants: Some("w0".to_owned()),
            ..event(0, Kind::Lease, 0)
        };
        let mut run = FeignedRun::new(Cluster::new(Setup::default()));
        run.steps.apply(&[lease]);
        run.steps.apply(events);
        let mut checker = Stopping::default();
        assert_eq!(run.shows(&mut checker, ms(50), events), [""; 0]);
        run.shows(&mut checker, ms(later), &[])
    }

    #[test]
    fn of_failed_steps_in_the_queue_of_one_device_the_oldest_is_held_to_its_bound() {
        use Kind::{Abort, Done, Start};
        let mut events = vec![
            event(10, Start, 1),
            event(20, Start, 2),
            event(30, Abort, 2),
            event(40, Abort, 1),
        ];
        let late = |n, after| format!("step 1#{n}: w0 has not stopped {after} ms after the error");
        assert_eq!(says(&events, 9_000), [late(1, 8_960)]);
        // The younger one has its bound from when the older one is done.
        events.push(event(8_000, Done, 1));
        assert_eq!(says(&events, 9_000), [""; 0]);
        assert_eq!(says(&events, 10_000), [late(2, 9_970)]);
        // Of two that were started at the same time the first is the older one.
        let both = [Start, Abort].map(|kind| [1, 2].map(|n| event(10, kind, n)));
        assert_eq!(says(both.as_flattened(), 9_000), [late(1, 8_990)]);
    }
}
