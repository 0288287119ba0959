//! A worker that is killed, stopped or cut off from a driver is noticed within its bound, and the steps of their leases
//! end.

use std::time::Duration;

use convoke_common::detection::bounds::{LOST, PROCESS_KILLED};

use super::{Found, Invariant, View};
use crate::cluster::Host;
use crate::faults::{Harm, Injured};

/// What is told of a loss is on its way a little longer.
const SLACK: Duration = Duration::from_millis(100);

/// How long a lease has been there when its links are watched in every way: before, the end of a process may be
/// noticed as late as its silence.
const SETTLED: Duration = Duration::from_secs(1);

/// A lease, one of whose workers is lost to its driver.
struct Struck {
    lease: u64,
    worker: Host,
    driver: Host,
    /// Index into the injuries.
    injury: usize,
    bound: Duration,
}

#[derive(Default)]
pub(super) struct Detection {
    /// Injuries looked at.
    seen: usize,
    struck: Vec<Struck>,
}

impl Invariant for Detection {
    fn name(&self) -> &'static str {
        "a lost peer is noticed in time"
    }

    fn tick(&mut self, view: &View<'_>, found: &mut Found) {
        for (i, injury) in view.injured.iter().enumerate().skip(self.seen) {
            self.strike(view, i, injury);
        }
        self.seen = view.injured.len();
        self.struck.retain(|s| {
            let injury = &view.injured[s.injury];
            if view.now < injury.at + s.bound {
                return true;
            }
            if let Some(n) = s.goes_on(view)
                && !s.is_troubled(view)
            {
                found.say(format!(
                    "step {:x}#{n} has not ended {:?} after {} was lost: {:?}",
                    s.lease, s.bound, s.worker, injury.harm
                ));
            }
            false
        });
    }
}

/// Within which time a driver knows that it lost `worker` by this injury, where it does.
fn bound(injury: &Injured, worker: Host, driver: Host, settled: bool) -> Option<Duration> {
    let at_worker = injury.host == worker;
    // The other end of a cut is the host itself where nobody is reached.
    let cut =
        |a: Host, b: Host| injury.host == a && (injury.other == Some(b) || injury.other == Some(a));
    match injury.harm {
        Harm::Crash if at_worker && settled => Some(PROCESS_KILLED),
        Harm::Crash | Harm::PowerCut | Harm::Pause if at_worker => Some(LOST),
        Harm::Cut { .. } | Harm::OneWay { .. } => {
            (cut(worker, driver) || cut(driver, worker)).then_some(LOST)
        }
        _ => None,
    }
}

impl Detection {
    fn strike(&mut self, view: &View<'_>, index: usize, injury: &Injured) {
        for (id, lease) in &view.steps.leases {
            let Some(driver) = lease.driver() else {
                continue;
            };
            let settled = lease.since + SETTLED <= injury.at;
            for worker in lease.workers() {
                if let Some(bound) = bound(injury, *worker, driver, settled) {
                    self.struck.push(Struck {
                        lease: *id,
                        worker: *worker,
                        driver,
                        injury: index,
                        bound: bound + SLACK,
                    });
                }
            }
        }
    }
}

impl Struck {
    /// A step of the lease that should have ended: it was there when the driver knew, or began when it did.
    fn goes_on(&self, view: &View<'_>) -> Option<u64> {
        let mut live = view.steps.live();
        let late = live.find(|((lease, _), step)| {
            let before = step.begun.first().is_some_and(|at| *at + SLACK <= view.now);
            let undecided = step.outcomes.is_empty() && !step.has_failed();
            *lease == self.lease && before && undecided
        });
        late.map(|((_, n), _)| *n)
    }

    /// Whether it was over before its bound, or anything else was wrong with either end since its lease was there, or
    /// with both processes. A process that was killed is as lost when it is back.
    fn is_troubled(&self, view: &View<'_>) -> bool {
        let ours = |host: Host| host == self.worker || host == self.driver;
        let injury = &view.injured[self.injury];
        let over = injury
            .until
            .is_some_and(|until| until < injury.at + self.bound);
        let killed = matches!(injury.harm, Harm::Crash | Harm::PowerCut);
        let before = injury.at.saturating_sub(SETTLED);
        let others = view.injuries(before, view.now);
        let hurt = others
            .filter(|o| !std::ptr::eq(*o, injury))
            .any(|o| ours(o.host) || o.other.is_some_and(ours));
        let ended = |(at, host, _): &(Duration, Host, String)| *at >= before && ours(*host);
        (over && !killed)
            || hurt
            || view.cluster.ends().iter().any(ended)
            || view.left.keys().any(|h| ours(*h))
    }
}
