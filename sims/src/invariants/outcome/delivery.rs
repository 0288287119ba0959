//! Each send meets exactly one recv: no tensor is changed, delivered twice, or delivered to another step, edge or
//! incarnation; and no tensor of a step that succeeded is lost.

use crate::event_log::{Event, Kind};
use crate::invariants::invariant::{Findings, Invariant};
use crate::invariants::view::View;
use crate::steps::{Edge, Key, Tensor};

pub(in crate::invariants) struct Delivery;

impl Invariant for Delivery {
    fn name(&self) -> &'static str {
        "a send meets one recv"
    }

    fn tick(&mut self, view: &View<'_>, found: &mut Findings) {
        for e in view.events {
            if let Some(what) = of_the_dead(view, e) {
                found.say(what);
            }
            let key = (e.lease, e.n);
            let step = view.steps.steps.get(&key);
            let here = || {
                let lease = view.steps.leases.get(&e.lease)?;
                Some((lease.index(e.host, e.by_driver)?, e.slot?))
            };
            let edge = match e.kind {
                Kind::Sent => e.peer.zip(e.slot),
                Kind::Filled | Kind::Taken => match here() {
                    Some(edge) => Some(edge),
                    None => {
                        found.say(format!(
                            "{}: a slot of a lease that it has no part in",
                            e.host
                        ));
                        None
                    }
                },
                _ => None,
            };
            let tensor = step.zip(edge).and_then(|(s, edge)| s.tensors.get(&edge));
            if let (Some(t), Some(edge)) = (tensor, edge) {
                check(key, edge, t, found);
            }
            if let (Kind::Retire, Some(step)) = (e.kind, step)
                && !step.has_failed()
            {
                for (edge, t) in &step.tensors {
                    if (t.sent.len(), t.filled.len(), t.taken) != (1, 1, 1) {
                        say(found, key, *edge, "of a step that succeeded", t);
                    }
                }
            }
        }
    }
}

/// Complains if a process takes part in a lease that a former incarnation of it was a participant of.
fn of_the_dead(view: &View<'_>, e: &Event) -> Option<String> {
    let ended = view.steps.leases.get(&e.lease)?.ended.get(&e.host)?;
    let takes_part = matches!(
        e.kind,
        Kind::Start | Kind::Sent | Kind::Filled | Kind::Taken | Kind::Done
    );
    (takes_part && e.at >= *ended).then(|| {
        format!(
            "step {:x}#{}: {:?} at {}, whose process of that lease had ended",
            e.lease, e.n, e.kind, e.host
        )
    })
}

fn check(key: Key, edge: Edge, t: &Tensor, found: &mut Findings) {
    if t.sent.len() > 1 {
        say(found, key, edge, "sent twice", t);
    }
    if t.filled.len() > 1 {
        say(found, key, edge, "delivered twice", t);
    }
    if t.taken as usize > t.filled.len() {
        say(found, key, edge, "taken more often than delivered", t);
    }
    let known = |sum: &u64| t.sent.iter().any(|(_, sent)| sent == sum);
    if !t.filled.iter().all(known) {
        say(found, key, edge, "not what was sent", t);
    }
}

fn say(found: &mut Findings, key: Key, (to, slot): Edge, what: &str, t: &Tensor) {
    found.say(format!(
        "step {:x}#{}, to participant {to} slot {slot}: {what}: {t:?}",
        key.0, key.1
    ));
}
