//! Plans: computed away from the network's threads, a few at a time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use convoke_common::graph::Function;
use convoke_common::ids::{Incarnation, PlanId};
use convoke_common::program::{MOST_IN_FLIGHT, Participant, model_name};
use convoke_common::rpc::{PlanOptions, Planned, WorkerCount};
use convoke_common::{Code, Error, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout_at;

use super::Service;
use super::members::Caller;
use crate::membership::{ConnectionId, Plan};
use crate::place::ClusterModel;
use crate::plan::{PlannedPrograms, plan};
use crate::tasks::blocking;

/// Plans that are computed at once: each takes a core.
const AT_ONCE: usize = 2;

/// Plans that are computed or wait, of all clients and of one: each holds a function of up to a frame.
const WAITING: usize = 64;
const OF_ONE: usize = 16;

/// Pins and axes of one plan.
const MOST_NAMES: usize = 4096;

/// The bounds on planning.
pub struct Planning {
    places: Arc<Semaphore>,
    /// Of those clients that plan.
    shares: Mutex<BTreeMap<ConnectionId, Weak<Semaphore>>>,
    turns: Arc<Semaphore>,
}

impl Default for Planning {
    fn default() -> Planning {
        Planning {
            places: Arc::new(Semaphore::new(WAITING)),
            shares: Mutex::default(),
            turns: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }
}

impl Planning {
    /// How many plans are being made, or wait to be.
    pub fn len(&self) -> usize {
        WAITING - self.places.available_permits()
    }

    /// A place among those that plan or wait, and of the client's share of them; both held as long as it plans.
    fn enter(&self, client: ConnectionId) -> Result<[OwnedSemaphorePermit; 2]> {
        let busy = |_| {
            let msg = format!("{WAITING} plans are being made already, or {OF_ONE} of this client");
            Error::new(Code::Busy, msg).advise("try again in a moment")
        };
        let share = {
            let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
            shares.retain(|_, share| share.strong_count() > 0);
            let known = shares.get(&client).and_then(Weak::upgrade);
            let share = known.unwrap_or_else(|| Arc::new(Semaphore::new(OF_ONE)));
            shares.insert(client, Arc::downgrade(&share));
            share
        };
        let own = share.try_acquire_owned().map_err(busy)?;
        let place = self.places.clone().try_acquire_owned().map_err(busy)?;
        Ok([own, place])
    }
}

fn check(function: &Function, options: &PlanOptions) -> Result<()> {
    let bad = |what: &str| Err(Error::new(Code::InvalidArgument, what));
    if options.workers == WorkerCount::Exactly(0) {
        return bad("a plan needs at least one worker");
    }
    if !(1..=MOST_IN_FLIGHT).contains(&options.in_flight) {
        return bad(&format!(
            "{} steps in flight; 1 to {MOST_IN_FLIGHT} may be",
            options.in_flight
        ));
    }
    let names = [
        options.pins.len(),
        options.axes.bounds.len(),
        options.expected.len(),
        options.avoid.len(),
        options.ops.len(),
    ];
    if names.iter().any(|n| *n > MOST_NAMES) {
        return bad(&format!("a plan may have {MOST_NAMES} pins and axes"));
    }
    let artifacts = function.artifacts.iter();
    let mut checked = artifacts.map(|a| {
        a.check()
            .map_err(|e| Error::new(Code::InvalidGraph, e.to_string()))
    });
    checked.try_for_each(|artifact| artifact)
}

/// What is asked of a plan once workers have left: no more of them than there are.
fn for_what_is_left(options: PlanOptions, cluster: &ClusterModel) -> Result<PlanOptions> {
    let left = u32::try_from(cluster.workers.len()).unwrap_or(u32::MAX);
    let avoided = || {
        let names = options.avoid.iter().map(|(name, _)| name.as_str());
        names.collect::<Vec<_>>().join(", ")
    };
    let start = "start one with `convoke worker --join HOST:PORT --token-file FILE`";
    match options.workers {
        _ if left == 0 && options.avoid.is_empty() => {
            Err(Error::new(Code::NoWorkers, "no worker has joined").advise(start))
        }
        _ if left == 0 => {
            let msg = format!("no worker is left besides {}", avoided());
            Err(Error::new(Code::NoWorkers, msg).advise(start))
        }
        WorkerCount::Exactly(n) if n > left && !options.avoid.is_empty() => Ok(PlanOptions {
            workers: WorkerCount::Exactly(left),
            ..options
        }),
        _ => Ok(options),
    }
}

/// The only place where the service meets the planner.
pub(crate) fn compute(
    function: Arc<Function>,
    cluster: &ClusterModel,
    options: &PlanOptions,
) -> Result<PlannedPrograms> {
    check(&function, options)?;
    let mut function = Arc::unwrap_or_clone(function);
    function.name = model_name(&function.name);
    plan(function, cluster, options)
}

impl Service {
    /// A coordinator that was just started waits for the workers that it knows.
    pub(super) async fn returned(&self) -> Result<()> {
        let mut population = self.population.subscribe();
        while let Some(until) = self.core.call(|core, now| core.returning(now)).await? {
            // Until another has registered, or it is time.
            let _ = timeout_at(until, population.changed()).await;
        }
        Ok(())
    }

    /// Plans `function` for the caller as its driver, and keeps the plan.
    pub(super) async fn plan(
        &self,
        caller: &Caller,
        function: Arc<Function>,
        options: PlanOptions,
        driver: Incarnation,
    ) -> Result<Planned> {
        self.returned().await?;
        let place = self.planning.enter(caller.id)?;
        let turn = self.planning.turns.clone().acquire_owned().await;
        let turn = turn.map_err(|_| Error::internal("the planner is closed"))?;
        let (function, function_id) = blocking(&self.world, move || {
            let id = function.id();
            (function, id)
        })
        .await?;
        let function_id = function_id.map_err(|e| Error::internal(e.to_string()))?;
        self.core
            .call(move |core, _| core.admit(&function_id))
            .await??;
        let (id, me) = (caller.id, caller.driver(driver));
        self.core.call(move |core, _| core.speaks(id, me)).await??;
        let avoid = options.avoid.clone();
        let cluster = self.core.call(move |core, _| core.model(&avoid)).await?;
        let options = for_what_is_left(options, &cluster)?;
        let model = model_name(&function.name);
        let planned = blocking(&self.world, move || {
            // Held until the work is done, also where the caller no longer waits for it.
            let _bounds = (place, turn);
            compute(function, &cluster, &options)
        })
        .await??;
        let id = PlanId(u64::from_le_bytes(self.world.rng.bytes()));
        let mut participants = planned.participants;
        let name = caller.identity.name.to_string();
        participants.push(Participant {
            name,
            incarnation: driver,
            address: String::new(),
        });
        let programs = planned.programs.into_iter().map(Arc::new);
        let plan = Arc::new(Plan {
            model,
            function: function_id,
            parts: programs.zip(planned.step_bytes).collect(),
            participants: participants.clone(),
            axes: planned.axes.clone(),
            in_flight: planned.in_flight,
        });
        if plan.parts.len() + 1 != participants.len() {
            return Err(Error::internal(
                "a plan's programs and workers differ in number",
            ));
        }
        tracing::info!(plan = %id, model = plan.model, workers = plan.parts.len(), "planned");
        let owner = caller.id;
        self.core
            .call(move |core, now| core.keep_plan(now, owner, id, plan))
            .await?;
        Ok(Planned {
            plan: id,
            participants,
            driver: planned.driver,
            axes: planned.axes,
            summary: planned.summary,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_takes_no_more_than_its_share_of_the_places() {
        let planning = Planning::default();
        let mut held: Vec<_> = (0..OF_ONE)
            .map(|_| planning.enter(ConnectionId(1)).unwrap())
            .collect();
        let refused = planning.enter(ConnectionId(1)).unwrap_err();
        assert_eq!(refused.code, Code::Busy);
        for n in OF_ONE..WAITING {
            held.push(planning.enter(ConnectionId(2 + n as u64)).unwrap());
        }
        assert!(planning.enter(ConnectionId(0)).is_err());
        drop(held.remove(0));
        held.push(planning.enter(ConnectionId(1)).unwrap());
        held.clear();
        assert!(planning.enter(ConnectionId(0)).is_ok());
        assert_eq!(planning.shares.lock().unwrap().len(), 1);
    }
}
