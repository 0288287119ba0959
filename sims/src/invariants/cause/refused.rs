//! A node that ended two processes, of which both have told, is planned and installed no more: it ends a third one only in
//! a lease that was granted before.

use std::time::Duration;

use crate::cluster::{Host, faults::DIED_IN};
use crate::faults::{Harm, Injury};
use crate::invariants::invariant::{Findings, Invariant};
use crate::invariants::view::View;
use crate::steps::Lease;

/// The processes that a node may end before it is refused.
const DEADLY: usize = 2;

/// How long an install lasts that was begun before the node was refused.
const INSTALL: Duration = Duration::from_secs(5);

/// The processes that a node ended, in the order in which they did, and when the next process of that host had told.
#[derive(Default)]
pub(in crate::invariants) struct Refused {
    /// How many ends were looked at.
    ends: usize,
    died: Vec<(Host, Option<Duration>)>,
}

impl Invariant for Refused {
    fn name(&self) -> &'static str {
        "a deadly node is refused"
    }

    fn tick(&mut self, view: &View<'_>, found: &mut Findings) {
        for (host, told) in &mut self.died {
            if told.is_none() && view.cluster.is_ready(*host) {
                *told = Some(view.now);
            }
        }
        for (at, host, why) in &view.cluster.ends()[self.ends..] {
            if !why.starts_with(DIED_IN) {
                continue;
            }
            let told: Vec<Duration> = self.died.iter().filter_map(|(_, told)| *told).collect();
            if let Some(since) = told.get(DEADLY - 1)
                && !is_excused(view, *host, *since, *at)
            {
                found.say(format!("{host} ended by a node that had ended two: {why}"));
            }
            self.died.push((*host, None));
        }
        self.ends = view.cluster.ends().len();
    }
}

/// Whether the node may end this host's process although two had told by `since`: in a lease or an install of before, for
/// want of a coordinator that had counted both, or because it is another node.
fn is_excused(view: &View<'_>, host: Host, since: Duration, at: Duration) -> bool {
    let before = |l: &Lease| {
        let there = l.ended.get(&host).is_none_or(|ended| *ended >= at);
        l.participants.contains(&host) && l.since <= since && there
    };
    let deadly = |i: &&Injury| matches!(i.harm, Harm::Deadly);
    let coordinator = |h: Host| h == Host::Coordinator;
    let mut ends = view.cluster.ends().iter();
    at <= since + INSTALL
        || view.steps.leases.values().any(before)
        || view.injured.iter().filter(deadly).count() > 1
        || ends.any(|(_, h, _)| coordinator(*h))
        || view
            .injured
            .iter()
            .any(|i| coordinator(i.host) || i.other.is_some_and(coordinator))
}
