//! Leases: from the grant until nobody holds them any more.
//!
//! ```text
//! Installing --all workers acknowledged--> Granted --its driver is done--> Ended --every worker confirmed--> gone
//!      '------the install failed, or its driver gave it up------------------^
//! ```
//!
//! Invariants
//! 1. That the coordinator loses sight of a worker or of a driver ends no lease. A lease ends when its driver says so,
//!    or when every worker of it has dropped it or is known to be another incarnation.
//! 2. An ended lease is kept until each of its workers has confirmed that it dropped it: one that was out of reach is
//!    told when it returns.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use convoke_common::ids::{Incarnation, LeaseId, PlanId};
use convoke_common::memory::Reservation;
use convoke_common::mutant;
use convoke_common::program::Participant;
use convoke_common::rpc::{HeldLease, LeaseStatus};
use tokio::time::Instant;

use super::member::{LONGEST_TEXT, Life};
use super::{Command, ConnectionId, Driver, Membership, MembershipError, Offer, Plan};

/// Leases of one worker that a restarted coordinator takes over, and of one driver that returns: far more than fit into a
/// worker's memory.
pub(super) const HELD: usize = 1024;

/// How far a lease is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaseState {
    /// Workers are installing.
    Installing {
        /// Its driver gave it up meanwhile; whoever installs finds out here.
        given_up: bool,
    },
    /// All workers acknowledged.
    Granted,
    /// Its workers are told to drop it.
    Ended,
}

#[derive(Debug)]
struct Lease {
    /// What was installed; unknown of one that was taken over.
    plan: Option<PlanId>,
    model: String,
    driver: Driver,
    /// The workers that may hold it: all that it was granted at, less those that said that they dropped it and those
    /// that are another incarnation by now.
    holders: Vec<Participant>,
    state: LeaseState,
}

/// All leases that somebody may hold.
#[derive(Debug, Default)]
pub struct Leases(BTreeMap<LeaseId, Lease>);

impl Lease {
    fn has_ended(&self) -> bool {
        !matches!(
            self.state,
            LeaseState::Granted | LeaseState::Installing { given_up: false }
        )
    }

    fn is_held_by(&self, name: &str, incarnation: Incarnation) -> bool {
        let is = |w: &Participant| w.name == name && w.incarnation == incarnation;
        self.holders.iter().any(is)
    }
}

impl Leases {
    /// How many, those that ended and that a worker has yet to confirm included.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// How many go on.
    pub fn living(&self) -> usize {
        self.0.values().filter(|l| !l.has_ended()).count()
    }

    fn of(&self, wanted: impl Fn(&Lease) -> bool) -> Vec<LeaseId> {
        let found = self
            .0
            .iter()
            .filter(|(_, lease)| !lease.has_ended() && wanted(lease));
        found.map(|(id, _)| *id).collect()
    }

    /// Those that a client drives.
    pub fn of_driver(&self, driver: &Driver) -> Vec<LeaseId> {
        self.of(|lease| lease.driver == *driver)
    }

    /// Those of a plan.
    fn of_plan(&self, driver: &Driver, plan: PlanId) -> Vec<LeaseId> {
        self.of(|lease| lease.driver == *driver && lease.plan == Some(plan))
    }

    /// Those that a process of a worker may hold.
    pub fn of_worker(&self, name: &str, incarnation: Incarnation) -> Vec<LeaseId> {
        self.of(|lease| lease.is_held_by(name, incarnation))
    }

    /// Who may hold a lease that has not ended.
    pub fn holders(&self) -> BTreeSet<(&str, Incarnation)> {
        let living = self.0.values().filter(|lease| !lease.has_ended());
        let holders = living.flat_map(|lease| &lease.holders);
        holders.map(|w| (w.name.as_str(), w.incarnation)).collect()
    }

    /// A worker holds a lease no more. A lease that nobody holds is gone, unless it is still being installed.
    fn dropped(&mut self, lease: LeaseId, is: impl Fn(&Participant) -> bool) {
        let Some(entry) = self.0.get_mut(&lease) else {
            return;
        };
        entry.holders.retain(|w| !is(w));
        let installing = matches!(entry.state, LeaseState::Installing { .. });
        if entry.holders.is_empty() && !installing {
            self.0.remove(&lease);
        }
    }

    /// Every other process of this name is gone, and what it held with it.
    pub(super) fn only(&mut self, name: &str, incarnation: Incarnation) {
        let former = |w: &Participant| w.name == name && w.incarnation != incarnation;
        let ids: Vec<LeaseId> = self.0.keys().copied().collect();
        ids.into_iter().for_each(|id| self.dropped(id, former));
    }

    /// No process has this name any more.
    pub(super) fn forget(&mut self, name: &str) {
        let ids: Vec<LeaseId> = self.0.keys().copied().collect();
        ids.into_iter()
            .for_each(|id| self.dropped(id, |w| w.name == name));
    }
}

/// What is to be installed, and where.
#[derive(Debug)]
pub struct Granted {
    pub plan: Arc<Plan>,
    /// Of the workers, in the order of [`Plan::parts`].
    pub connections: Vec<ConnectionId>,
}

impl Membership {
    /// Keeps a plan for the client on this connection, where it is still there.
    pub fn keep_plan(
        &mut self,
        now: Instant,
        owner: ConnectionId,
        id: PlanId,
        plan: Arc<Plan>,
        charge: Option<Reservation>,
    ) {
        if let Some(owner) = self.drivers.on(owner).cloned() {
            self.plans.keep(now, owner, id, plan, charge);
        }
    }

    /// Drops the plan that a client has not used for longest; false where it has none.
    pub fn drop_oldest_plan(&mut self, owner: ConnectionId) -> bool {
        let owner = self.drivers.on(owner);
        owner.is_some_and(|owner| self.plans.drop_oldest(owner))
    }

    /// A client's plan and its workers, if all of them are still those that it was made for.
    pub fn plan(
        &mut self,
        now: Instant,
        owner: ConnectionId,
        id: PlanId,
    ) -> Result<Granted, MembershipError> {
        let owner = self.drivers.on(owner);
        let plan = owner.and_then(|owner| self.plans.get(now, owner, id));
        let plan = plan.ok_or(MembershipError::NoSuchPlan)?;
        self.quarantine.admit(&plan.function)?;
        let workers = plan.participants.iter().take(plan.parts.len());
        let connections = workers.map(|p| {
            let outdated = |what| MembershipError::PlanOutdated {
                worker: p.name.clone(),
                what,
            };
            let member = self.members.get(&p.name).ok_or(outdated("was lost"))?;
            let (Some(connection), Some(offer)) = (member.connection(), member.living()) else {
                return Err(outdated("was lost"));
            };
            if offer.incarnation != p.incarnation {
                return Err(outdated("was restarted"));
            }
            if member.serving().is_none() {
                return Err(outdated("stopped to take new work"));
            }
            Ok(connection)
        });
        let connections = connections.collect::<Result<_, _>>()?;
        Ok(Granted { plan, connections })
    }

    /// A worker that registers says what it holds. Each worker speaks for itself only.
    ///
    /// What it does not hold, it dropped while it was out of reach. What ended meanwhile, it is told to drop. A lease that
    /// is not known here was granted by a former process of the coordinator, and is taken over unless its driver is
    /// there and does not hold it.
    pub(super) fn reconcile(&mut self, name: &str, offer: &Offer, held: Vec<HeldLease>) {
        let worker = Participant {
            name: name.to_owned(),
            incarnation: offer.incarnation,
            address: offer.address.clone(),
        };
        self.leases.only(name, offer.incarnation);
        let is = |w: &Participant| w.name == worker.name;
        let holds = |id: LeaseId| held.iter().any(|h| h.lease == id);
        let named: Vec<(LeaseId, LeaseState)> = self
            .leases
            .0
            .iter()
            .filter(|(_, l)| l.holders.iter().any(is))
            .map(|(id, l)| (*id, l.state))
            .collect();
        let mut ended = vec![];
        for (lease, state) in named {
            match state {
                // An install ends with the connection that it was asked for on, and says so.
                LeaseState::Installing { given_up: false } => {}
                LeaseState::Granted if holds(lease) => {}
                LeaseState::Granted => self.leases.dropped(lease, is),
                // Told again also where it says that it does not hold it: an install may still be under way there.
                LeaseState::Installing { given_up: true } | LeaseState::Ended => ended.push(lease),
            }
        }
        let text = |t: &str| t.len() <= LONGEST_TEXT && !t.chars().any(char::is_control);
        let mut taken = 0;
        for held in held {
            let (lease, fits) = (held.lease, text(&held.model) && text(&held.driver.0));
            if fits && taken < HELD && self.take_over(&worker, held) {
                taken += 1;
            } else if !ended.contains(&lease) {
                ended.push(lease);
            }
        }
        let connection = self.members.get(name).and_then(|m| m.connection());
        for lease in ended {
            self.commands.push_back(Command::Release {
                lease,
                at: connection.into_iter().collect(),
            });
        }
    }

    /// `false`: it has ended, or its driver is there and does not hold it, or another lease has this number.
    fn take_over(&mut self, worker: &Participant, held: HeldLease) -> bool {
        let (name, incarnation) = held.driver;
        let driver = Driver { name, incarnation };
        if !self.leases.0.contains_key(&held.lease) && self.drivers.denies(&driver, held.lease) {
            return false;
        }
        let entry = self.leases.0.entry(held.lease).or_insert_with(|| Lease {
            plan: None,
            model: held.model,
            driver: driver.clone(),
            holders: vec![],
            state: LeaseState::Granted,
        });
        let goes_on = entry.driver == driver && !entry.has_ended();
        if goes_on && !entry.is_held_by(&worker.name, worker.incarnation) {
            entry.holders.push(worker.clone());
        }
        goes_on
    }

    /// The worker on this connection has dropped these leases: because it was told to, or because it lost their driver.
    pub fn dropped(&mut self, connection: ConnectionId, leases: &[LeaseId]) {
        let of = |(name, m): (&String, &super::Member)| {
            let there = m.connection() == Some(connection);
            Some((name.clone(), m.living()?.incarnation)).filter(|_| there)
        };
        let Some((name, incarnation)) = self.members.iter().find_map(of) else {
            return;
        };
        let is = |w: &Participant| w.name == name && w.incarnation == incarnation;
        leases.iter().for_each(|l| self.leases.dropped(*l, is));
    }

    /// How many leases the lost holder of a name may still hold: it may be out of the coordinator's reach alone.
    pub(super) fn reserving(&self, name: &str) -> usize {
        match self.members.get(name).map(|m| &m.life) {
            Some(Life::Lost { offer, .. }) => self.leases.of_worker(name, offer.incarnation).len(),
            _ => 0,
        }
    }

    /// Begins to install a plan. Exactly one of [`Membership::installed`] and [`Membership::abandon`] follows.
    pub fn grant(
        &mut self,
        now: Instant,
        driver: ConnectionId,
        id: PlanId,
        lease: LeaseId,
    ) -> Result<Granted, MembershipError> {
        let granted = self.plan(now, driver, id)?;
        let driver = self.drivers.on(driver).cloned();
        let plan = &granted.plan;
        let workers = plan.participants.iter().take(plan.parts.len());
        for worker in workers.clone() {
            self.exposures.granted(worker, plan.function);
        }
        self.leases.0.insert(
            lease,
            Lease {
                plan: Some(id),
                model: plan.model.clone(),
                driver: driver.ok_or(MembershipError::NoSuchPlan)?,
                holders: workers.cloned().collect(),
                state: LeaseState::Installing { given_up: false },
            },
        );
        Ok(granted)
    }

    /// All workers acknowledged. An error where the driver has given the lease up meanwhile.
    pub fn installed(&mut self, lease: LeaseId) -> Result<(), MembershipError> {
        match self.leases.0.get_mut(&lease) {
            Some(entry) if !entry.has_ended() => {
                entry.state = LeaseState::Granted;
                Ok(())
            }
            _ => {
                self.abandon(lease);
                Err(MembershipError::GivenUp)
            }
        }
    }

    /// Installing failed, or whoever wanted it went away.
    pub fn abandon(&mut self, lease: LeaseId) {
        if let Some(entry) = self.leases.0.get_mut(&lease) {
            entry.state = LeaseState::Ended;
            // Also where it was given up before: a worker may have acknowledged the install after it was told so.
            if !mutant!("abandoned-install") {
                self.release_at_holders(lease);
            }
        }
    }

    /// A driver is done with its lease; one that ended already is no error.
    pub fn release(&mut self, driver: ConnectionId, lease: LeaseId) -> Result<(), MembershipError> {
        match self.leases.0.get(&lease) {
            Some(l) if self.drivers.on(driver) != Some(&l.driver) => {
                Err(MembershipError::NotDriver { lease })
            }
            _ => {
                if let Some(driver) = self.drivers.on(driver).cloned() {
                    self.drivers.released(&driver, lease);
                }
                self.end_lease(lease);
                Ok(())
            }
        }
    }

    /// A driver no longer waits for what it asked to be installed, and may not know that it was.
    pub fn give_up(&mut self, driver: ConnectionId, plan: PlanId) {
        if let Some(driver) = self.drivers.on(driver).cloned() {
            for lease in self.leases.of_plan(&driver, plan) {
                self.end_lease(lease);
            }
        }
    }

    /// Ends a lease because its driver is done or gone.
    pub(super) fn end_lease(&mut self, lease: LeaseId) {
        let Some(entry) = self.leases.0.get_mut(&lease).filter(|l| !l.has_ended()) else {
            return;
        };
        entry.state = match entry.state {
            LeaseState::Installing { .. } => LeaseState::Installing { given_up: true },
            _ => LeaseState::Ended,
        };
        self.release_at_holders(lease);
    }

    /// Tells whoever may hold a lease, and can be reached, to drop it. The others are told when they return.
    fn release_at_holders(&mut self, lease: LeaseId) {
        let Some(entry) = self.leases.0.get(&lease) else {
            return;
        };
        let there = entry.holders.iter().filter_map(|p| {
            let member = self.members.get(&p.name)?;
            let same = member.living()?.incarnation == p.incarnation;
            member.connection().filter(|_| same)
        });
        let at: Vec<ConnectionId> = there.collect();
        if !at.is_empty() {
            self.commands.push_back(Command::Release { lease, at });
        }
        // Nobody may be left to tell.
        self.leases.dropped(lease, |_| false);
    }

    /// The leases that go on.
    pub fn leases(&self) -> Vec<LeaseStatus> {
        let living = self.leases.0.iter().filter(|(_, l)| !l.has_ended());
        living
            .map(|(id, l)| LeaseStatus {
                lease: *id,
                model: l.model.clone(),
                driver: l.driver.name.clone(),
                workers: l.holders.iter().map(|w| w.name.clone()).collect(),
            })
            .collect()
    }
}
