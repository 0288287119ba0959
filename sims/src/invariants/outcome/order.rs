//! Membership and leases are linearizable: what clients, workers and operators asked of the coordinator, and what it
//! answered, is what one coordinator could have answered that did one thing at a time ([`crate::history`]).

use crate::cluster::Host;
use crate::faults::{Harm, Target};
use crate::history::MemberRegister;
use crate::invariants::invariant::{Findings, Invariant, Stage};
use crate::invariants::view::View;
use crate::scenario::Scenario;

pub(in crate::invariants) struct Order;

/// What the faults of a scenario leave of the coordinator's promises.
fn promises(scenario: &Scenario) -> MemberRegister {
    let (workers, clients) = (scenario.workers.len(), scenario.clients.len());
    let mut harms = scenario.faults.iter().map(|f| (f.target, f.harm));
    let disk = |harm| matches!(harm, Harm::DiskFull | Harm::DiskFails | Harm::DiskFlips(_));
    let calendar = |harm| matches!(harm, Harm::Clock(_) | Harm::Days(_) | Harm::Expire);
    let of_coordinator = |(target, harm): (Target, Harm)| {
        target.host(workers, clients) == Host::Coordinator && disk(harm)
    };
    MemberRegister {
        disk_is_sound: !harms.clone().any(of_coordinator),
        calendars_hold: !harms.any(|(_, harm)| calendar(harm)),
    }
}

impl Invariant for Order {
    fn name(&self) -> &'static str {
        "membership and leases have an order"
    }

    fn at(&mut self, stage: Stage, view: &View<'_>, found: &mut Findings) {
        if stage == Stage::Over {
            let history = view.cluster.trace().history();
            let violations = history.violations(promises(view.scenario));
            violations.into_iter().for_each(|what| found.say(what));
        }
    }
}
