//! A call that fails names its cause: what the scenario did to it, and where.

use std::collections::BTreeSet;
use std::time::Duration;

use convoke_common::error::{Code, Error};

use super::{Found, Invariant, View};
use crate::cluster::Host;
use crate::faults::{Harm, Injured, Row};
use crate::oracle::Expected;
use crate::script::{Ended, Record};

/// How long a fault's effects last beyond its end: a lost link is found by the next call, a wedged worker returns.
const LINGER: Duration = Duration::from_secs(15);

/// Records looked at so far.
#[derive(Default)]
pub(super) struct RootCause(BTreeSet<usize>);

impl Invariant for RootCause {
    fn name(&self) -> &'static str {
        "the cause is the injected one"
    }

    fn tick(&mut self, view: &View<'_>, found: &mut Found) {
        for (i, r) in view.records.iter().enumerate() {
            let Some((ended, how)) = &r.ended else {
                continue;
            };
            if !self.0.insert(i) {
                continue;
            }
            let Ended::Failed(error) = how else { continue };
            let case = Case {
                view,
                record: r,
                error,
                from: (view.zero + r.begun).saturating_sub(LINGER),
                to: view.zero + *ended,
            };
            if let Some(complaint) = case.complaint() {
                let what = match r.call {
                    Some(call) => format!("call {call}"),
                    None => format!("the load of model {}", r.model),
                };
                let code = error.code.name();
                found.say(format!(
                    "{what} of c{}: {complaint}: {code}: {error}",
                    r.client
                ));
            }
        }
    }
}

/// A call or load that failed.
struct Case<'a> {
    view: &'a View<'a>,
    record: &'a Record,
    error: &'a Error,
    /// Since the simulation began: when a fault may have struck that explains it.
    from: Duration,
    to: Duration,
}

impl Case<'_> {
    /// What is wrong with the error.
    fn complaint(&self) -> Option<String> {
        let expected = self
            .record
            .call
            .and_then(|call| self.view.expected.get(&(self.record.client, call)));
        if let Some(Expected::Fails { code, node }) = expected
            && self.error.code == *code
        {
            return self.check_place(node);
        }
        let explained = match self.error.code {
            Code::DeadlineExceeded => self.is_late() || self.lost_somebody(),
            Code::PeerLost => self.lost_somebody() && self.is_about_the_hurt(),
            Code::LeaseRetired | Code::Unreachable => self.lost_somebody(),
            Code::KernelPanicked => self.struck(Row::Panic),
            Code::OutOfMemory => self.struck(Row::OutOfMemory),
            Code::Busy => self.struck(Row::Refuse),
            Code::Wedged => self.struck(Row::Hang),
            Code::WorkerLeaving => !self.view.left.is_empty() || self.struck(Row::Hang),
            Code::NoWorkers | Code::ClusterTooSmall => self.lacks_workers(),
            Code::InvalidArgument => self.model().pin.is_some() || self.lacks_workers(),
            Code::Quarantined => self.deaths() >= 2,
            Code::Unauthorized => self.struck(Row::Clock),
            // What a participant may send, of the wrong type.
            Code::ProtocolViolation => self.injuries().any(|i| i.row == Row::Forge),
            _ => false,
        };
        if !explained {
            return Some("nothing that was done explains it".into());
        }
        self.must_recover()
            .then(|| "it was to be run again on the survivors".into())
    }

    fn model(&self) -> &crate::scenario::ModelUse {
        &self.view.scenario.clients[self.record.client].models[self.record.model]
    }

    /// The workload's own error names node and worker.
    fn check_place(&self, node: &str) -> Option<String> {
        let site = self.error.site.as_deref();
        let named = site.and_then(|s| s.node.as_deref()).unwrap_or_default();
        if !named.split('+').any(|part| part == node) {
            return Some(format!("node '{node}' failed, not '{named}'"));
        }
        match site.and_then(|s| s.worker.as_deref()) {
            Some(_) => None,
            None => Some("it names no worker".into()),
        }
    }

    fn injuries(&self) -> impl Iterator<Item = &Injured> {
        self.view.injuries(self.from, self.to)
    }

    fn struck(&self, row: Row) -> bool {
        let named = self.named();
        self.injuries()
            .any(|i| i.row == row && named.is_none_or(|n| n == i.host))
    }

    /// The worker that the error names.
    fn named(&self) -> Option<Host> {
        let name = self.error.site.as_deref()?.worker.as_deref()?;
        name.strip_prefix('w')?.parse().ok().map(Host::Worker)
    }

    fn is_late(&self) -> bool {
        let call = self
            .record
            .call
            .map(|c| &self.view.scenario.clients[self.record.client].calls[c]);
        let bound = call
            .and_then(|c| c.deadline)
            .map(|ms| Duration::from_millis(ms.into()));
        let took = (self.to - self.view.zero).saturating_sub(self.record.begun);
        bound.is_some_and(|bound| took >= bound)
    }

    fn lost_somebody(&self) -> bool {
        self.view.separated(self.from, self.to)
    }

    /// Whether something was done to the worker that the error names, or to everybody's way to it.
    fn is_about_the_hurt(&self) -> bool {
        let Some(named) = self.named() else {
            return true;
        };
        let me = Host::Client(self.record.client as u16);
        let touches = |h: Host| h == named || h == me;
        let late = |h: Host| match h {
            Host::Worker(i) => self.view.scenario.workers[usize::from(i)].joins > 0,
            _ => false,
        };
        // Two workers that lost each other name each other: either end of what separates them is right.
        let hurt = self
            .injuries()
            .filter(|i| i.harm.separates())
            .any(|i| touches(i.host) || i.other.is_some_and(touches) || i.other == Some(i.host));
        let ended = self.view.cluster.ends().iter().any(|(_, h, _)| *h == named);
        hurt || ended || late(named) || self.view.left.contains_key(&named) || self.is_cut_between()
    }

    /// Whether workers may have lost each other while the client lost nobody.
    fn is_cut_between(&self) -> bool {
        self.injuries().any(|i| {
            i.harm.separates() && matches!(i.host, Host::Worker(_)) && i.row != Row::CrashWorker
        })
    }

    fn lacks_workers(&self) -> bool {
        let s = self.view.scenario;
        let late = s.workers.iter().any(|w| w.joins > 0);
        let wants = self.model().workers.unwrap_or(1) as usize;
        late || self.lost_somebody() || self.struck(Row::OutOfMemory) || wants > s.workers.len()
    }

    fn deaths(&self) -> usize {
        let killed = |i: &&Injured| matches!(i.harm, Harm::Crash | Harm::PowerCut | Harm::Hang);
        self.view.injured.iter().filter(killed).count() + self.view.cluster.ends().len()
    }

    /// Whether the call had to succeed: all that happened is that one worker crashed, and the others can do it.
    fn must_recover(&self) -> bool {
        let Some(call) = self.record.call else {
            return false;
        };
        let s = self.view.scenario;
        let call = &s.clients[self.record.client].calls[call];
        let model = self.model();
        let only_a_crash = match self.view.injured {
            [one] => one.row == Row::CrashWorker,
            _ => false,
        };
        let stay = s.workers.iter().all(|w| w.joins == 0 && w.leaves.is_none());
        let enough = model.workers.is_none_or(|n| (n as usize) < s.workers.len());
        only_a_crash
            && stay
            && enough
            && call.retry
            && !call.sprung
            && call.deadline.is_none()
            && model.pin.is_none()
    }
}
