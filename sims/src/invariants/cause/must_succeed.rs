//! A call or load that can succeed does.
//!
//! It has to where nothing happened that makes anybody lose anybody: a path may be cut, and a process stopped, for less
//! than [`BRIEF`]. It also has to where at most two faults took workers away from everybody, the client asked for
//! retries, and the other workers, which nothing befell, are as many as the model needs.

use std::collections::BTreeSet;
use std::time::Duration;

use convoke_common::error::Code;

use crate::cluster::Host;
use crate::faults::{Harm, Injury};
use crate::invariants::{Findings, Invariant, View};
use crate::oracle::ExpectedOutcome;
use crate::scenario::{CallSpec, ModelUse};
use crate::script::{CallOutcome, Record};

/// How long a fault has effects after its end: the next call may find a lost link, and a wedged worker has to return.
const LINGER: Duration = Duration::from_secs(15);

/// How long a peer may be silent without being lost: its next heartbeat after that, at most half a second later, is still
/// echoed within two seconds of the one before the silence, which may be half a second older than the silence.
const BRIEF: Duration = Duration::from_millis(900);

/// The faults that a call survives by running again twice.
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
            if !work.asks_for(error.code)
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

    /// Whether the scenario itself asks for this error: by a trap, a deadline, or a pin to a certain worker.
    fn asks_for(&self, code: Code) -> bool {
        let expected = self
            .record
            .call
            .and_then(|call| self.view.expected.get(&(self.record.client, call)));
        let trap = matches!(expected, Some(ExpectedOutcome::Fails { code: c, .. }) if *c == code);
        let late = self.call().is_some_and(|c| c.deadline.is_some());
        trap || late && code == Code::DeadlineExceeded || self.model().pin.is_some()
    }

    /// Returns why the call or load had to succeed, if it had to.
    fn has_to_succeed(&self) -> Option<&'static str> {
        let workers = &self.view.scenario.workers;
        let stay = workers.iter().all(|w| w.joins == 0 && w.leaves.is_none());
        let enough = |lost: usize| {
            let there = workers.len().saturating_sub(lost);
            self.model().workers.unwrap_or(1) as usize <= there
        };
        let injuries = self.view.injuries(self.from, self.to);
        let grave: Vec<&Injury> = injuries.filter(|i| !self.is_harmless(i)).collect();
        let lost: BTreeSet<Host> = grave.iter().map(|i| i.host).collect();
        let hosts = self.view.cluster.hosts();
        let mut others = hosts.iter().filter(|h| !lost.contains(h));
        let others_stay = !others.any(|h| self.view.moves(*h, self.from, self.to));
        if !stay || !enough(lost.len()) || !others_stay {
            return None;
        }
        if grave.is_empty() {
            return Some("nothing that was done ends it");
        }
        let lose_workers = grave.iter().all(|i| i.loses_a_worker());
        (lose_workers && grave.len() <= SURVIVED && self.runs_again())
            .then_some("it was to be run again on the survivors")
    }

    /// Whether the call or load is run again where a worker is lost.
    fn runs_again(&self) -> bool {
        self.call()
            .is_none_or(|call| call.retry && !call.sprung && call.deadline.is_none())
    }

    /// Whether a fault ends nobody's work: it slows work down, or was over before a peer may count as lost. A handshake
    /// that it meets takes longer, and succeeds.
    fn is_harmless(&self, injury: &Injury) -> bool {
        let lasted = injury.until.unwrap_or(self.to).saturating_sub(injury.at);
        match injury.harm {
            Harm::Duplicate(_) | Harm::Slow(_) => true,
            Harm::Delay(most) | Harm::Reorder(most) => most <= 50,
            Harm::Loss(rate) => rate <= 10_000,
            Harm::Cut { .. } | Harm::OneWay { .. } | Harm::Pause => lasted < BRIEF,
            _ => false,
        }
    }
}
