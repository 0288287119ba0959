//! Plans that wait to be installed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use convoke_common::grant::Participant;
use convoke_common::ids::PlanId;
use convoke_common::memory::Reservation;
use convoke_common::mutant;
use convoke_graph::ids::FunctionId;
use convoke_graph::program::{Axes, Program};
use tokio::time::Instant;

use super::Driver;

/// Most plans that are kept. One more replaces the plan that has been idle for the longest time: one of the same client
/// if it has any. A plan holds its programs, up to some MiB of nodes.
const PLANS: usize = 64;

/// How long a plan is kept after its last use.
const IDLE: Duration = Duration::from_secs(600);

/// The result of partitioning, as it is kept until it is installed.
#[derive(Debug, PartialEq)]
pub struct Plan {
    pub model: String,
    /// The identity of the function that the client sent.
    pub function: FunctionId,
    /// The program of each worker, with the bytes that the tensors of one step need there.
    pub parts: Vec<(Arc<Program>, u64)>,
    /// The workers in the order of `parts`, then the driver.
    pub participants: Vec<Participant>,
    pub axes: Axes,
    pub in_flight: u32,
}

#[derive(Debug)]
struct StoredPlan {
    owner: Driver,
    used: Instant,
    plan: Arc<Plan>,
    /// The reservation that charges the plan's memory to its client.
    _charge: Option<Reservation>,
}

/// The plans of all clients.
#[derive(Debug, Default)]
pub struct Plans(BTreeMap<PlanId, StoredPlan>);

impl Plans {
    /// Returns the number of plans.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Drops the client's plan that has been idle for the longest time. Returns `false` if the client has none.
    pub fn drop_oldest(&mut self, owner: &Driver) -> bool {
        let own = self.0.iter().filter(|(_, kept)| kept.owner == *owner);
        let oldest = own.min_by_key(|(_, kept)| kept.used).map(|(id, _)| *id);
        oldest.and_then(|id| self.0.remove(&id)).is_some()
    }

    /// Keeps a plan for a client, with the reservation of its memory.
    pub fn keep(
        &mut self,
        now: Instant,
        owner: Driver,
        id: PlanId,
        plan: Arc<Plan>,
        charge: Option<Reservation>,
    ) {
        self.expire(now);
        if self.0.len() >= PLANS {
            let oldest = self
                .0
                .iter()
                .min_by_key(|(_, kept)| (kept.owner != owner, kept.used))
                .map(|(id, _)| *id);
            oldest.map(|id| self.0.remove(&id));
        }
        self.0.insert(
            id,
            StoredPlan {
                owner,
                used: now,
                plan,
                _charge: charge,
            },
        );
    }

    /// Returns a plan of the client, and notes that it was used.
    pub fn get(&mut self, now: Instant, owner: &Driver, id: PlanId) -> Option<Arc<Plan>> {
        self.expire(now);
        let kept = self.0.get_mut(&id).filter(|kept| kept.owner == *owner)?;
        kept.used = now;
        Some(kept.plan.clone())
    }

    /// Drops the plans that have been idle for too long.
    pub fn expire(&mut self, now: Instant) {
        self.0.retain(|_, kept| kept.used + IDLE > now);
    }

    /// Returns when the next plan expires.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.0.values().map(|kept| kept.used + IDLE).min()
    }

    /// Drops the plans of a client that is gone.
    pub fn forget_owner(&mut self, owner: &Driver) {
        self.0
            .retain(|_, kept| kept.owner != *owner || mutant!("plans-outlive-clients"));
    }
}
