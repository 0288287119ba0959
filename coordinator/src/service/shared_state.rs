//! The state that all parts of the service share.

use std::sync::Arc;

use convoke_common::counters::Counters;
use convoke_common::detection::Detector;
use convoke_common::identity::{Budget, PeerIdentity, Role, TokenId};
use convoke_common::members::Members;
use convoke_common::memory::{Ledger, Owner};
use convoke_common::tasks::Tasks;
use convoke_common::telemetry::LineLimit;
use convoke_common::world::World;
use tokio::sync::watch;

use super::connections::{self, Connections};
use super::core::Core;
use super::leases::Releases;
use super::peers::Joins;
use super::planning::PlanningLimits;
use super::planning::queue::LoadQueue;
use crate::audit::Audit;
use crate::authority::Authority;
use crate::state::State;

/// Bytes that the requests and the kept plans of all members together may take.
const REQUESTS: u64 = 512 << 20;

/// The state that all parts of the service share.
pub struct Service {
    pub(crate) world: World,
    pub(crate) authority: Authority,
    pub(super) tasks: Tasks,
    pub(super) core: Core,
    pub(super) detector: Detector,
    pub(super) connections: Connections,
    /// The places of members' connections.
    pub(super) members: Members,
    /// Memory of requests while they are served, and of kept plans, by token.
    pub(super) ledger: Ledger,
    pub(super) joins: Joins,
    /// Limits of the log lines about refusals, failed steps and links that could not be measured.
    pub(super) refused_joins: LineLimit,
    pub(super) refused_registrations: LineLimit,
    pub(super) refused_connections: LineLimit,
    pub(super) failed_steps: LineLimit,
    pub(super) unmeasured_links: LineLimit,
    /// How many workers take new work.
    pub(super) population: watch::Sender<u32>,
    pub(super) planning: PlanningLimits,
    /// The requests for plans that wait for memory.
    pub(super) queue: Arc<LoadQueue>,
    /// Changes whenever a lease, and with it memory, may have become free at a worker.
    pub(super) freed: watch::Sender<u64>,
    pub(super) releases: Arc<Releases>,
    /// Held while a name is taken out of service or put back.
    pub(super) draining: tokio::sync::Mutex<()>,
    pub(super) state: Option<Arc<State>>,
    pub(super) audit: Audit,
    /// The number of refusals, by reason.
    pub(super) refused: Arc<Counters>,
}

impl Service {
    /// Returns the state of a service that has served nobody yet, with the handle of its core.
    pub(super) fn new(
        world: World,
        authority: Authority,
        tasks: Tasks,
        core: Core,
        detector: Detector,
        state: Option<Arc<State>>,
        audit: Audit,
    ) -> Service {
        Service {
            world,
            authority,
            tasks,
            core,
            detector,
            connections: Connections::default(),
            members: Members::new(connections::BOUNDS),
            ledger: Ledger::new("the coordinator", REQUESTS),
            joins: Joins::default(),
            refused_joins: LineLimit::default(),
            refused_registrations: LineLimit::default(),
            refused_connections: LineLimit::default(),
            failed_steps: LineLimit::default(),
            unmeasured_links: LineLimit::default(),
            population: watch::Sender::new(0),
            planning: PlanningLimits::default(),
            queue: Arc::default(),
            freed: watch::Sender::new(0),
            releases: Arc::default(),
            draining: tokio::sync::Mutex::default(),
            state,
            audit,
            refused: Arc::default(),
        }
    }

    /// Returns the ledger account that a member's requests are charged to.
    pub(super) fn account_of(&self, identity: &PeerIdentity) -> Ledger {
        let all = self.ledger.limit();
        let limit = match identity.role {
            _ if identity.token_id == TokenId::direct() => all,
            Role::Client => identity.budget.requests.unwrap_or(Budget::REQUESTS).of(all),
            // Usually one token admits all workers.
            Role::Worker | Role::Coordinator => all / 2,
        };
        self.ledger.of(Owner {
            token: identity.token_id.clone(),
            member: identity.name.to_string(),
            limit,
        })
    }
}
