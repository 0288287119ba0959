//! The plans that wait to be installed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use convoke_common::grant::{BodyGrant, BodyPart, Participant};
use convoke_common::identity::TokenId;
use convoke_common::ids::{Incarnation, PlanId};
use convoke_common::memory::Reservation;
use convoke_common::mutant;
use convoke_common::rpc::RETURN_BOUND;
use convoke_graph::ids::{FunctionId, ParticipantIx};
use convoke_graph::program::{Axes, HashedProgram};
use serde::{Deserialize, Serialize};

use super::drivers::Driver;
use super::leases::Charge;
use crate::bodies::PlannedBody;
use crate::membership::interface::{ConnectionId, Moment};
use crate::plan::PartMemory;

/// Most plans that are kept. One more replaces the plan that has been idle for the longest time: one of the same client
/// if it has any. A plan holds its programs, up to some MiB of nodes.
const PLANS: usize = 64;

/// How long a plan is kept after its last use.
const IDLE: Duration = Duration::from_secs(600);

/// How long a plan that is to be installed counts as taken: its driver dials the workers first.
pub const HELD_FOR: Duration = RETURN_BOUND;

/// The result of partitioning, as it is kept until it is installed.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub model: String,
    /// The identity of the function that the client sent.
    pub function: FunctionId,
    /// The token of the client.
    pub token: TokenId,
    /// The part of each worker.
    pub parts: Vec<PlanPart>,
    /// The workers in the order of `parts`, then the driver.
    pub participants: Vec<Participant>,
    /// The partitioned bodies, in the order in which workers load them.
    pub bodies: Vec<PlannedBody>,
    pub axes: Axes,
    pub in_flight: u32,
}

/// A plan that is about to be installed, with the connections of its workers.
#[derive(Debug)]
pub struct InstallOrder {
    pub plan: Arc<Plan>,
    /// The workers' connections, in the order of [`Plan::parts`].
    pub connections: Vec<ConnectionId>,
}

/// The part of a plan for one worker.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanPart {
    pub program: HashedProgram,
    /// Bytes that the tensors of one step need.
    pub step_bytes: u64,
    /// Bytes that the whole part needs of the worker.
    pub needed: PartMemory,
}

impl Plan {
    /// Returns the grants of the partitioned bodies that participant `me` drives or runs a part of, and the programs of
    /// its parts.
    pub fn bodies_of(&self, me: ParticipantIx) -> (Vec<BodyGrant>, Vec<&HashedProgram>) {
        let (mut grants, mut programs) = (vec![], vec![]);
        let participant = |ix: &ParticipantIx| self.participants.get(usize::from(*ix)).cloned();
        for body in &self.bodies {
            let at = body.workers.iter().position(|w| *w == me);
            let part = at.and_then(|at| {
                let program = body.programs.get(at)?;
                programs.push(program);
                Some(BodyPart {
                    program: program.id(),
                    me: at as ParticipantIx,
                    step_bytes: body.step_bytes.get(at).copied()?,
                })
            });
            let driver = (body.owner == me).then(|| body.driver.clone());
            if part.is_none() && driver.is_none() {
                continue;
            }
            let all = body.workers.iter().chain([&body.owner]);
            grants.push(BodyGrant {
                number: body.number,
                within: body.within,
                participants: all.filter_map(participant).collect(),
                axes: body.axes.clone(),
                part,
                driver,
            });
        }
        (grants, programs)
    }
}

#[derive(Debug)]
struct StoredPlan {
    owner: Driver,
    used: Moment,
    /// Until when its memory counts as taken; `None` if it is not to be installed at once, or was granted.
    held_until: Option<Moment>,
    plan: Arc<Plan>,
    /// The reservation that charges the plan's memory to its client.
    _charge: Option<Arc<Reservation>>,
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
        now: Moment,
        owner: Driver,
        id: PlanId,
        plan: Arc<Plan>,
        charge: Option<Arc<Reservation>>,
        installs: bool,
    ) {
        self.expire(now);
        let earlier =
            |kept: &&mut StoredPlan| kept.owner == owner && kept.plan.function == plan.function;
        let earlier = self.0.values_mut().filter(earlier);
        earlier.for_each(|kept| kept.held_until = None);
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
                held_until: installs.then(|| now + HELD_FOR),
                plan,
                _charge: charge,
            },
        );
    }

    /// Returns a plan of the client, and notes that it was used.
    pub fn get(&mut self, now: Moment, owner: &Driver, id: PlanId) -> Option<Arc<Plan>> {
        self.expire(now);
        let kept = self.0.get_mut(&id).filter(|kept| kept.owner == *owner)?;
        kept.used = now;
        Some(kept.plan.clone())
    }

    /// Notes that a plan was granted or refused: from now on only its lease counts.
    pub fn decided(&mut self, id: PlanId) {
        if let Some(kept) = self.0.get_mut(&id) {
            kept.held_until = None;
        }
    }

    /// Returns what the plans that are about to be installed take of a worker's memory, without those that `replaced`
    /// names by their client and function.
    pub fn charges(
        &self,
        now: Moment,
        name: &str,
        incarnation: Incarnation,
        replaced: Option<&(Driver, FunctionId)>,
    ) -> impl Iterator<Item = Charge<'_>> {
        let held = self.0.values().filter(move |kept| {
            let is = |(owner, function): &(Driver, FunctionId)| {
                *owner == kept.owner && *function == kept.plan.function
            };
            kept.held_until.is_some_and(|until| until > now) && !replaced.is_some_and(is)
        });
        held.flat_map(move |kept| {
            let parts = kept.plan.participants.iter().zip(&kept.plan.parts);
            let parts = parts.filter(move |(p, _)| p.name == name && p.incarnation == incarnation);
            parts.map(|(_, part)| Charge {
                size: Some((&kept.plan.token, &part.needed)),
                member: &kept.owner.name,
                since: None,
            })
        })
    }

    /// Drops the plans that have been idle for too long.
    pub fn expire(&mut self, now: Moment) {
        self.0.retain(|_, kept| kept.used + IDLE > now);
    }

    /// Returns when the next plan expires.
    pub fn next_expiry(&self) -> Option<Moment> {
        self.0.values().map(|kept| kept.used + IDLE).min()
    }

    /// Drops the plans of a client that is gone.
    pub fn forget_owner(&mut self, owner: &Driver) {
        self.0
            .retain(|_, kept| kept.owner != *owner || mutant!("plans-outlive-clients"));
    }
}
