//! The leases that some worker may hold.
//!
//! Invariant: a lease without holders is removed, unless it is being installed.

use std::collections::{BTreeMap, BTreeSet};

use convoke_common::grant::Participant;
use convoke_common::identity::TokenId;
use convoke_common::ids::{Incarnation, LeaseId, PlanId};

use super::drivers::Driver;
use crate::membership::interface::MembershipError;
use crate::plan::PartMemory;

/// Most leases that a restarted coordinator takes over from one worker, that a driver may hold, and that a returning
/// driver may name: far more than fit into a worker's memory.
pub const HELD: usize = 1024;

/// Most leases of the clients of one token.
pub const HELD_BY_TOKEN: usize = 8 * HELD;

/// The stage of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseState {
    /// Its workers are installing its programs.
    Installing {
        /// Whether the driver gave the lease up meanwhile; its install then fails.
        given_up: bool,
    },
    /// All of its workers have acknowledged the install.
    Granted,
    /// Its workers are being told to drop it.
    Ended,
}

/// A lease that some worker may hold.
#[derive(Debug)]
pub struct Lease {
    /// The installed plan; `None` for a lease of a former coordinator process.
    pub plan: Option<PlanId>,
    pub model: String,
    pub driver: Driver,
    /// The workers that may hold the lease: those that it was granted at, except those that confirmed that they dropped
    /// it and those that have another incarnation by now.
    pub holders: Vec<Participant>,
    pub state: LeaseState,
    /// The client's token, and the bytes that each worker needs for its part, in the order of the plan; `None` for a
    /// lease of a former coordinator process.
    pub size: Option<(TokenId, Vec<(String, PartMemory)>)>,
    /// How many installs were over when this one was, or when the lease was taken over; `None` until then.
    pub since: Option<u64>,
}

/// The memory of one worker that a lease, or a plan that is about to be installed, takes.
#[derive(Debug)]
pub struct Charge<'a> {
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
    /// Returns whether the driver has no use of the lease any more.
    pub fn has_ended(&self) -> bool {
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

    /// Returns whether an incarnation of a worker may hold the lease.
    pub fn is_held_by(&self, name: &str, incarnation: Incarnation) -> bool {
        let is = |w: &Participant| w.name == name && w.incarnation == incarnation;
        self.holders.iter().any(is)
    }
}

impl Leases {
    /// Returns the number of leases, including ended ones that some worker has yet to confirm.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns a lease.
    pub fn get(&self, lease: LeaseId) -> Option<&Lease> {
        self.0.get(&lease)
    }

    /// Returns a lease, to change it.
    pub fn get_mut(&mut self, lease: LeaseId) -> Option<&mut Lease> {
        self.0.get_mut(&lease)
    }

    /// Adds a lease.
    pub fn insert(&mut self, id: LeaseId, lease: Lease) {
        self.0.insert(id, lease);
    }

    /// Returns a lease, which is added if it is not known.
    pub fn get_or_insert(&mut self, id: LeaseId, new: impl FnOnce() -> Lease) -> &mut Lease {
        self.0.entry(id).or_insert_with(new)
    }

    /// Returns all leases by their ids, including ended ones that some worker has yet to confirm.
    pub fn each(&self) -> impl Iterator<Item = (LeaseId, &Lease)> {
        self.0.iter().map(|(id, lease)| (*id, lease))
    }

    /// Returns the number of leases that have not ended.
    pub fn living(&self) -> usize {
        self.0.values().filter(|l| !l.has_ended()).count()
    }

    /// Returns the error of one lease more, if a driver or its token has as many as it may. Those that have ended count
    /// until their workers have dropped them.
    pub fn too_many(&self, driver: &Driver, token: &TokenId) -> Option<MembershipError> {
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
    pub fn of_plan(&self, driver: &Driver, plan: PlanId) -> Vec<LeaseId> {
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
    pub fn charges(
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
    pub fn size_at(&self, lease: LeaseId, worker: &str) -> Option<(TokenId, [u64; 2])> {
        let (token, needed) = self.0.get(&lease)?.size_at(worker)?;
        Some((token.clone(), [needed.host.all, needed.device.all]))
    }

    /// Removes the matching workers from a lease's holders. A lease without holders is removed, unless it is being
    /// installed.
    pub fn dropped(&mut self, lease: LeaseId, is: impl Fn(&Participant) -> bool) {
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
    pub fn only(&mut self, name: &str, incarnation: Incarnation) {
        let former = |w: &Participant| w.name == name && w.incarnation != incarnation;
        let ids: Vec<LeaseId> = self.0.keys().copied().collect();
        ids.into_iter().for_each(|id| self.dropped(id, former));
    }

    /// Notes that no process has this name any more.
    pub fn forget(&mut self, name: &str) {
        let ids: Vec<LeaseId> = self.0.keys().copied().collect();
        ids.into_iter()
            .for_each(|id| self.dropped(id, |w| w.name == name));
    }
}
