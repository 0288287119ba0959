//! A call that is given up ends its step: no step succeeds that nobody waits for any more.

use std::time::Duration;

use convoke_common::error::Code;

use crate::cluster::Host;
use crate::eager::CallMode;
use crate::event_log::Kind;
use crate::faults::{Harm, Injury};
use crate::invariants::invariant::{Findings, Invariant};
use crate::invariants::view::View;
use crate::script::{CallOutcome, Record};
use crate::steps::Key;

/// By how much the times of a step may differ from those of its call, as the script notes them.
const NOTED: Duration = Duration::from_millis(2);

/// A step that succeeded.
struct SuccessfulStep {
    key: Key,
    client: u16,
    begun: Duration,
    at: Duration,
}

/// The steps that succeeded within the last [`NOTED`], which are yet to be checked.
#[derive(Default)]
pub(in crate::invariants) struct GivenUp(Vec<SuccessfulStep>);

impl Invariant for GivenUp {
    fn name(&self) -> &'static str {
        "a call that is given up ends its step"
    }

    fn tick(&mut self, view: &View<'_>, found: &mut Findings) {
        for e in view.events.iter().filter(|e| e.kind == Kind::Outcome) {
            let key = (e.lease, e.n);
            let begun = view.steps.steps.get(&key);
            let begun = begun.and_then(|s| s.begun.first().copied());
            if let (None, Host::Client(client), Some(begun)) = (&e.code, e.host, begun) {
                self.0.push(SuccessfulStep {
                    key,
                    client,
                    begun,
                    at: e.at,
                });
            }
        }
        self.0.retain(|s| {
            if view.now <= s.at + NOTED {
                return true;
            }
            if !s.is_wanted(view) {
                found.say(format!(
                    "step {:x}#{} of c{} succeeds, and no call ends with it",
                    s.key.0, s.key.1, s.client
                ));
            }
            false
        });
    }
}

impl SuccessfulStep {
    /// Whether a call ended when the step did. Steps of canaries, which no script calls, and of clients that flood a
    /// worker are always wanted: no script makes their calls.
    fn is_wanted(&self, view: &View<'_>) -> bool {
        let me = Some(Host::Client(self.client));
        let floods = |i: &Injury| matches!(i.harm, Harm::Flood { .. }) && i.other == me;
        if view.injuries(self.begun, self.at).any(floods) {
            return true;
        }
        let calls = &view.scenario.clients[usize::from(self.client)].calls;
        let how = |r: &Record| r.call.map(|c| calls[c].eager.map(|(how, _)| how));
        let mine = |r: &&Record| r.client == usize::from(self.client);
        let mine = view.records.iter().filter(mine);
        let to = |r: &Record| r.ended.as_ref().map(|(at, _)| view.zero + *at);
        let called = |r: &&Record| {
            let over = to(r).is_some_and(|to| to + NOTED < self.begun);
            view.zero + r.begun <= self.begun + NOTED && !over
        };
        // The call of a traced function fetches its results after its step: it ends later, and may end in another way.
        let is_traced = |r: &Record| how(r) == Some(Some(CallMode::Traced));
        if mine.clone().filter(|r| is_traced(r)).any(|r| called(&r)) {
            return true;
        }
        let calls: Vec<&Record> = mine.filter(|r| how(r) == Some(None)).collect();
        let ended_with_it = |r: &&Record| {
            let then = to(r).is_some_and(|to| to + NOTED >= self.at && to <= self.at + NOTED);
            then && r.ended.as_ref().is_some_and(|(_, how)| may_end(how))
        };
        !calls.iter().any(called) || calls.iter().any(ended_with_it)
    }
}

/// Whether a call may end in this way at the moment in which its step succeeds.
fn may_end(how: &CallOutcome) -> bool {
    match how {
        CallOutcome::Results(_) | CallOutcome::Dropped | CallOutcome::Lost => true,
        CallOutcome::Failed(e) => e.code == Code::DeadlineExceeded,
    }
}
