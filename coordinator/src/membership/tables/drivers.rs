//! The drivers that are connected, or may still return.
//!
//! Invariant: a driver has at most one connection, and a connection belongs to at most one driver.

use std::collections::{BTreeMap, BTreeSet};

use convoke_common::detection::timer::{Timer, TimerKind};
use convoke_common::ids::{Incarnation, LeaseId};
use serde::{Deserialize, Serialize};

use crate::membership::interface::{ConnectionId, Moment};

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

    /// Notes that a driver is connected and holds these leases.
    pub fn arrived(&mut self, driver: Driver, connection: ConnectionId, held: BTreeSet<LeaseId>) {
        let here = Presence::Here { connection, held };
        self.0.insert(driver, here);
    }

    /// Notes that a driver lost its connection, and may return until then.
    pub fn departed(&mut self, driver: &Driver, until: Moment) {
        if let Some(presence) = self.0.get_mut(driver) {
            *presence = Presence::Away {
                until: Timer::arm(TimerKind::Return, until),
            };
        }
    }

    /// Drops a driver.
    pub fn forget(&mut self, driver: &Driver) {
        self.0.remove(driver);
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
