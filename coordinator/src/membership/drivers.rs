//! Clients as drivers: which connection each speaks on, and how long one that is away may take to return.
//!
//! Invariants
//! 1. A driver speaks on one connection at most, and a connection is one driver's at most.
//! 2. What a driver owns outlives its connection: its plans until it was away for [`RETURN_BOUND`], its leases until it
//!    says goodbye, or its workers say that they lost it.
//! 3. A driver that is there has the leases that it said it has when it came, and those granted since; any other that
//!    is said to be its own ends.

use std::collections::{BTreeMap, BTreeSet};

use convoke_common::ids::{Incarnation, LeaseId};
use convoke_common::mutant;
use convoke_common::rpc::RETURN_BOUND;
use tokio::time::Instant;

use super::leases::HELD;
use super::{ConnectionId, Membership, MembershipError};

/// A client process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Driver {
    /// From its certificate.
    pub name: String,
    pub incarnation: Incarnation,
}

#[derive(Debug, PartialEq, Eq)]
enum Presence {
    Here {
        connection: ConnectionId,
        /// What it held when it came, and has not released since.
        held: BTreeSet<LeaseId>,
    },
    Away {
        until: Instant,
    },
}

/// The drivers that are there, or may still return.
#[derive(Debug, Default)]
pub struct Drivers(BTreeMap<Driver, Presence>);

impl Drivers {
    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The driver that speaks on a connection.
    pub fn on(&self, connection: ConnectionId) -> Option<&Driver> {
        let is =
            |p: &Presence| matches!(p, Presence::Here { connection: c, .. } if *c == connection);
        self.0.iter().find(|(_, p)| is(p)).map(|(d, _)| d)
    }

    /// Whether a driver is there and does not hold a lease that somebody says it has.
    pub fn denies(&self, driver: &Driver, lease: LeaseId) -> bool {
        match self.0.get(driver) {
            Some(Presence::Here { held, .. }) => !held.contains(&lease),
            _ => false,
        }
    }

    /// A driver is done with a lease.
    pub fn released(&mut self, driver: &Driver, lease: LeaseId) {
        if let Some(Presence::Here { held, .. }) = self.0.get_mut(driver) {
            held.remove(&lease);
        }
    }

    /// When the next one has been away for too long.
    pub fn next_expiry(&self) -> Option<Instant> {
        let until = |p: &Presence| match p {
            Presence::Here { .. } => None,
            Presence::Away { until } => Some(*until),
        };
        self.0.values().filter_map(until).min()
    }

    /// Those that were away for too long.
    pub fn overdue(&self, now: Instant) -> Vec<Driver> {
        let over = |p: &Presence| matches!(p, Presence::Away { until } if *until <= now);
        let overdue = self.0.iter().filter(|(_, p)| over(p));
        overdue.map(|(d, _)| d.clone()).collect()
    }
}

impl Membership {
    /// A client speaks on this connection, for the first time or again, and holds these leases; beyond `HELD` of them
    /// none.
    pub fn resume(
        &mut self,
        connection: ConnectionId,
        driver: Driver,
        held: Vec<LeaseId>,
    ) -> Result<(), MembershipError> {
        if self.drivers.on(connection).is_some_and(|d| *d != driver) {
            return Err(MembershipError::SecondDriver { name: driver.name });
        }
        let held: BTreeSet<LeaseId> = held.into_iter().take(HELD).collect();
        for lease in self.leases.of_driver(&driver) {
            if !held.contains(&lease) {
                self.end_lease(lease);
            }
        }
        let here = Presence::Here { connection, held };
        self.drivers.0.insert(driver, here);
        Ok(())
    }

    /// A client that is to speak on this connection does; one that has not said so yet holds nothing.
    pub fn speaks(
        &mut self,
        connection: ConnectionId,
        driver: Driver,
    ) -> Result<(), MembershipError> {
        match self.drivers.on(connection) {
            Some(here) if *here == driver => Ok(()),
            _ => self.resume(connection, driver, vec![]),
        }
    }

    /// A member ended its connection itself. A client is done, and so is all that it owns; a worker holds nothing more.
    pub fn left(&mut self, now: Instant, connection: ConnectionId) {
        if let Some(driver) = self.drivers.on(connection).cloned() {
            self.forget_driver(&driver);
            for lease in self.leases.of_driver(&driver) {
                self.end_lease(lease);
            }
        }
        let name = self.names_of(|m| m.connection() == Some(connection)).next();
        name.iter().for_each(|name| self.leases.forget(name));
        self.closed(now, connection);
    }

    /// A connection broke: the client on it may return.
    pub(super) fn driver_away(&mut self, now: Instant, connection: ConnectionId) {
        let driver = self.drivers.on(connection).cloned();
        if let Some(driver) = driver.as_ref().filter(|_| mutant!("away-is-gone")) {
            let leases = self.leases.of_driver(driver);
            leases.into_iter().for_each(|lease| self.end_lease(lease));
        }
        let presence = driver.and_then(|d| self.drivers.0.get_mut(&d));
        if let Some(presence) = presence {
            *presence = Presence::Away {
                until: now + RETURN_BOUND,
            };
        }
    }

    /// Drops what is kept for a driver besides its leases.
    pub(super) fn forget_driver(&mut self, driver: &Driver) {
        self.drivers.0.remove(driver);
        self.plans.forget_owner(driver);
    }
}
