//! Clients as drivers: the connection of each, and how long a client without one may take to return.
//!
//! Invariants
//! 1. A driver has at most one connection, and a connection belongs to at most one driver.
//! 2. The possessions of a driver outlive its connection: its plans until it was away for [`RETURN_BOUND`], its leases
//!    until it says goodbye, or its workers say that they lost it.
//! 3. A connected driver has the leases that it named when it connected, and those granted since. Any other lease that
//!    a worker reports as this driver's ends.

use std::collections::{BTreeMap, BTreeSet};

use convoke_common::detection::timer::{Timer, TimerKind};
use convoke_common::ids::{Incarnation, LeaseId};
use convoke_common::mutant;
use convoke_common::rpc::RETURN_BOUND;
use serde::{Deserialize, Serialize};

use super::leases::HELD;
use super::{ConnectionId, Membership, MembershipError, Moment};

/// One life of a client process, as the driver of its leases.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Driver {
    /// The name in the client's certificate.
    pub name: String,
    pub incarnation: Incarnation,
}

#[derive(Debug, PartialEq, Eq)]
enum Presence {
    Here {
        connection: ConnectionId,
        /// The leases that it named when it connected, less those that it released since.
        held: BTreeSet<LeaseId>,
    },
    Away {
        until: Timer<Moment>,
    },
}

/// The drivers that are connected, or may still return.
#[derive(Debug, Default)]
pub struct Drivers(BTreeMap<Driver, Presence>);

impl Drivers {
    /// Returns the number of drivers, connected or away.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the driver of a connection.
    pub fn on(&self, connection: ConnectionId) -> Option<&Driver> {
        let is =
            |p: &Presence| matches!(p, Presence::Here { connection: c, .. } if *c == connection);
        self.0.iter().find(|(_, p)| is(p)).map(|(d, _)| d)
    }

    /// Returns whether a driver is connected and does not hold this lease, which a worker reports as the driver's.
    pub fn denies(&self, driver: &Driver, lease: LeaseId) -> bool {
        match self.0.get(driver) {
            Some(Presence::Here { held, .. }) => !held.contains(&lease),
            _ => false,
        }
    }

    /// Notes that a driver released a lease.
    pub fn released(&mut self, driver: &Driver, lease: LeaseId) {
        if let Some(Presence::Here { held, .. }) = self.0.get_mut(driver) {
            held.remove(&lease);
        }
    }

    /// Returns when the next driver will have been away for too long.
    pub fn next_expiry(&self) -> Option<Moment> {
        let until = |p: &Presence| match p {
            Presence::Here { .. } => None,
            Presence::Away { until } => Some(until.due()),
        };
        self.0.values().filter_map(until).min()
    }

    /// Returns the drivers that have been away for too long.
    pub fn overdue(&self, now: Moment) -> Vec<Driver> {
        let over = |p: &Presence| matches!(p, Presence::Away { until } if until.due() <= now);
        let overdue = self.0.iter().filter(|(_, p)| over(p));
        overdue.map(|(d, _)| d.clone()).collect()
    }
}

impl Membership {
    /// Notes that a client is connected, for the first time or again, and holds these leases, of which at most `HELD`
    /// count. Its other leases end.
    pub(super) fn resume(
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

    /// Makes a client the driver of this connection. A client that did not name its leases before holds none.
    pub(super) fn speaks(
        &mut self,
        connection: ConnectionId,
        driver: Driver,
    ) -> Result<(), MembershipError> {
        match self.drivers.on(connection) {
            Some(here) if *here == driver => Ok(()),
            _ => self.resume(connection, driver, vec![]),
        }
    }

    /// Handles a member that closed its connection itself. All leases and plans of a client end; a worker holds no
    /// lease any more.
    pub(super) fn left(&mut self, now: Moment, connection: ConnectionId) {
        if let Some(driver) = self.drivers.on(connection).cloned() {
            self.forget_driver(&driver);
            for lease in self.leases.of_driver(&driver) {
                self.end_lease(lease);
            }
        }
        let name = self.names_of(|m| m.connection() == Some(connection)).next();
        if let Some(name) = name {
            self.leases.forget(&name);
            self.memory_freed(None);
        }
        self.closed(now, connection);
    }

    /// Marks the client of a broken connection as away: it may return.
    pub(super) fn driver_away(&mut self, now: Moment, connection: ConnectionId) {
        let driver = self.drivers.on(connection).cloned();
        if let Some(driver) = driver.as_ref().filter(|_| mutant!("away-is-gone")) {
            let leases = self.leases.of_driver(driver);
            leases.into_iter().for_each(|lease| self.end_lease(lease));
        }
        let presence = driver.and_then(|d| self.drivers.0.get_mut(&d));
        if let Some(presence) = presence {
            let times = if mutant!("away-for-long") { 5 } else { 1 };
            *presence = Presence::Away {
                until: Timer::arm(TimerKind::Return, now + RETURN_BOUND * times),
            };
        }
    }

    /// Drops everything that is kept for a driver, except its leases.
    pub(super) fn forget_driver(&mut self, driver: &Driver) {
        self.drivers.0.remove(driver);
        self.plans.forget_owner(driver);
    }
}
