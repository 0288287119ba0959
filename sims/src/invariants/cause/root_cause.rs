//! A call that fails names its true cause: what the scenario did to it, and where. A loss is excused only by a fault of
//! one of the two that it names, or between them.

use std::collections::BTreeSet;
use std::time::Duration;

use convoke_common::error::{Code, Error};

use crate::cluster::Host;
use crate::faults::{Harm, Injury, Row};
use crate::invariants::invariant::{Findings, Invariant};
use crate::invariants::view::{JOINING, View};
use crate::oracle::ExpectedOutcome;
use crate::scenario::WorkerSpec;
use crate::script::{CallOutcome, Record};
use crate::steps::{Lease, worker};

/// How long a fault has effects after its end: the next call may find a lost link, and a wedged worker has to return.
const LINGER: Duration = Duration::from_secs(15);

/// By how much the end of a call may differ from the outcome of its step, as the script notes them.
const NOTED: Duration = Duration::from_millis(2);

/// Indices of the records that were checked.
#[derive(Default)]
pub(in crate::invariants) struct RootCause(BTreeSet<usize>);

impl Invariant for RootCause {
    fn name(&self) -> &'static str {
        "the cause is the injected one"
    }

    fn tick(&mut self, view: &View<'_>, found: &mut Findings) {
        for (i, r) in view.records.iter().enumerate() {
            let Some((ended, how)) = &r.ended else {
                continue;
            };
            if !self.0.insert(i) {
                continue;
            }
            let CallOutcome::Failed(error) = how else {
                continue;
            };
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
    /// Faults that were active between `from` and `to`, as times since the simulation began, may explain the error.
    from: Duration,
    to: Duration,
}

impl Case<'_> {
    /// Returns what is wrong with the error, if anything is.
    fn complaint(&self) -> Option<String> {
        let expected = self
            .record
            .call
            .and_then(|call| self.view.expected.get(&(self.record.client, call)));
        if let Some(ExpectedOutcome::Fails { code, node }) = expected
            && self.error.code == *code
        {
            return match self.is_eager() {
                // If all memory is taken, the call fails before it reaches its trap; so does one that is planned anew.
                true if *code == Code::OutOfMemory && self.lacks_memory() => None,
                false
                    if *code == Code::OutOfMemory
                        && self.reached_no_node()
                        && self.lacks_memory() =>
                {
                    None
                }
                true => self.check_line(),
                false => self.check_place(node),
            };
        }
        let explained = match self.error.code {
            Code::DeadlineExceeded => self.is_late(),
            Code::PeerLost => self.named().is_some() && self.is_about_the_hurt(),
            Code::Unreachable => self.is_about_the_hurt() || self.has_wrong_calendar(),
            // A handle is lost together with its worker, or with all ways to it.
            Code::StateLost => {
                self.is_eager() && (self.is_about_the_hurt() || self.has_wrong_calendar())
            }
            Code::KernelPanicked => self.struck(Row::Panic),
            Code::OutOfMemory => self.lacks_memory(),
            Code::Busy => self.struck(Row::Refuse),
            Code::Wedged => self.struck(Row::Hang),
            Code::WorkerLeaving => self.named_one_leaves(),
            Code::NoWorkers | Code::ClusterTooSmall => self.lacks_workers(),
            Code::InvalidArgument => self.lacks_the_pinned() || self.lacks_workers(),
            Code::Quarantined => self.was(Row::Deadly),
            Code::Unauthorized => self.has_wrong_calendar() || self.is_revoked(),
            // A forged tensor may have a valid slot, and a wrong type.
            Code::ProtocolViolation => self.was(Row::Forge),
            _ => false,
        };
        (!explained).then(|| "nothing that was done explains it".into())
    }

    fn model(&self) -> &crate::scenario::ModelUse {
        &self.view.scenario.clients[self.record.client].models[self.record.model]
    }

    fn is_eager(&self) -> bool {
        let calls = &self.view.scenario.clients[self.record.client].calls;
        self.record.call.is_some_and(|c| calls[c].eager.is_some())
    }

    /// Checks that the error of a trap in a call on handles names an op, a worker, and the line that issued the op. In
    /// a traced function, the name of the node holds that line.
    fn check_line(&self) -> Option<String> {
        let site = self.error.site.as_deref();
        let origin = site.and_then(|s| s.origin.as_deref().or(s.node.as_deref()));
        let origin = origin.unwrap_or_default();
        if !origin.contains("eager.rs") || site.is_none_or(|s| s.op.is_none()) {
            return Some(format!("it is of no op that was issued, but of '{origin}'"));
        }
        self.named().is_none().then(|| "it names no worker".into())
    }

    /// Whether the call failed before any node of it ran.
    fn reached_no_node(&self) -> bool {
        let site = self.error.site.as_deref();
        site.is_none_or(|s| s.node.is_none())
    }

    /// Checks that the error of a trap names the node and the worker.
    fn check_place(&self, node: &str) -> Option<String> {
        let site = self.error.site.as_deref();
        let named = site.and_then(|s| s.node.as_deref()).unwrap_or_default();
        if !named.split('+').any(|part| part == node) {
            return Some(format!("node '{node}' failed, not '{named}'"));
        }
        match self.named() {
            None => Some("it names no worker".into()),
            Some(worker) if !self.was_first(worker) => {
                Some(format!("{worker} was not the first that it failed at"))
            }
            Some(_) => None,
        }
    }

    /// Whether the call's step failed with this code at `worker` first.
    fn was_first(&self, worker: Host) -> bool {
        let (me, code) = (self.me(), self.error.code.name());
        let steps = self.view.steps.steps.iter();
        let mine = steps.filter(|((lease, _), _)| {
            let lease = self.view.steps.leases.get(lease);
            lease.and_then(Lease::driver) == Some(me)
        });
        mine.map(|(_, step)| step).any(|step| {
            let with_it = step.outcomes.iter().any(|(at, said)| {
                said.as_ref() == Some(&code) && *at <= self.to && *at + NOTED >= self.to
            });
            let first = step.aborts.iter().find(|a| a.code == code);
            with_it && first.is_some_and(|a| a.host == worker)
        })
    }

    fn me(&self) -> Host {
        Host::Client(self.record.client as u16)
    }

    fn injuries(&self) -> impl Iterator<Item = &Injury> {
        self.view.injuries(self.from, self.to)
    }

    /// Whether a fault of this kind struck the worker that the error names.
    fn struck(&self, row: Row) -> bool {
        let named = self.named();
        self.injuries()
            .any(|i| i.row == row && named == Some(i.host))
    }

    /// Whether a fault of this kind struck anybody.
    fn was(&self, row: Row) -> bool {
        self.injuries().any(|i| i.row == row)
    }

    /// The worker that the error names.
    fn named(&self) -> Option<Host> {
        worker(self.error.site.as_deref()?.worker.as_deref()?)
    }

    /// The host that lost contact: the worker or the coordinator that reported the loss, the coordinator if the loss
    /// was between a plan and its lease, else this client.
    fn reporter(&self) -> Host {
        let message = &self.error.message;
        let coordinators = message.contains("since the plan was made")
            || message.starts_with("the coordinator lost contact");
        if coordinators {
            return Host::Coordinator;
        }
        let said = [" lost contact with ", " cannot reach "];
        let said = said.iter().find_map(|how| message.split_once(how));
        let name = |(name, _): (&'_ str, _)| worker(name.trim_start_matches("worker "));
        said.and_then(name).unwrap_or(self.me())
    }

    /// Whether the error does not tell who lost whom: a worker dropped a lease, or was not dialled, because of another
    /// one that the message does not name.
    fn is_about_others(&self) -> bool {
        let message = &self.error.message;
        ["no longer holds", "did not connect to"]
            .iter()
            .any(|said| message.contains(said))
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

    /// Whether the calendar of somebody is off whom the error is about, or who made their certificates: a coordinator whose
    /// calendar is off makes certificates that nobody accepts.
    fn has_wrong_calendar(&self) -> bool {
        let about = [Some(Host::Coordinator), Some(self.me()), self.named()];
        let about = [&about[..], &[Some(self.reporter())]].concat();
        self.injuries()
            .any(|i| i.row == Row::Clock && about.contains(&Some(i.host)))
    }

    /// Whether the worker that the error names was told to leave, or ends for another reason.
    fn named_one_leaves(&self) -> bool {
        let left = |host: &Host| self.view.left.get(host).is_some_and(|at| *at <= self.to);
        let told = [Row::Hang, Row::Drain, Row::Revoke, Row::Expire];
        self.named().as_ref().is_some_and(left) || told.into_iter().any(|row| self.struck(row))
    }

    /// Whether a fault struck the worker that the error names (the coordinator if it names none), the host that lost
    /// contact, or the link between the two.
    fn is_about_the_hurt(&self) -> bool {
        let named = self.named().unwrap_or(Host::Coordinator);
        let reporter = self.reporter();
        let touched = |h: Host| h == named || h == reporter;
        let hurts = |i: &&Injury| match i.link() {
            _ if !i.harm.separates() => false,
            // Either end of a link that was cut may be the one that others saw go.
            Some((a, b)) if self.is_about_others() => touched(a) || touched(b),
            Some((a, b)) => touched(a) && touched(b),
            None => touched(i.host),
        };
        let lost = self.takes_away(self.injuries().filter(hurts));
        lost || [named, reporter].map(|h| self.view.moves(h, self.from, self.to)) != [false; 2]
    }

    /// Whether too few workers were there all the time for the model, or nobody who could plan it.
    fn lacks_workers(&self) -> bool {
        // Tables fit no single worker.
        let fewest = if self.model().spec.tables > 0 { 2 } else { 1 };
        let wants = self.model().workers.map_or(fewest, |n| n as usize);
        let workers = (0..self.view.scenario.workers.len()).map(|i| Host::Worker(i as u16));
        let planned = [Host::Coordinator, self.me()];
        let there = workers.filter(|w| self.was_there(*w)).count();
        there < wants || !planned.into_iter().all(|h| self.was_there(h))
    }

    /// Whether the worker that the scenario pins a node to was away, or the one to which a call on handles pins what it traces.
    fn lacks_the_pinned(&self) -> bool {
        let pinned = if self.is_eager() {
            let message = &self.error.message;
            let mut workers = (0..self.view.scenario.workers.len()).map(|i| Host::Worker(i as u16));
            workers.find(|w| message.contains(&format!("'{w}/")))
        } else {
            self.model().pin.map(|(_, worker)| Host::Worker(worker))
        };
        pinned.is_some_and(|w| !self.was_there(w))
    }

    /// Whether a host was there all the time: neither it nor its link to this client or to the coordinator was struck
    /// by more than mild faults ([`Harm::is_mild`]) and one brief one.
    fn was_there(&self, host: Host) -> bool {
        let joins = |w: &WorkerSpec| {
            let joined = self.view.zero + Duration::from_millis(w.joins.into()) + JOINING;
            w.joins > 0 && self.from <= joined
        };
        let late = match host {
            Host::Worker(i) => {
                let spec = self.view.scenario.workers.get(usize::from(i));
                spec.is_some_and(joins)
            }
            Host::Coordinator | Host::Client(_) => false,
        };
        let left = self.view.left.get(&host).is_some_and(|at| *at <= self.to);
        let plans = [Host::Coordinator, self.me()];
        let strikes = |i: &&Injury| match i.link() {
            _ if i.harm.is_mild() => false,
            Some((a, b)) => (a == host && plans.contains(&b)) || (b == host && plans.contains(&a)),
            None => i.host == host,
        };
        !late
            && !left
            && !self.takes_away(self.injuries().filter(strikes))
            && !self.view.moves(host, self.from, self.to)
    }

    /// Whether these faults may have taken somebody from somebody. One moment of silence takes nobody from anybody, but
    /// several may.
    fn takes_away<'i>(&self, struck: impl Iterator<Item = &'i Injury>) -> bool {
        let struck: Vec<&Injury> = struck.collect();
        struck.len() > 1 || struck.iter().any(|i| !i.is_brief(self.to))
    }

    /// Whether a fault took the memory that the call needed.
    fn lacks_memory(&self) -> bool {
        self.struck(Row::OutOfMemory)
            || self.is_at_its_limit()
            || self.has_no_room()
            || self.view.is_crowded(self.error)
    }

    /// Whether the error says that no worker has room, and a fault or a client takes memory.
    fn has_no_room(&self) -> bool {
        let hoards = |i: &Injury| matches!(i.harm, Harm::Hoard { .. } | Harm::Memory);
        self.named().is_none() && self.injuries().any(hoards)
    }

    /// Whether this client takes all the memory that it can get, and the error says that its budget is used up, or is of
    /// the worker that it fills.
    fn is_at_its_limit(&self) -> bool {
        let own_budget = self.error.message.starts_with("token ");
        let fills = |i: &Injury| own_budget || self.named() == Some(i.host);
        let hoards =
            |i: &Injury| matches!(i.harm, Harm::Hoard { .. }) && i.other == Some(self.me());
        self.injuries().any(|i| hoards(i) && fills(i))
    }

    /// Whether the token of this client, or of the worker that the error names, was revoked.
    fn is_revoked(&self) -> bool {
        let ours = |host: Host| host == self.me() || self.named() == Some(host);
        self.injuries()
            .any(|i| i.harm == Harm::Revoke && ours(i.host))
    }
}
