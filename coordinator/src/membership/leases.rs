//! Leases: from the grant until release, or the loss of whoever it names.

use std::collections::BTreeMap;
use std::sync::Arc;

use convoke_common::ids::{Incarnation, LeaseId, PlanId};
use convoke_common::mutant;
use convoke_common::program::Participant;
use convoke_common::rpc::{HeldLease, LeaseStatus, Loss};
use tokio::time::Instant;

use super::member::LONGEST_TEXT;
use super::{Command, ConnectionId, Driver, Membership, MembershipError, Offer, Plan};

/// Leases of one worker that a restarted coordinator takes over, and of one driver that returns: far more than fit into a
/// worker's memory.
pub(super) const HELD: usize = 1024;

/// How far a lease is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseState {
    /// Workers are installing.
    Installing,
    /// All workers acknowledged.
    Granted,
    /// It ended while workers were installing; whoever installs finds out here.
    Ended {
        /// The worker that was lost over it; none where its driver gave it up.
        lost: Option<Loss>,
    },
}

#[derive(Debug)]
struct Lease {
    /// What was installed; unknown of one that was taken over.
    plan: Option<PlanId>,
    model: String,
    driver: Driver,
    workers: Vec<Participant>,
    state: LeaseState,
}

/// A lease ended over its install, because of a loss or of its driver.
fn ended(lost: Option<Loss>) -> MembershipError {
    let why = match &lost {
        Some(Loss { worker, why }) => format!("worker '{worker}' was lost: {why}"),
        None => "its driver gave it up".to_owned(),
    };
    MembershipError::LeaseEnded {
        why,
        worker: lost.map(|l| l.worker),
    }
}

/// The leases that are there.
#[derive(Debug, Default)]
pub struct Leases(BTreeMap<LeaseId, Lease>);

impl Lease {
    fn has_ended(&self) -> bool {
        matches!(self.state, LeaseState::Ended { .. })
    }
}

impl Leases {
    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    fn of(&self, wanted: impl Fn(&Lease) -> bool) -> Vec<LeaseId> {
        let found = self
            .0
            .iter()
            .filter(|(_, lease)| !lease.has_ended() && wanted(lease));
        found.map(|(id, _)| *id).collect()
    }

    /// Those that a client drives.
    pub fn of_driver(&self, driver: &Driver) -> Vec<LeaseId> {
        self.of(|lease| lease.driver == *driver)
    }

    /// Those of a plan.
    fn of_plan(&self, driver: &Driver, plan: PlanId) -> Vec<LeaseId> {
        self.of(|lease| lease.driver == *driver && lease.plan == Some(plan))
    }

    /// Those that name a worker.
    pub fn of_worker(&self, name: &str) -> Vec<LeaseId> {
        self.of(|lease| lease.workers.iter().any(|w| w.name == name))
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
    /// Keeps a plan for the client on this connection, where it is still there.
    pub fn keep_plan(&mut self, now: Instant, owner: ConnectionId, id: PlanId, plan: Arc<Plan>) {
        if let Some(owner) = self.drivers.on(owner).cloned() {
            self.plans.keep(now, owner, id, plan);
        }
    }

    /// A client's plan and its workers, if all of them are still those that it was made for.
    pub fn plan(
        &mut self,
        now: Instant,
        owner: ConnectionId,
        id: PlanId,
    ) -> Result<Granted, MembershipError> {
        let owner = self.drivers.on(owner);
        let plan = owner.and_then(|owner| self.plans.get(now, owner, id));
        let plan = plan.ok_or(MembershipError::NoSuchPlan)?;
        self.quarantine.admit(&plan.function)?;
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
            if member.serving().is_none() {
                return Err(outdated("stopped to take new work"));
            }
            Ok(connection)
        });
        let connections = connections.collect::<Result<_, _>>()?;
        Ok(Granted { plan, connections })
    }

    /// A worker that this process of the coordinator meets for the first time holds these leases: they were granted by
    /// the process before it. Each worker speaks for itself only; what cannot be taken over it is told to drop.
    pub(super) fn adopt(&mut self, now: Instant, name: &str, offer: &Offer, held: Vec<HeldLease>) {
        let worker = Participant {
            name: name.to_owned(),
            incarnation: offer.incarnation,
            address: offer.address.clone(),
        };
        let text = |t: &str| t.len() <= LONGEST_TEXT && !t.chars().any(char::is_control);
        let fits = |h: &HeldLease| text(&h.model) && text(&h.driver.0);
        let connection = self.members.get(name).and_then(|m| m.connection());
        let mut taken = 0;
        for held in held {
            let (lease, fits) = (held.lease, fits(&held) && taken < HELD);
            if fits && self.adopt_one(now, &worker, held) {
                taken += 1;
            } else {
                self.commands.push_back(Command::Release {
                    lease,
                    at: connection.into_iter().collect(),
                    lost: None,
                });
            }
        }
    }

    /// `false`: its driver is there and does not hold it, or it is another lease that has this number.
    fn adopt_one(&mut self, now: Instant, worker: &Participant, held: HeldLease) -> bool {
        let (name, incarnation) = held.driver;
        let driver = Driver { name, incarnation };
        if !self.leases.0.contains_key(&held.lease) && self.drivers.denies(&driver, held.lease) {
            return false;
        }
        let entry = self.leases.0.entry(held.lease).or_insert_with(|| Lease {
            plan: None,
            model: held.model,
            driver: driver.clone(),
            workers: vec![],
            state: LeaseState::Granted,
        });
        let same = entry.driver == driver && entry.state == LeaseState::Granted;
        if same {
            entry.workers.push(worker.clone());
            self.drivers.expect(driver, now);
        }
        same
    }

    /// A worker that is back on this connection says what it holds. Of a lease that ended while it was away, and that
    /// another worker has brought back since, it has no part any more.
    pub(super) fn release_ended(
        &mut self,
        connection: ConnectionId,
        (name, incarnation): (&str, Incarnation),
        held: &[HeldLease],
    ) {
        let is = |w: &Participant| w.name == name && w.incarnation == incarnation;
        let names_it = |l: &Lease| !l.has_ended() && l.workers.iter().any(is);
        let goes_on = |lease: &LeaseId| self.leases.0.get(lease).is_some_and(names_it);
        let ended = held.iter().map(|h| h.lease).filter(|l| !goes_on(l));
        let release = |lease| Command::Release {
            lease,
            at: vec![connection],
            lost: Some(Loss {
                worker: name.to_owned(),
                why: "the lease ended while it was away".to_owned(),
            }),
        };
        let commands: Vec<Command> = ended.take(HELD).map(release).collect();
        self.commands.extend(commands);
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
        let driver = self.drivers.on(driver).cloned();
        let plan = &granted.plan;
        let workers = plan.participants.iter().take(plan.parts.len());
        self.leases.0.insert(
            lease,
            Lease {
                plan: Some(id),
                model: plan.model.clone(),
                driver: driver.ok_or(MembershipError::NoSuchPlan)?,
                workers: workers.cloned().collect(),
                state: LeaseState::Installing,
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
        Err(ended(self.undo(lease).flatten()))
    }

    /// Installing failed, or whoever wanted it went away. Why the lease ended, where it had ended before.
    pub fn abandon(&mut self, lease: LeaseId) -> Option<MembershipError> {
        self.undo(lease).map(ended)
    }

    /// Takes back a lease that was to be installed; who was lost, where it had ended before.
    fn undo(&mut self, lease: LeaseId) -> Option<Option<Loss>> {
        // Also where the lease had ended before: a worker may have acknowledged after it was told so.
        let at = self.carriers(self.leases.0.get(&lease)?, None);
        if !at.is_empty() && !mutant!("abandoned-install") {
            self.commands.push_back(Command::Release {
                lease,
                at,
                lost: None,
            });
        }
        match self.leases.0.remove(&lease)?.state {
            LeaseState::Ended { lost } => Some(lost),
            _ => None,
        }
    }

    /// A driver is done with its lease; one that ended already is no error.
    pub fn release(&mut self, driver: ConnectionId, lease: LeaseId) -> Result<(), MembershipError> {
        match self.leases.0.get(&lease) {
            Some(l) if self.drivers.on(driver) != Some(&l.driver) => {
                Err(MembershipError::NotDriver { lease })
            }
            _ => {
                if let Some(driver) = self.drivers.on(driver).cloned() {
                    self.drivers.released(&driver, lease);
                }
                self.end_lease(lease, None);
                Ok(())
            }
        }
    }

    /// A driver no longer waits for what it asked to be installed, and may not know that it was.
    pub fn give_up(&mut self, driver: ConnectionId, plan: PlanId) {
        if let Some(driver) = self.drivers.on(driver).cloned() {
            for lease in self.leases.of_plan(&driver, plan) {
                self.end_lease(lease, None);
            }
        }
    }

    /// The living workers of a lease but `lost`.
    fn carriers(&self, lease: &Lease, lost: Option<&str>) -> Vec<ConnectionId> {
        let there = lease
            .workers
            .iter()
            .filter(|p| Some(p.name.as_str()) != lost)
            .filter_map(|p| {
                let member = self.members.get(&p.name)?;
                let same = member.living()?.incarnation == p.incarnation;
                member.connection().filter(|_| same)
            });
        there.collect()
    }

    /// Ends a lease because its driver is done or gone, or because a worker was lost.
    pub(super) fn end_lease(&mut self, lease: LeaseId, lost: Option<&Loss>) {
        let Some(entry) = self.leases.0.get(&lease).filter(|l| !l.has_ended()) else {
            return;
        };
        let at = self.carriers(entry, lost.map(|l| l.worker.as_str()));
        let installing = entry.state == LeaseState::Installing;
        if !at.is_empty() {
            let lost = lost.cloned();
            self.commands
                .push_back(Command::Release { lease, at, lost });
        }
        if !installing {
            self.leases.0.remove(&lease);
            return;
        }
        if let Some(entry) = self.leases.0.get_mut(&lease) {
            let lost = lost.cloned();
            entry.state = LeaseState::Ended { lost };
        }
    }

    /// The leases that are there.
    pub fn leases(&self) -> Vec<LeaseStatus> {
        let living = self.leases.0.iter().filter(|(_, l)| !l.has_ended());
        living
            .map(|(id, l)| LeaseStatus {
                lease: *id,
                model: l.model.clone(),
                driver: l.driver.name.clone(),
                workers: l.workers.iter().map(|w| w.name.clone()).collect(),
            })
            .collect()
    }
}
