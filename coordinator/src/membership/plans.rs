//! Plans that wait to be installed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use convoke_common::ids::{FunctionId, PlanId};
use convoke_common::memory::Reservation;
use convoke_common::mutant;
use convoke_common::program::{Axes, Participant, Program};
use tokio::time::Instant;

use super::Driver;

/// How many are kept; the longest idle goes first, of the client that wants one more where it has any. A plan holds its programs, up to some MiB of nodes.
const PLANS: usize = 64;

/// How long one is kept after it was last used.
const IDLE: Duration = Duration::from_secs(600);

/// What partitioning yields and installing needs.
#[derive(Debug, PartialEq)]
pub struct Plan {
    pub model: String,
    /// The function as the client gave it.
    pub function: FunctionId,
    /// One per worker, with the bytes that one step's tensors need there.
    pub parts: Vec<(Arc<Program>, u64)>,
    /// The workers in the order of `parts`, then the driver.
    pub participants: Vec<Participant>,
    pub axes: Axes,
    pub in_flight: u32,
}

#[derive(Debug)]
struct Kept {
    owner: Driver,
    used: Instant,
    plan: Arc<Plan>,
    /// What its memory is charged to.
    _charge: Option<Reservation>,
}

/// The plans of all clients.
#[derive(Debug, Default)]
pub struct Plans(BTreeMap<PlanId, Kept>);

impl Plans {
    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Drops the client's plan that was idle for longest; false where it has none.
    pub fn drop_oldest(&mut self, owner: &Driver) -> bool {
        let own = self.0.iter().filter(|(_, kept)| kept.owner == *owner);
        let oldest = own.min_by_key(|(_, kept)| kept.used).map(|(id, _)| *id);
        oldest.and_then(|id| self.0.remove(&id)).is_some()
    }

    /// Keeps a plan for a client, with what its memory is charged to.
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
            Kept {
                owner,
                used: now,
                plan,
                _charge: charge,
            },
        );
    }

    /// The client's plan.
    pub fn get(&mut self, now: Instant, owner: &Driver, id: PlanId) -> Option<Arc<Plan>> {
        self.expire(now);
        let kept = self.0.get_mut(&id).filter(|kept| kept.owner == *owner)?;
        kept.used = now;
        Some(kept.plan.clone())
    }

    /// Drops what was idle for too long.
    pub fn expire(&mut self, now: Instant) {
        self.0.retain(|_, kept| kept.used + IDLE > now);
    }

    /// When the next one expires.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.0.values().map(|kept| kept.used + IDLE).min()
    }

    /// Drops the plans of a client that is gone.
    pub fn forget_owner(&mut self, owner: &Driver) {
        self.0
            .retain(|_, kept| kept.owner != *owner || mutant!("plans-outlive-clients"));
    }
}
