//! Processes end when a scenario ends them, or a kernel that hangs, a calendar that jumps or a revocation makes them, or one
//! that starts does not reach the coordinator, or finds a disk that cannot be used and says so; and nothing panics but the
//! kernels that a scenario picked.

use super::{Found, Invariant, View};
use crate::cluster::Host;
use crate::faults::{Harm, Injured};

/// What says that a disk takes nothing, or does not work.
const UNUSABLE: [&str; 3] = [
    "no storage space",
    "Input/output error",
    "is the disk full?",
];

#[derive(Default)]
pub(super) struct Processes {
    ends: usize,
    panics: usize,
}

impl Invariant for Processes {
    fn name(&self) -> &'static str {
        "processes live"
    }

    fn tick(&mut self, view: &View<'_>, found: &mut Found) {
        for panic in view.cluster.panics().iter().skip(self.panics) {
            found.say(format!("panic: {panic}"));
        }
        self.panics = view.cluster.panics().len();
        for (at, host, why) in view.cluster.ends().iter().skip(self.ends) {
            let from = at.saturating_sub(std::time::Duration::from_secs(20));
            let mut injuries = view.injuries(from, *at).filter(|i| i.host == *host);
            let meant = injuries.any(|i| {
                matches!(
                    i.harm,
                    Harm::Hang | Harm::Clock(_) | Harm::PowerCut | Harm::Revoke
                )
            });
            let alone = (why.starts_with("nobody answers")
                || why.starts_with("lost contact with the coordinator")
                || why.contains("did not greet in time"))
                && view.separated(from, *at);
            // Of two calendars, the one that is off may be the other's.
            let clock = |i: &Injured| matches!(i.harm, Harm::Clock(_));
            let expired = why.contains("out of date") && view.injuries(from, *at).any(clock);
            let disk = |i: &Injured| {
                let fails = matches!(i.harm, Harm::DiskFull | Harm::DiskFails);
                fails && (i.host == *host || i.host == Host::Coordinator)
            };
            // One that starts, and cannot read or keep what it has to.
            let said = UNUSABLE.iter().any(|text| why.contains(text));
            let unkept = said && view.injuries(from, *at).any(disk);
            if !meant && !alone && !expired && !unkept && !view.left.contains_key(host) {
                found.say(format!("the process of {host} ended by itself: {why}"));
            }
        }
        self.ends = view.cluster.ends().len();
    }
}
