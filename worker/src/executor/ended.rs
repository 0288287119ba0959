//! Steps that ended and have not quiesced: finding what holds them up, and reporting it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use convoke_common::error::{Code, Error};
use convoke_common::ids::StepKey;
use convoke_graph::program::ProgramNode;
use convoke_rendezvous::Link;
use convoke_rendezvous::frame::Frame;

use super::run::{FollowUp, Phase, Run, Runner};
use super::{Executor, live};
use crate::health::wedge::{RETURNS, WEDGED, Work};
use crate::program::installed::{declared, site};

impl Executor {
    /// Adds a step to the watch if it has ended and not quiesced. Called under the step's lock, so that the step cannot
    /// quiesce in between.
    pub(super) fn watch(&self, run: &mut Run, after: &FollowUp) {
        let lingers = run.phase == Phase::Running && run.error.is_some() && !after.retire;
        let (Some(lease), true) = (self.lease(), lingers && !run.watched) else {
            return;
        };
        run.watched = true;
        let (me, n) = (self.me.clone(), run.n);
        let look = move || me.upgrade()?.holdup(n);
        self.engine
            .watch
            .ended(Work::Step(StepKey { lease: lease.id, n }), Box::new(look));
    }

    /// Finds what holds up a step that ended: a kernel is returned as an error, and a link that still holds tensors is
    /// closed.
    fn holdup(&self, n: u64) -> Option<Error> {
        let mut run = self.run(n);
        if run.n != n || run.phase != Phase::Running || run.error.is_none() {
            return None;
        }
        if run.runner == Runner::Active {
            let node = self.entry(n).node.load(Ordering::Relaxed);
            return Some(self.wedged(self.installed.nodes().get(node as usize)));
        }
        let at_work = run.device.as_ref().and_then(|step| step.at_work());
        if let Some(node) = at_work {
            return Some(self.wedged(self.installed.nodes().get(node as usize)));
        }
        let unsent = std::mem::take(&mut run.unsent);
        let held = unsent
            .iter()
            .zip(&self.links)
            .filter(|(count, _)| **count > 0);
        let links: Vec<Arc<Link>> = held.filter_map(|(_, link)| link.clone()).collect();
        run.unsent = unsent;
        drop(run);
        for link in links {
            tracing::warn!(peer = link.peer().name, "does not read what a step sent it");
            link.close("it does not read what was sent to it");
        }
        None
    }

    /// Logs, for a step that is about to end by its deadline, the lease whose turn it has waited for.
    pub(super) fn waited(&self, run: &Run, error: &Error) {
        if error.code != Code::DeadlineExceeded || run.runner != Runner::Queued {
            return;
        }
        let turns = self.engine.compute.turns();
        let Some(first) = turns.iter().find(|u| u.runs) else {
            return;
        };
        let (step, client) = (run.n, self.share.member());
        tracing::warn!(
            "step {step} of {}, for {client}, waited for compute until its deadline, behind {} of {}",
            self.share.lease(),
            first.lease,
            first.member
        );
    }

    /// The node that a thread of this executor runs, with the name of the function, for messages.
    pub fn node_at_work(&self) -> Option<String> {
        let active = |r: &Run| r.runner == Runner::Active;
        let n = live(&self.runs).find(|r| active(r)).map(|r| r.n)?;
        let node = self.entry(n).node.load(Ordering::Relaxed);
        let node = self.installed.nodes().get(node as usize)?;
        Some(format!(
            "node '{}' of {}",
            node.name, self.installed.program.name
        ))
    }

    fn wedged(&self, node: Option<&ProgramNode>) -> Error {
        let name = node.map_or("?", |n| &*n.name);
        let msg = format!(
            "worker {} is wedged: node '{name}' of {} did not stop within {WEDGED:?} after its step had ended",
            self.engine.worker, self.installed.program.name
        );
        let mut place = self.place();
        if let Some(node) = node {
            let site = site(node, declared(&self.installed.program, node));
            (place.node, place.op, place.operands) = (site.node, site.op, site.operands);
        }
        Error::new(Code::Wedged, msg).advise(RETURNS).at(place)
    }

    /// Marks the lease's steps as ended by a kernel that does not stop: steps in flight are aborted, and the drivers of
    /// steps that ended before are told, since the kernel holds up one of those.
    pub fn wedge(&self, error: &Error) {
        let ended: Vec<u64> = live(&self.runs)
            .filter(|r| r.error.is_some())
            .map(|r| r.n)
            .collect();
        if let Some(lease) = self.lease()
            && let Some(Some(driver)) = self.links.get(usize::from(lease.driver()))
        {
            for n in ended {
                driver.send(Frame::Abort {
                    key: lease.key_at(lease.driver(), n),
                    error: Box::new(error.clone()),
                });
            }
        }
        self.abort_all(error);
    }
}
