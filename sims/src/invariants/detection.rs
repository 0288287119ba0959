//! A worker whose process is killed is noticed within its bound, and the steps that it takes part in end.

use std::time::Duration;

use convoke_common::detection::bounds::PROCESS_KILLED;

use super::{Found, Invariant, View};
use crate::cluster::Host;
use crate::faults::Harm;
use crate::steps::Key;

/// What is told of a loss is on its way a little longer.
const SLACK: Duration = Duration::from_millis(100);

/// How long a lease has been there when its links are watched in every way.
const SETTLED: Duration = Duration::from_secs(1);

/// A step in flight, one of whose workers was killed.
struct Struck {
    key: Key,
    worker: Host,
    driver: Host,
    at: Duration,
}

#[derive(Default)]
pub(super) struct Detection {
    /// Injuries looked at.
    seen: usize,
    struck: Vec<Struck>,
}

impl Invariant for Detection {
    fn name(&self) -> &'static str {
        "a killed process is noticed in time"
    }

    fn tick(&mut self, view: &View<'_>, found: &mut Found) {
        for injury in view.injured.iter().skip(self.seen) {
            if injury.harm == Harm::Crash && matches!(injury.host, Host::Worker(_)) {
                self.strike(view, injury.host, injury.at);
            }
        }
        self.seen = view.injured.len();
        self.struck.retain(|s| {
            if view.now < s.at + PROCESS_KILLED + SLACK {
                return true;
            }
            if !s.has_ended(view) && !s.is_troubled(view) {
                found.say(format!(
                    "step {:x}#{} has not ended {:?} after {} was killed",
                    s.key.0,
                    s.key.1,
                    PROCESS_KILLED + SLACK,
                    s.worker
                ));
            }
            false
        });
    }
}

impl Detection {
    fn strike(&mut self, view: &View<'_>, worker: Host, at: Duration) {
        for (key, step) in view.steps.live() {
            let Some(lease) = view.steps.leases.get(&key.0) else {
                continue;
            };
            let settled = lease.since + SETTLED <= at;
            let takes_part = lease.workers().contains(&worker);
            let undecided = step.outcomes.is_empty() && !step.has_failed();
            if let (true, true, true, Some(driver)) =
                (settled, takes_part, undecided, lease.driver())
            {
                let key = *key;
                self.struck.push(Struck {
                    key,
                    worker,
                    driver,
                    at,
                });
            }
        }
    }
}

impl Struck {
    fn has_ended(&self, view: &View<'_>) -> bool {
        let step = view.steps.steps.get(&self.key);
        step.is_none_or(|s| s.has_failed() || !s.outcomes.is_empty())
    }

    /// Whether anything else was wrong with either end since its lease was there, or with both processes.
    fn is_troubled(&self, view: &View<'_>) -> bool {
        let ours = |host: Host| host == self.worker || host == self.driver;
        let before = self.at.saturating_sub(SETTLED);
        let mut injuries = view.injuries(before, view.now);
        let hurt = injuries.any(|i| {
            let crash = i.harm == Harm::Crash && i.host == self.worker;
            !crash && (ours(i.host) || i.other.is_some_and(ours))
        });
        let ended = |(at, host, _): &(Duration, Host, String)| *at >= before && ours(*host);
        hurt || view.cluster.ends().iter().any(ended) || view.left.keys().any(|h| ours(*h))
    }
}
