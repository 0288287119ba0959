//! A call or load that can succeed does.
//!
//! It has to where nothing that happened takes from it what it needs: a path may be cut, and a process stopped, for a moment
//! ([`Injury::is_brief`]), disks may be of no use, and whatever befalls other clients concerns it not. It also has to where at
//! most two workers were taken away from everybody, the client asked for retries, and the other workers, which nothing
//! befell, are as many as the model needs.

use std::collections::BTreeSet;
use std::time::Duration;

use convoke_common::error::{Code, Error};

use crate::cluster::Host;
use crate::faults::{Harm, Injury};
use crate::invariants::invariant::{Findings, Invariant};
use crate::invariants::view::{JOINING, LEAVING, View};
use crate::oracle::ExpectedOutcome;
use crate::scenario::{CallSpec, ModelUse};
use crate::script::{CallOutcome, Record};

/// How long a fault has effects after its end: the next call may find a lost link, and a wedged worker has to return.
const LINGER: Duration = Duration::from_secs(15);

/// The workers that a call may lose: it runs again twice.
const SURVIVED: usize = 2;

/// Indices of the records that were checked.
#[derive(Default)]
pub(in crate::invariants) struct MustSucceed(BTreeSet<usize>);

impl Invariant for MustSucceed {
    fn name(&self) -> &'static str {
        "who can succeed does"
    }

    fn tick(&mut self, view: &View<'_>, found: &mut Findings) {
        for (i, r) in view.records.iter().enumerate() {
            let Some((ended, CallOutcome::Failed(error))) = &r.ended else {
                continue;
            };
            if !self.0.insert(i) {
                continue;
            }
            let work = Work {
                view,
                record: r,
                from: (view.zero + r.begun).saturating_sub(LINGER),
                to: view.zero + *ended,
            };
            if !work.asks_for(error)
                && let Some(why) = work.has_to_succeed()
            {
                let what = match r.call {
                    Some(call) => format!("call {call}"),
                    None => format!("the load of model {}", r.model),
                };
                let code = error.code.name();
                found.say(format!("{what} of c{}: {why}: {code}: {error}", r.client));
            }
        }
    }
}

/// A call or load that failed.
struct Work<'a> {
    view: &'a View<'a>,
    record: &'a Record,
    /// Faults that were active between `from` and `to`, as times since the simulation began, may concern it.
    from: Duration,
    to: Duration,
}

impl Work<'_> {
    fn model(&self) -> &ModelUse {
        &self.view.scenario.clients[self.record.client].models[self.record.model]
    }

    fn call(&self) -> Option<&CallSpec> {
        let calls = &self.view.scenario.clients[self.record.client].calls;
        self.record.call.map(|c| &calls[c])
    }

    fn me(&self) -> Host {
        Host::Client(self.record.client as u16)
    }

    /// Whether the scenario itself asks for this error: by a trap, a deadline, or more work than a small worker has room for.
    fn asks_for(&self, error: &Error) -> bool {
        let code = error.code;
        let expected = self
            .record
            .call
            .and_then(|call| self.view.expected.get(&(self.record.client, call)));
        let trap = matches!(expected, Some(ExpectedOutcome::Fails { code: c, .. }) if *c == code);
        let late = self.call().is_some_and(|c| c.deadline.is_some());
        trap || late && code == Code::DeadlineExceeded || self.view.is_crowded(error)
    }

    /// Returns why the call or load had to succeed, if it had to.
    fn has_to_succeed(&self) -> Option<&'static str> {
        let injuries = self.view.injuries(self.from, self.to);
        let grave: Vec<&Injury> = injuries.filter(|i| !self.is_harmless(i)).collect();
        let mut lost: BTreeSet<Host> = grave.iter().filter_map(|i| i.lost_worker()).collect();
        let others = grave.iter().any(|i| i.lost_worker().is_none());
        lost.extend(self.leaving());
        // A process that ends or restarts by itself does so for a fault of which it is not the only one to suffer.
        let hosts = self.view.cluster.hosts().into_iter();
        let mut rest = hosts.filter(|h| !lost.contains(h) && !self.is_other_client(*h));
        let moves = |h| self.view.moves(h, self.from, self.to) && !self.joins(h);
        if others || rest.any(moves) || !self.has_workers(&lost) {
            return None;
        }
        if lost.is_empty() {
            return Some("nothing that was done ends it");
        }
        (lost.len() <= SURVIVED && grave.len() <= SURVIVED && self.runs_again())
            .then_some("it was to be run again on the survivors")
    }

    /// Workers that leave for good meanwhile.
    fn leaving(&self) -> impl Iterator<Item = Host> {
        let left = self.view.left.iter();
        let meanwhile = left.filter(|(_, at)| **at <= self.to && **at + LEAVING >= self.from);
        meanwhile.map(|(host, _)| *host)
    }

    /// Whether a worker joins meanwhile for the first time, so that only its coming may concern anybody.
    fn joins(&self, host: Host) -> bool {
        let Host::Worker(i) = host else { return false };
        let spec = self.view.scenario.workers.get(usize::from(i));
        let joins = spec.map_or(0, |w| w.joins);
        let joined = self.view.zero + Duration::from_millis(joins.into());
        let mut ends = self.view.cluster.ends().iter();
        joins > 0 && joined + JOINING >= self.from && !ends.any(|(_, h, _)| *h == host)
    }

    /// Whether workers that were there all the time, and that nothing took away, suffice for the model.
    fn has_workers(&self, lost: &BTreeSet<Host>) -> bool {
        let gone = |h: &Host| self.view.left.get(h).is_some_and(|at| *at <= self.to);
        let stays = |h: &Host| !lost.contains(h) && !self.joins(*h) && !gone(h);
        let workers = (0..self.view.scenario.workers.len()).map(|i| Host::Worker(i as u16));
        let there: BTreeSet<Host> = workers.filter(stays).collect();
        let pinned = self.model().pin.map(|(_, worker)| Host::Worker(worker));
        let wants = self.model().workers.unwrap_or(1) as usize;
        wants <= there.len() && pinned.is_none_or(|w| there.contains(&w))
    }

    /// Whether the call or load is run again where a worker is lost.
    fn runs_again(&self) -> bool {
        self.call()
            .is_none_or(|call| call.retry && !call.sprung && call.deadline.is_none())
    }

    fn is_other_client(&self, host: Host) -> bool {
        matches!(host, Host::Client(_)) && host != self.me()
    }

    /// Whether a fault ends nobody's work, or only that of another client: it is mild ([`Harm::is_mild`]), or was over
    /// before a peer may count as lost.
    fn is_harmless(&self, injury: &Injury) -> bool {
        let of_others = match injury.link() {
            Some((a, b)) => self.is_other_client(a) || self.is_other_client(b),
            // The calendars of all advance so that a token expires.
            None => self.is_other_client(injury.host) && injury.harm != Harm::Expire,
        };
        of_others || injury.is_brief(self.to) || injury.harm.is_mild()
    }
}
