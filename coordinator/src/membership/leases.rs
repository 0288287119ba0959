//! Leases: from the grant until release, or the loss of whoever it names.

use std::collections::BTreeMap;
use std::sync::Arc;

use convoke_common::ids::{LeaseId, PlanId};
use convoke_common::rpc::LeaseStatus;
use tokio::time::Instant;

use super::{Command, ConnectionId, Membership, MembershipError, Plan};

/// How far a lease is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseState {
    /// Workers are installing.
    Installing,
    /// All workers acknowledged.
    Granted,
    /// It ended while workers were installing; whoever installs finds out here.
    Ended {
        /// Why.
        why: String,
    },
}

#[derive(Debug)]
struct Lease {
    plan: Arc<Plan>,
    driver: ConnectionId,
    state: LeaseState,
}

/// The leases that are there.
#[derive(Debug, Default)]
pub struct Leases(BTreeMap<LeaseId, Lease>);

impl Lease {
    fn has_ended(&self) -> bool {
        matches!(self.state, LeaseState::Ended { .. })
    }

    fn workers(&self) -> impl Iterator<Item = &str> {
        let participants = self.plan.participants.iter();
        participants
            .take(self.plan.parts.len())
            .map(|p| p.name.as_str())
    }
}

impl Leases {
    fn of(&self, wanted: impl Fn(&Lease) -> bool) -> Vec<LeaseId> {
        let found = self
            .0
            .iter()
            .filter(|(_, lease)| !lease.has_ended() && wanted(lease));
        found.map(|(id, _)| *id).collect()
    }

    /// Those that a client drives.
    pub fn of_driver(&self, driver: ConnectionId) -> Vec<LeaseId> {
        self.of(|lease| lease.driver == driver)
    }

    /// Those that name a worker.
    pub fn of_worker(&self, name: &str) -> Vec<LeaseId> {
        self.of(|lease| lease.workers().any(|w| w == name))
    }
}

/// What is to be installed, and where.
#[derive(Debug)]
pub struct Granted {
    pub plan: Arc<Plan>,
    /// Of the workers, in the order of [`Plan::parts`].
    pub connections: Vec<ConnectionId>,
}

impl Membership {
    /// Keeps a plan for the client on this connection.
    pub fn keep_plan(&mut self, now: Instant, owner: ConnectionId, id: PlanId, plan: Arc<Plan>) {
        self.plans.keep(now, owner, id, plan);
    }

    /// A client's plan and its workers, if all of them are still those that it was made for.
    pub fn plan(
        &mut self,
        now: Instant,
        owner: ConnectionId,
        id: PlanId,
    ) -> Result<Granted, MembershipError> {
        let plan = self
            .plans
            .get(now, owner, id)
            .ok_or(MembershipError::NoSuchPlan)?;
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
            if offer.incarnation != p.incarnation {
                return Err(outdated("was restarted"));
            }
            Ok(connection)
        });
        let connections = connections.collect::<Result<_, _>>()?;
        Ok(Granted { plan, connections })
    }

    /// Begins to install a plan. Exactly one of [`Membership::installed`] and [`Membership::abandon`] follows.
    pub fn grant(
        &mut self,
        now: Instant,
        driver: ConnectionId,
        id: PlanId,
        lease: LeaseId,
    ) -> Result<Granted, MembershipError> {
        let granted = self.plan(now, driver, id)?;
        let state = LeaseState::Installing;
        self.leases.0.insert(
            lease,
            Lease {
                plan: granted.plan.clone(),
                driver,
                state,
            },
        );
        Ok(granted)
    }

    /// All workers acknowledged.
    pub fn installed(&mut self, lease: LeaseId) -> Result<(), MembershipError> {
        if let Some(entry) = self.leases.0.get_mut(&lease).filter(|l| !l.has_ended()) {
            entry.state = LeaseState::Granted;
            return Ok(());
        }
        let why = self.abandon(lease).unwrap_or_default();
        Err(MembershipError::LeaseEnded { why })
    }

    /// Installing failed, or whoever wanted it went away. Why the lease ended, where it had ended before.
    pub fn abandon(&mut self, lease: LeaseId) -> Option<String> {
        // Also where the lease had ended before: a worker may have acknowledged after it was told so.
        let at = self.carriers(self.leases.0.get(&lease)?, None);
        if !at.is_empty() {
            self.commands.push_back(Command::Release {
                lease,
                at,
                lost: None,
            });
        }
        match self.leases.0.remove(&lease)?.state {
            LeaseState::Ended { why } => Some(why),
            _ => None,
        }
    }

    /// A driver is done with its lease; one that ended already is no error.
    pub fn release(&mut self, driver: ConnectionId, lease: LeaseId) -> Result<(), MembershipError> {
        match self.leases.0.get(&lease) {
            Some(l) if l.driver != driver => Err(MembershipError::NotDriver { lease }),
            _ => {
                self.end_lease(lease, None);
                Ok(())
            }
        }
    }

    /// The living workers of a lease but `lost`.
    fn carriers(&self, lease: &Lease, lost: Option<&str>) -> Vec<ConnectionId> {
        let workers = lease.plan.participants.iter().take(lease.plan.parts.len());
        let there = workers
            .filter(|p| Some(p.name.as_str()) != lost)
            .filter_map(|p| {
                let member = self.members.get(&p.name)?;
                let same = member.living()?.incarnation == p.incarnation;
                member.connection().filter(|_| same)
            });
        there.collect()
    }

    /// Ends a lease because its driver is done or gone, or because a worker was lost.
    pub(super) fn end_lease(&mut self, lease: LeaseId, lost: Option<&str>) {
        let Some(entry) = self.leases.0.get(&lease).filter(|l| !l.has_ended()) else {
            return;
        };
        let at = self.carriers(entry, lost);
        let installing = entry.state == LeaseState::Installing;
        if !at.is_empty() {
            let lost = lost.map(str::to_owned);
            self.commands
                .push_back(Command::Release { lease, at, lost });
        }
        if !installing {
            self.leases.0.remove(&lease);
            return;
        }
        let why = match lost {
            Some(worker) => format!("worker '{worker}' was lost"),
            None => "its driver gave it up".to_owned(),
        };
        if let Some(entry) = self.leases.0.get_mut(&lease) {
            entry.state = LeaseState::Ended { why };
        }
    }

    /// The leases that are there.
    pub fn leases(&self) -> Vec<LeaseStatus> {
        let living = self.leases.0.iter().filter(|(_, l)| !l.has_ended());
        living
            .map(|(id, l)| LeaseStatus {
                lease: *id,
                model: l.plan.model.clone(),
                driver: l
                    .plan
                    .participants
                    .last()
                    .map(|p| p.name.clone())
                    .unwrap_or_default(),
                workers: l.workers().map(str::to_owned).collect(),
            })
            .collect()
    }
}
