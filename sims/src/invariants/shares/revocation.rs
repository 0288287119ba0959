//! A member whose token is revoked is refused. Once the coordinator has confirmed the revocation, no worker that it
//! reaches has a connection to a client of that token, no call of that client succeeds, its calls fail with that cause,
//! and a worker of that token serves nobody.

use std::collections::BTreeSet;
use std::time::Duration;

use convoke_common::error::Code;

use crate::cluster::Host;
use crate::faults::{Harm, Injury};
use crate::invariants::invariant::{Findings, Invariant};
use crate::invariants::view::View;
use crate::script::{CallOutcome, Record};

/// How long after the confirmation the workers that were told have ended their connections.
const ENDED: Duration = Duration::from_secs(1);

/// How long a worker that could not be told takes to know, once packets pass again.
const TOLD: Duration = Duration::from_secs(10);

/// How long a worker, or the coordinator, may take to recover from a fault that has ended.
const LINGER: Duration = Duration::from_secs(20);

/// Indices of the injuries that a violation was reported for, and of the records that were checked.
#[derive(Default)]
pub(in crate::invariants) struct Revocation {
    injuries: BTreeSet<usize>,
    records: BTreeSet<usize>,
}

impl Invariant for Revocation {
    fn name(&self) -> &'static str {
        "who is revoked is refused"
    }

    fn tick(&mut self, view: &View<'_>, found: &mut Findings) {
        for (n, injury) in view.injured.iter().enumerate() {
            let (Harm::Revoke, Some(answered)) = (injury.harm, injury.answered) else {
                continue;
            };
            if injury.until.is_none()
                && !self.injuries.contains(&n)
                && let Some(what) = served(view, injury, answered)
            {
                self.injuries.insert(n);
                found.say(what);
            }
            let Host::Client(client) = injury.host else {
                continue;
            };
            for (i, r) in view.records.iter().enumerate() {
                if r.client != usize::from(client) || r.ended.is_none() || self.records.contains(&i)
                {
                    continue;
                }
                self.records.insert(i);
                if let Some(what) = succeeded(view, injury, answered, r) {
                    found.say(format!("{}: {what}", injury.host));
                }
            }
        }
    }
}

/// The latest time by which `worker` has ended the connections of a token whose revocation was confirmed at `answered`.
fn due(view: &View<'_>, injury: &Injury, answered: Duration, worker: Host) -> Duration {
    let ours = |host: Host| host == worker || host == Host::Coordinator;
    let from = answered.saturating_sub(LINGER);
    let hurt = view.injuries(from, view.now).filter(|i| {
        let itself = std::ptr::eq(*i, injury);
        !itself && i.harm.separates() && (ours(i.host) || i.other.is_some_and(ours))
    });
    let passes = hurt.map(|i| i.until.unwrap_or(view.now) + TOLD).max();
    let moves = [worker, Host::Coordinator];
    let moves = moves.map(|h| view.moves(h, from, view.now)) != [false; 2];
    let moves = moves.then_some(view.now + TOLD);
    (answered + ENDED).max(passes.max(moves).unwrap_or_default())
}

/// Complains about a worker that still serves a revoked client, or a revoked worker that still serves.
fn served(view: &View<'_>, injury: &Injury, answered: Duration) -> Option<String> {
    let host = injury.host;
    match host {
        Host::Coordinator => None,
        Host::Worker(i) => {
            // A revoked worker ends by itself, which is what the invariant wants.
            let serves = view.cluster.worker(i).is_some() && !view.left.contains_key(&host);
            let ended = view.cluster.ends().iter();
            let ended = ended
                .filter(|(at, h, _)| *h == host && *at >= injury.at)
                .count();
            let due = match ended {
                0 => due(view, injury, answered, host),
                _ => answered + ENDED,
            };
            (serves && view.now > due && view.cluster.is_running(host))
                .then(|| format!("{host} serves, though its token is revoked"))
        }
        Host::Client(_) => {
            let name = view.cluster.hub(host)?.me.name.clone();
            let workers = view.cluster.hosts().into_iter();
            let has_link = |w: &Host| {
                let hub = view.cluster.hub(*w);
                let links = hub.map_or(vec![], |hub| hub.links());
                links.iter().any(|l| l.peer().name == name)
            };
            let workers = workers.filter(|h| matches!(h, Host::Worker(_)));
            let late = workers.filter(has_link).find(|w| {
                view.now > due(view, injury, answered, *w) && view.cluster.is_running(*w)
            });
            late.map(|w| format!("{w} has a link to {host}, whose token is revoked"))
        }
    }
}

/// Complains about the outcome of a call that ran while its client was revoked.
fn succeeded(view: &View<'_>, injury: &Injury, answered: Duration, r: &Record) -> Option<String> {
    let (begun, ended) = (view.zero + r.begun, view.zero + r.ended.as_ref()?.0);
    let workers = view.cluster.hosts().into_iter();
    let workers = workers.filter(|h| matches!(h, Host::Worker(_)));
    let due = workers.map(|w| due(view, injury, answered, w)).max()?;
    if begun <= due || injury.until.is_some_and(|until| ended >= until) {
        return None;
    }
    match &r.ended.as_ref()?.1 {
        CallOutcome::Results(_) => Some("a call succeeds though its token is revoked".to_owned()),
        CallOutcome::Failed(e)
            if e.code != Code::Unauthorized && !is_away(view, injury, begun, ended) =>
        {
            let code = e.code.name();
            Some(format!("its token is revoked, and a call says {code}: {e}"))
        }
        CallOutcome::Failed(_) | CallOutcome::Dropped | CallOutcome::Lost => None,
    }
}

/// Whether another fault struck the revoked host or the coordinator, so that the host may not have heard of the
/// revocation.
fn is_away(view: &View<'_>, injury: &Injury, from: Duration, to: Duration) -> bool {
    let ours = |host: Host| host == injury.host || host == Host::Coordinator;
    let from = from.saturating_sub(LINGER);
    view.injuries(from, to).any(|i| {
        let itself = std::ptr::eq(i, injury);
        !itself && i.harm.separates() && (ours(i.host) || i.other.is_some_and(ours))
    })
}
