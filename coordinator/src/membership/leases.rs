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

use std::collections::{BTreeMap, BTreeSet};

use convoke_common::grant::Participant;
use convoke_common::identity::TokenId;
use convoke_common::ids::{Incarnation, LeaseId, PlanId};
use convoke_common::mutant;
use convoke_common::rpc::{HeldLease, LeaseStatus};

use super::member::{LONGEST_TEXT, Life};
use super::{
    Command, ConnectionId, Driver, InstallOrder, Membership, MembershipError, Moment, Offer,
};
use crate::plan::PartMemory;

/// Most leases that a restarted coordinator takes over from one worker, that a driver may hold, and that a returning
/// driver may name: far more than fit into a worker's memory.
pub(super) const HELD: usize = 1024;

/// Most leases of the clients of one token.
pub(super) const HELD_BY_TOKEN: usize = 8 * HELD;

/// The stage of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaseState {
    /// Its workers are installing its programs.
    Installing {
        /// Whether the driver gave the lease up meanwhile; [`Membership::installed`] then fails.
        given_up: bool,
    },
    /// All of its workers have acknowledged the install.
    Granted,
    /// Its workers are being told to drop it.
    Ended,
}

#[derive(Debug)]
struct Lease {
    /// The installed plan; `None` for a lease of a former coordinator process.
    plan: Option<PlanId>,
    model: String,
    driver: Driver,
    /// The workers that may hold the lease: those that it was granted at, except those that confirmed that they dropped
    /// it and those that have another incarnation by now.
    holders: Vec<Participant>,
    state: LeaseState,
    /// The client's token, and the bytes that each worker needs for its part, in the order of the plan; `None` for a
    /// lease of a former coordinator process.
    size: Option<(TokenId, Vec<(String, PartMemory)>)>,
    /// The value of `Membership::installs` once the install was over; `None` until then.
    since: Option<u64>,
}

/// The memory of one worker that a lease, or a plan that is about to be installed, takes.
#[derive(Debug)]
pub(super) struct Charge<'a> {
    /// The client's token and the bytes as planned, if that is known.
    pub size: Option<(&'a TokenId, &'a PartMemory)>,
    /// The client.
    pub member: &'a str,
    /// The number of the first report of the worker that covers it; `None` if none does yet.
    pub since: Option<u64>,
}

/// All leases that some worker may hold.
#[derive(Debug, Default)]
pub struct Leases(BTreeMap<LeaseId, Lease>);

impl Lease {
    fn has_ended(&self) -> bool {
        !matches!(
            self.state,
            LeaseState::Granted | LeaseState::Installing { given_up: false }
        )
    }

    fn size_at(&self, worker: &str) -> Option<(&TokenId, &PartMemory)> {
        let (token, sizes) = self.size.as_ref()?;
        let (_, needed) = sizes.iter().find(|(name, _)| name == worker)?;
        Some((token, needed))
    }

    fn is_held_by(&self, name: &str, incarnation: Incarnation) -> bool {
        let is = |w: &Participant| w.name == name && w.incarnation == incarnation;
        self.holders.iter().any(is)
    }
}

impl Leases {
    /// Returns the number of leases, including ended ones that some worker has yet to confirm.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of leases that have not ended.
    pub fn living(&self) -> usize {
        self.0.values().filter(|l| !l.has_ended()).count()
    }

    /// The error of one lease more, if a driver or its token has as many as it may. Those that have ended count until their
    /// workers have dropped them.
    fn too_many(&self, driver: &Driver, token: &TokenId) -> Option<MembershipError> {
        let count = |is: &dyn Fn(&Lease) -> bool| self.0.values().filter(|l| is(l)).count();
        let of_token = |l: &Lease| l.size.as_ref().is_some_and(|(of, _)| of == token);
        let error = |who, most| Some(MembershipError::TooManyLeases { who, most });
        if count(&|l| l.driver == *driver) >= HELD {
            return error(format!("client '{}'", driver.name), HELD);
        }
        if count(&of_token) >= HELD_BY_TOKEN {
            return error(format!("the clients of token '{token}'"), HELD_BY_TOKEN);
        }
        None
    }

    fn of(&self, wanted: impl Fn(&Lease) -> bool) -> Vec<LeaseId> {
        let found = self
            .0
            .iter()
            .filter(|(_, lease)| !lease.has_ended() && wanted(lease));
        found.map(|(id, _)| *id).collect()
    }

    /// Returns the leases of a driver.
    pub fn of_driver(&self, driver: &Driver) -> Vec<LeaseId> {
        self.of(|lease| lease.driver == *driver)
    }

    /// Returns the leases of a driver's plan.
    fn of_plan(&self, driver: &Driver, plan: PlanId) -> Vec<LeaseId> {
        self.of(|lease| lease.driver == *driver && lease.plan == Some(plan))
    }

    /// Returns the leases that one incarnation of a worker may hold.
    pub fn of_worker(&self, name: &str, incarnation: Incarnation) -> Vec<LeaseId> {
        self.of(|lease| lease.is_held_by(name, incarnation))
    }

    /// Returns the workers that may hold a lease that has not ended.
    pub fn holders(&self) -> BTreeSet<(&str, Incarnation)> {
        let living = self.0.values().filter(|lease| !lease.has_ended());
        let holders = living.flat_map(|lease| &lease.holders);
        holders.map(|w| (w.name.as_str(), w.incarnation)).collect()
    }

    /// Returns what the leases that have not ended take of a worker's memory.
    pub(super) fn charges(
        &self,
        name: &str,
        incarnation: Incarnation,
    ) -> impl Iterator<Item = Charge<'_>> {
        let living = self.0.values().filter(|lease| !lease.has_ended());
        let held = living.filter(move |lease| lease.is_held_by(name, incarnation));
        held.map(move |lease| Charge {
            size: lease.size_at(name),
            member: &lease.driver.name,
            since: lease.since,
        })
    }

    /// Returns the token of a lease's client, and the bytes that a worker needs for its part of the lease: of its host,
    /// and of its device.
    pub(super) fn size_at(&self, lease: LeaseId, worker: &str) -> Option<(TokenId, [u64; 2])> {
        let (token, needed) = self.0.get(&lease)?.size_at(worker)?;
        Some((token.clone(), [needed.host.all, needed.device.all]))
    }

    /// Removes the matching workers from a lease's holders. A lease without holders is removed, unless it is being
    /// installed.
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

    /// Notes that all other incarnations of this name are gone, and with them the leases that they held.
    pub(super) fn only(&mut self, name: &str, incarnation: Incarnation) {
        let former = |w: &Participant| w.name == name && w.incarnation != incarnation;
        let ids: Vec<LeaseId> = self.0.keys().copied().collect();
        ids.into_iter().for_each(|id| self.dropped(id, former));
    }

    /// Notes that no process has this name any more.
    pub(super) fn forget(&mut self, name: &str) {
        let ids: Vec<LeaseId> = self.0.keys().copied().collect();
        ids.into_iter()
            .for_each(|id| self.dropped(id, |w| w.name == name));
    }
}

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
            .0
            .iter()
            .filter(|(_, l)| l.holders.iter().any(is))
            .map(|(id, l)| (*id, l.state))
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
        if !self.leases.0.contains_key(&held.lease) && self.drivers.denies(&driver, held.lease) {
            return false;
        }
        let entry = self.leases.0.entry(held.lease).or_insert_with(|| Lease {
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
        let of = |(name, m): (&String, &super::Member)| {
            let there = m.connection() == Some(connection);
            Some((name.clone(), m.living()?.incarnation)).filter(|_| there)
        };
        let Some((name, incarnation)) = self.members.iter().find_map(of) else {
            return;
        };
        let is = |w: &Participant| w.name == name && w.incarnation == incarnation;
        let granted = |l: &LeaseId| self.leases.0.get(l).is_some_and(|l| l.since.is_some());
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
        self.leases.0.insert(
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
        match self.leases.0.get_mut(&lease) {
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
        if let Some(entry) = self.leases.0.get_mut(&lease) {
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
        let Some(entry) = self.leases.0.get_mut(&lease).filter(|l| !l.has_ended()) else {
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
        // If no holder is left, this removes the lease.
        self.leases.dropped(lease, |_| false);
    }

    /// Returns the status of the leases that have not ended.
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
