//! Leases: from the grant until no worker holds them any more.
//!
//! ```text
//! Installing --all workers acknowledged--> Granted --its driver is done--> Ended --every worker confirmed--> gone
//!      '------the install failed, or its driver gave it up------------------^
//! ```
//!
//! Invariants
//! 1. A lease does not end because the coordinator lost sight of a worker or of the driver. It ends when its driver
//!    says so, or when each of its workers has dropped it or is known to be another incarnation.
//! 2. An ended lease is kept until each of its workers has confirmed that it dropped it. A worker that was out of reach
//!    is informed when it returns.

use convoke_common::grant::Participant;
use convoke_common::ids::{LeaseId, PlanId};
use convoke_common::mutant;
use convoke_common::rpc::{HeldLease, LeaseStatus};

use super::Membership;
use super::interface::{Command, ConnectionId, MembershipError, Moment};
use super::tables::drivers::Driver;
use super::tables::leases::{HELD, Lease, LeaseState};
use super::tables::member::{Life, Member};
use super::tables::offer::{LONGEST_TEXT, Offer};
use super::tables::plans::InstallOrder;

impl Membership {
    /// Compares the leases that a registering worker holds with those recorded for it.
    ///
    /// Recorded leases that the worker does not hold are removed from it: it dropped them while it was out of reach. It
    /// is told to drop leases that ended meanwhile. A lease that is unknown here was granted by a former process of the
    /// coordinator, and is taken over unless its driver is connected and does not hold it.
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
            .each()
            .filter(|(_, l)| l.holders.iter().any(is))
            .map(|(id, l)| (id, l.state))
            .collect();
        let mut ended = vec![];
        for (lease, state) in named {
            match state {
                // The worker may not hold the lease yet. An install that lost its connection fails, and ends the lease
                // itself.
                LeaseState::Installing { given_up: false } => {}
                LeaseState::Granted if holds(lease) => {}
                LeaseState::Granted => self.leases.dropped(lease, is),
                // The worker is told even if it does not hold the lease: an install may still be under way there.
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

    /// Adds a worker to the holders of a lease that it reports. Returns `false`, and adds nothing, if the lease has
    /// ended, if its driver is connected and does not hold it, or if another driver's lease has this number.
    fn take_over(&mut self, worker: &Participant, held: HeldLease) -> bool {
        let (name, incarnation) = held.driver;
        let driver = Driver { name, incarnation };
        if self.leases.get(held.lease).is_none() && self.drivers.denies(&driver, held.lease) {
            return false;
        }
        let entry = self.leases.get_or_insert(held.lease, || Lease {
            plan: None,
            model: held.model,
            driver: driver.clone(),
            holders: vec![],
            state: LeaseState::Granted,
            size: None,
            since: Some(self.installs),
        });
        let goes_on = entry.driver == driver && !entry.has_ended();
        if goes_on && !entry.is_held_by(&worker.name, worker.incarnation) {
            entry.holders.push(worker.clone());
        }
        goes_on
    }

    /// Notes that the worker on this connection dropped these leases, either on request or because it lost their
    /// driver.
    pub(super) fn dropped(&mut self, connection: ConnectionId, leases: &[LeaseId]) {
        let of = |(name, m): (&String, &Member)| {
            let there = m.connection() == Some(connection);
            Some((name.clone(), m.living()?.incarnation)).filter(|_| there)
        };
        let Some((name, incarnation)) = self.members.iter().find_map(of) else {
            return;
        };
        let is = |w: &Participant| w.name == name && w.incarnation == incarnation;
        let granted = |l: &LeaseId| self.leases.get(*l).is_some_and(|l| l.since.is_some());
        let granted = leases.iter().any(granted);
        leases.iter().for_each(|l| self.leases.dropped(*l, is));
        // A lease whose install failed had nothing that others lacked.
        self.memory_freed(Some(&*name).filter(|_| granted));
    }

    /// Returns how many leases the lost holder of a name may still hold: other members may still reach it.
    pub(super) fn reserving(&self, name: &str) -> usize {
        match self.members.get(name).map(|m| &m.life) {
            Some(Life::Lost { offer, .. }) => self.leases.of_worker(name, offer.incarnation).len(),
            _ => 0,
        }
    }

    /// Begins to install a plan. The caller then calls exactly one of [`Membership::installed`] and
    /// [`Membership::abandon`]. Fails if a node of the plan is quarantined by now, if the driver or its token has as many
    /// leases as it may, or as [`Membership::plan`] does.
    pub(super) fn grant(
        &mut self,
        now: Moment,
        driver: ConnectionId,
        id: PlanId,
        lease: LeaseId,
    ) -> Result<InstallOrder, MembershipError> {
        let granted = self.plan(now, driver, id)?;
        if !mutant!("quarantine-unheeded-on-install") {
            self.quarantine.admit(&granted.plan.function)?;
        }
        let driver = self.drivers.on(driver).cloned();
        let driver = driver.ok_or(MembershipError::NoSuchPlan)?;
        let plan = &granted.plan;
        if let Some(error) = self.leases.too_many(&driver, &plan.token) {
            self.plans.decided(id);
            return Err(error);
        }
        let workers = plan.participants.iter().take(plan.parts.len());
        for worker in workers.clone() {
            self.exposures.granted(worker, plan.function);
        }
        let names = workers.clone().map(|worker| worker.name.clone());
        let sizes = names.zip(plan.parts.iter().map(|part| part.needed.clone()));
        self.leases.insert(
            lease,
            Lease {
                plan: Some(id),
                model: plan.model.clone(),
                driver,
                holders: workers.cloned().collect(),
                state: LeaseState::Installing { given_up: false },
                size: Some((plan.token.clone(), sizes.collect())),
                since: None,
            },
        );
        self.plans.decided(id);
        Ok(granted)
    }

    /// Notes that all workers acknowledged the install. Fails if the driver gave the lease up meanwhile.
    pub(super) fn installed(&mut self, lease: LeaseId) -> Result<(), MembershipError> {
        match self.leases.get_mut(lease) {
            Some(entry) if !entry.has_ended() || mutant!("given-up-unheeded") => {
                entry.state = LeaseState::Granted;
                self.installs += 1;
                entry.since = Some(self.installs);
                Ok(())
            }
            _ => {
                self.abandon(lease);
                Err(MembershipError::GivenUp)
            }
        }
    }

    /// Ends a lease whose install failed, or whose caller went away.
    pub(super) fn abandon(&mut self, lease: LeaseId) {
        if let Some(entry) = self.leases.get_mut(lease) {
            entry.state = LeaseState::Ended;
            // This is done even if the lease was given up before: a worker may have acknowledged the install after it
            // was told to drop the lease.
            self.release_at_holders(lease);
        }
    }

    /// Releases a lease for its driver. A lease that has already ended is no error.
    pub(super) fn release(
        &mut self,
        driver: ConnectionId,
        lease: LeaseId,
    ) -> Result<(), MembershipError> {
        match self.leases.get(lease) {
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

    /// Ends the leases of a plan whose driver stopped waiting for its install, and may not know whether it was granted.
    pub(super) fn give_up(&mut self, driver: ConnectionId, plan: PlanId) {
        if let Some(driver) = self.drivers.on(driver).cloned() {
            for lease in self.leases.of_plan(&driver, plan) {
                self.end_lease(lease);
            }
        }
    }

    /// Ends a lease whose driver released it or is gone.
    pub(super) fn end_lease(&mut self, lease: LeaseId) {
        let Some(entry) = self.leases.get_mut(lease).filter(|l| !l.has_ended()) else {
            return;
        };
        entry.state = match entry.state {
            LeaseState::Installing { .. } => LeaseState::Installing { given_up: true },
            _ => LeaseState::Ended,
        };
        self.release_at_holders(lease);
        self.memory_freed(None);
    }

    /// Tells the connected workers that may hold a lease to drop it. The others are told when they return.
    fn release_at_holders(&mut self, lease: LeaseId) {
        let Some(entry) = self.leases.get(lease) else {
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
        // If no holder is left, this removes the lease.
        self.leases.dropped(lease, |_| false);
    }

    /// Returns the status of the leases that have not ended.
    pub fn leases(&self) -> Vec<LeaseStatus> {
        let living = self.leases.each().filter(|(_, l)| !l.has_ended());
        living
            .map(|(id, l)| LeaseStatus {
                lease: id,
                model: l.model.clone(),
                driver: l.driver.name.clone(),
                workers: l.holders.iter().map(|w| w.name.clone()).collect(),
            })
            .collect()
    }
}
