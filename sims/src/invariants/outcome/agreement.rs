//! Caller and participants agree on the outcome of a step: it fails for the caller if and only if it failed for them.

use crate::event_log::Kind;
use crate::invariants::invariant::{Findings, Invariant};
use crate::invariants::view::View;
use crate::steps::Abort;

/// Codes of errors that a driver may find by itself, without a participant that reported them.
const OF_DRIVER: &[&str] = &[
    "cancelled",
    "deadline_exceeded",
    "lease_retired",
    "peer_lost",
    "wedged",
    "worker_leaving",
];

/// Codes of errors that a driver, like any participant, may find in a tensor that it refuses.
const OF_REFUSAL: &[&str] = &["out_of_memory", "protocol_violation"];

pub(in crate::invariants) struct Agreement;

impl Invariant for Agreement {
    fn name(&self) -> &'static str {
        "caller and participants agree"
    }

    fn tick(&mut self, view: &View<'_>, found: &mut Findings) {
        for e in view.events.iter().filter(|e| e.kind == Kind::Outcome) {
            let Some(step) = view.steps.steps.get(&(e.lease, e.n)) else {
                continue;
            };
            let complaint = match &e.code {
                None => step
                    .aborts
                    .iter()
                    .find(|a| a.by_driver && a.at < e.at)
                    .map(|a| format!("succeeds, though its driver gave it up: {}", a.code)),
                Some(code) if OF_DRIVER.contains(&code.as_str()) => None,
                Some(code) => {
                    // Participants repeat an error that they are told: the first to report it is the one that found it.
                    let first = step.aborts.iter().find(|a| a.code == *code);
                    let may = |a: &Abort| !a.by_driver || OF_REFUSAL.contains(&code.as_str());
                    let said = first.is_some_and(may);
                    (!said).then(|| format!("fails with {code}, which no participant has said"))
                }
            };
            if let Some(complaint) = complaint {
                found.say(format!("step {:x}#{} {complaint}", e.lease, e.n));
            }
        }
        for e in view.events.iter().filter(|e| e.kind == Kind::Retire) {
            let Some(step) = view.steps.steps.get(&(e.lease, e.n)) else {
                continue;
            };
            // A step that only the loss of a peer ended after its result is no disagreement.
            let primary = |code: &&String| !OF_DRIVER.contains(&code.as_str());
            let failed = step.aborts.iter().map(|a| &a.code).find(primary);
            if let (Some((_, None)), Some(code)) = (step.outcomes.first(), failed) {
                found.say(format!(
                    "step {:x}#{} succeeded for the caller and failed at a participant: {code}",
                    e.lease, e.n
                ));
            }
        }
    }
}
