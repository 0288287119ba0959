//! Clients as drivers: which connection each speaks on, and how long one that is away may take to return.
//!
//! Invariants
//! 1. A driver speaks on one connection at most, and a connection is one driver's at most.
//! 2. What a driver owns outlives its connection: until the driver says goodbye, or was away for [`RETURN_BOUND`].

use std::collections::BTreeMap;
use std::time::Duration;

use convoke_common::ids::Incarnation;
use convoke_common::rpc::RETURN_BOUND;
use tokio::time::Instant;

use super::{ConnectionId, Membership, MembershipError};

/// How long drivers have to find a coordinator that was restarted: they dial it from time to time only.
const AFTER_RESTART: Duration = RETURN_BOUND.saturating_mul(10);

/// A client process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Driver {
    /// From its certificate.
    pub name: String,
    pub incarnation: Incarnation,
}

#[derive(Debug, PartialEq, Eq)]
enum Presence {
    Here(ConnectionId),
    Away { until: Instant },
}

/// The drivers that are there, or may still return.
#[derive(Debug, Default)]
pub struct Drivers(BTreeMap<Driver, Presence>);

impl Drivers {
    /// The driver that speaks on a connection.
    pub fn on(&self, connection: ConnectionId) -> Option<&Driver> {
        let here = Presence::Here(connection);
        self.0.iter().find(|(_, p)| **p == here).map(|(d, _)| d)
    }

    /// A lease of a driver is known of before the driver itself: the coordinator was restarted.
    pub fn expect(&mut self, driver: Driver, now: Instant) {
        let until = now + AFTER_RESTART;
        self.0.entry(driver).or_insert(Presence::Away { until });
    }

    /// When the next one has been away for too long.
    pub fn next_expiry(&self) -> Option<Instant> {
        let until = |p: &Presence| match p {
            Presence::Here(_) => None,
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
    /// A client speaks on this connection, for the first time or again.
    pub fn resume(
        &mut self,
        connection: ConnectionId,
        driver: Driver,
    ) -> Result<(), MembershipError> {
        if self.drivers.on(connection).is_some_and(|d| *d != driver) {
            return Err(MembershipError::SecondDriver { name: driver.name });
        }
        self.drivers.0.insert(driver, Presence::Here(connection));
        Ok(())
    }

    /// A client ended its connection itself: it is done, and so is all that it owns.
    pub fn left(&mut self, now: Instant, connection: ConnectionId) {
        if let Some(driver) = self.drivers.on(connection).cloned() {
            self.end_driver(&driver);
        }
        self.closed(now, connection);
    }

    /// A connection broke: the client on it may return.
    pub(super) fn driver_away(&mut self, now: Instant, connection: ConnectionId) {
        let driver = self.drivers.on(connection).cloned();
        let presence = driver.and_then(|d| self.drivers.0.get_mut(&d));
        if let Some(presence) = presence {
            *presence = Presence::Away {
                until: now + RETURN_BOUND,
            };
        }
    }

    /// Ends what a driver owns.
    pub(super) fn end_driver(&mut self, driver: &Driver) {
        self.drivers.0.remove(driver);
        self.plans.forget_owner(driver);
        for lease in self.leases.of_driver(driver) {
            self.end_lease(lease, None);
        }
    }
}
