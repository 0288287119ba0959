//! Everybody who shares work with a peer that is killed, stopped or cut off notices the loss within its bound: the
//! driver ends the steps of the lease, and a worker gives up the steps that it runs with that peer.

use std::time::Duration;

use convoke_common::detection::bounds::{LOST, PROCESS_KILLED};

use crate::cluster::Host;
use crate::faults::{Harm, Injury};
use crate::invariants::invariant::{Findings, Invariant};
use crate::invariants::view::View;
use crate::steps::{Key, Step};

/// How much later than its bound a loss may be noticed: the news of it takes a while to arrive.
const SLACK: Duration = Duration::from_millis(100);

/// How long a lease takes until its links are watched in every way. Before that, the end of a process may be noticed as
/// late as mere silence is.
const SETTLED: Duration = Duration::from_secs(1);

/// A participant of a lease, and the other one that it lost.
struct StruckParticipant {
    lease: u64,
    lost: Host,
    /// The participant that has to notice the loss.
    by: Host,
    /// Index into [`View::injured`].
    injury: usize,
    bound: Duration,
}

#[derive(Default)]
pub(in crate::invariants) struct Detection {
    /// How many injuries were looked at.
    seen: usize,
    struck: Vec<StruckParticipant>,
}

impl Invariant for Detection {
    fn name(&self) -> &'static str {
        "a lost peer is noticed in time"
    }

    fn tick(&mut self, view: &View<'_>, found: &mut Findings) {
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
                    "step {:x}#{n} goes on at {} {:?} after {} was lost: {:?}",
                    s.lease, s.by, s.bound, s.lost, injury.harm
                ));
            }
            false
        });
    }
}

/// Within which time `by` knows that this injury took `lost` from it, or `None` if it did not.
fn bound(injury: &Injury, lost: Host, by: Host, settled: bool) -> Option<Duration> {
    let at_it = injury.host == lost;
    // A cut whose two ends are the same host separates that host from everybody.
    let cut =
        |a: Host, b: Host| injury.host == a && (injury.other == Some(b) || injury.other == Some(a));
    match injury.harm {
        Harm::Crash | Harm::Forget if at_it && settled => Some(PROCESS_KILLED),
        Harm::Crash | Harm::PowerCut | Harm::Forget | Harm::Pause if at_it => Some(LOST),
        Harm::Cut { .. } | Harm::OneWay { .. } => (cut(lost, by) || cut(by, lost)).then_some(LOST),
        _ => None,
    }
}

impl Detection {
    fn strike(&mut self, view: &View<'_>, index: usize, injury: &Injury) {
        for (id, lease) in &view.steps.leases {
            let settled = lease.since + SETTLED <= injury.at;
            // A process that started after the one in the lease had ended has no part in the lease.
            let there = |h: Host| lease.ended.get(&h).is_none_or(|at| *at >= injury.at);
            let watched = lease.watched().into_iter();
            for (lost, by) in watched.filter(|(a, b)| there(*a) && there(*b)) {
                if let Some(bound) = bound(injury, lost, by, settled) {
                    self.struck.push(StruckParticipant {
                        lease: *id,
                        lost,
                        by,
                        injury: index,
                        bound: bound + SLACK,
                    });
                }
            }
        }
    }
}

impl StruckParticipant {
    /// Returns a step of the lease that `by` should have ended when it noticed the loss, and did not.
    fn goes_on(&self, view: &View<'_>) -> Option<u64> {
        let range = (self.lease, 0)..=(self.lease, u64::MAX);
        let mut steps = view.steps.steps.range(range);
        let late = steps.find(|(key, step)| match self.by {
            Host::Worker(_) => self.works_on(view, step),
            _ => self.drives_on(view, **key, step),
        });
        late.map(|((_, n), _)| *n)
    }

    /// Whether the driver still waits for a step that it began at least [`SLACK`] ago.
    fn drives_on(&self, view: &View<'_>, key: Key, step: &Step) -> bool {
        let before = step.begun.first().is_some_and(|at| *at + SLACK <= view.now);
        let undecided = step.outcomes.is_empty() && !step.has_failed();
        before && undecided && view.steps.is_live(key)
    }

    /// Whether a worker that lost its driver, or a peer that it shares an edge with, has neither quiesced the step nor
    /// given it up.
    fn works_on(&self, view: &View<'_>, step: &Step) -> bool {
        let started = step.started.get(&self.by);
        let before = started.is_some_and(|at| *at + SLACK <= view.now);
        let mut aborts = step.aborts.iter();
        let gave_up = aborts.any(|a| a.host == self.by && !a.by_driver);
        before && !gave_up && !step.done.contains_key(&self.by)
    }

    /// Whether the injury was over before its bound, or something else troubled either process or its links since
    /// shortly before. A process that was killed counts as lost even when it is back.
    fn is_troubled(&self, view: &View<'_>) -> bool {
        let ours = |host: Host| host == self.lost || host == self.by;
        let injury = &view.injured[self.injury];
        let over = injury
            .until
            .is_some_and(|until| until < injury.at + self.bound);
        let killed = injury.harm.kills();
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
