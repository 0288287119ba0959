//! How clients keep plans, and look them up to install them.

use std::sync::Arc;

use convoke_common::ids::PlanId;
use convoke_common::memory::Reservation;
use convoke_common::mutant;

use super::Membership;
use super::interface::{ConnectionId, MembershipError, Moment};
use super::tables::plans::{InstallOrder, Plan};

impl Membership {
    /// Keeps a plan for the client on this connection, if the client is still connected. Where the client `installs` it
    /// at once, the memory that it needs counts as taken.
    pub(super) fn keep_plan(
        &mut self,
        now: Moment,
        owner: ConnectionId,
        id: PlanId,
        plan: Arc<Plan>,
        charge: Option<Arc<Reservation>>,
        installs: bool,
    ) {
        if let Some(owner) = self.drivers.on(owner).cloned() {
            self.plans.keep(now, owner, id, plan, charge, installs);
        }
    }

    /// Drops the plan that the client has not used for the longest time. Returns `false` if the client has no plan.
    pub(super) fn drop_oldest_plan(&mut self, owner: ConnectionId) -> bool {
        let owner = self.drivers.on(owner);
        owner.is_some_and(|owner| self.plans.drop_oldest(owner))
    }

    /// Returns a client's plan with its workers' connections. Fails if a worker no longer takes new work as the
    /// incarnation that the plan was made for.
    pub(super) fn plan(
        &mut self,
        now: Moment,
        owner: ConnectionId,
        id: PlanId,
    ) -> Result<InstallOrder, MembershipError> {
        let owner = self.drivers.on(owner);
        let plan = owner.and_then(|owner| self.plans.get(now, owner, id));
        let plan = plan.ok_or(MembershipError::NoSuchPlan)?;
        let workers = plan.participants.iter().take(plan.parts.len());
        let connections = workers.map(|p| {
            let outdated = |what| MembershipError::PlanOutdated {
                worker: p.name.clone(),
                what,
            };
            let member = self.members.get(&p.name).ok_or(outdated("was lost"))?;
            let (Some(connection), Some(offer)) = (member.connection(), member.living()) else {
                return Err(outdated("was lost"));
            };
            if offer.incarnation != p.incarnation && !mutant!("former-incarnation-granted") {
                return Err(outdated("was restarted"));
            }
            if member.serving().is_none() {
                return Err(outdated("stopped to take new work"));
            }
            Ok(connection)
        });
        let connections = connections.collect::<Result<_, _>>()?;
        Ok(InstallOrder { plan, connections })
    }
}
