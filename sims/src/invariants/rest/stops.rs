//! Processes that are asked to stop do so within the bound, and leave no task behind.

use crate::cluster::HostState;
use crate::invariants::invariant::{Findings, Invariant, Stage};
use crate::invariants::view::View;

pub(in crate::invariants) struct Stops;

impl Invariant for Stops {
    fn name(&self) -> &'static str {
        "processes stop"
    }

    fn at(&mut self, stage: Stage, view: &View<'_>, found: &mut Findings) {
        if stage != Stage::Over {
            return;
        }
        for host in view.cluster.hosts() {
            if view.cluster.state(host) != HostState::Down {
                found.say(format!("{host} has not stopped"));
            }
        }
        for (host, tasks) in view.cluster.stragglers() {
            found.say(format!("{host} left {tasks} tasks behind"));
        }
    }
}
