//! Clients as drivers: the connection of each, and how long a client without one may take to return.
//!
//! Invariants
//! 1. The possessions of a driver outlive its connection: its plans until it was away for [`RETURN_BOUND`], its leases
//!    until it says goodbye, or its workers say that they lost it.
//! 2. A connected driver has the leases that it named when it connected, and those granted since. Any other lease that
//!    a worker reports as this driver's ends.

use std::collections::BTreeSet;

use convoke_common::ids::LeaseId;
use convoke_common::mutant;
use convoke_common::rpc::RETURN_BOUND;

use super::Membership;
use super::interface::{ConnectionId, MembershipError, Moment};
use super::tables::drivers::Driver;
use super::tables::leases::HELD;

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
        self.drivers.arrived(driver, connection, held);
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
        if let Some(driver) = driver {
            let times = if mutant!("away-for-long") { 5 } else { 1 };
            self.drivers.departed(&driver, now + RETURN_BOUND * times);
        }
    }

    /// Drops everything that is kept for a driver, except its leases.
    pub(super) fn forget_driver(&mut self, driver: &Driver) {
        self.drivers.forget(driver);
        self.plans.forget_owner(driver);
    }
}
