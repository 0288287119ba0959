//! A step whose members live and reach each other ends by its own work: nothing that happens to others, or between them and
//! the coordinator, ends it.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::cluster::Host;
use crate::event_log::Kind;
use crate::faults::{Harm, Injury};
use crate::invariants::invariant::{Findings, Invariant};
use crate::invariants::view::{LEAVING, View};
use crate::steps::Lease;

/// Codes with which a step ends by what its caller or its nodes do; the caller's calls are checked for them.
const OWN: &[&str] = &[
    "cancelled",
    "deadline_exceeded",
    "kernel_failed",
    "out_of_memory",
];

/// Codes of errors that report a member that was lost, left, or dropped the lease.
const LOSSES: &[&str] = &["peer_lost", "lease_retired", "worker_leaving", "wedged"];

/// How long after its end a fault may still be noticed.
const LINGER: Duration = Duration::from_secs(8);

pub(in crate::invariants) struct Undisturbed;

impl Invariant for Undisturbed {
    fn name(&self) -> &'static str {
        "a step ends by the doing of its members"
    }

    fn tick(&mut self, view: &View<'_>, found: &mut Findings) {
        for e in view.events.iter().filter(|e| e.kind == Kind::Outcome) {
            let Some(code) = e.code.as_deref().filter(|c| !OWN.contains(c)) else {
                continue;
            };
            let Some(lease) = view.steps.leases.get(&e.lease) else {
                continue;
            };
            if !was_disturbed(view, lease, code, e.at) {
                found.say(format!(
                    "step {:x}#{} ends with {code}, though its members reached each other: {:?}",
                    e.lease, e.n, lease.participants
                ));
            }
        }
    }
}

/// Whether anything happened shortly before to a member of a lease, or between two of its members, that may end a step with
/// this code.
fn was_disturbed(view: &View<'_>, lease: &Lease, code: &str, until: Duration) -> bool {
    let from = until.saturating_sub(LINGER);
    let members = &view.steps.members(lease);
    let is_loss = LOSSES.contains(&code);
    let mut ends = view.cluster.ends().iter();
    let leaves = |host: &Host| {
        let told = view.left.get(host);
        told.is_some_and(|at| *at <= until && *at + LEAVING >= from)
            || view.moves(*host, from, until)
    };
    let injuries = view.injuries(from, until);
    let among: Vec<&Injury> = injuries.filter(|i| is_among(i, members, is_loss)).collect();
    // One moment of silence ends nothing, but several may.
    let lasting = among.len() > 1 || among.iter().any(|i| !i.is_brief(until));
    lasting
        || members.iter().any(leaves)
        || ends.any(|(at, host, _)| *at >= from && *at <= until && members.contains(host))
}

/// Whether a fault struck a member itself, or the link between two members. A member is lost only by a fault that separates
/// it from others; frames may be forged by anybody.
fn is_among(injury: &Injury, members: &BTreeSet<Host>, is_loss: bool) -> bool {
    match injury.link() {
        Some((a, b)) => members.contains(&a) && members.contains(&b),
        None if is_loss => members.contains(&injury.host) && injury.harm.separates(),
        None => members.contains(&injury.host) || injury.harm == Harm::Forge,
    }
}
