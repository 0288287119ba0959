//! Plans: computed away from the network's threads, a few at a time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use convoke_common::graph::Function;
use convoke_common::identity::{PeerIdentity, TokenId};
use convoke_common::ids::{Incarnation, PlanId};
use convoke_common::memory::{Account, Ledger, Reservation};
use convoke_common::program::{MOST_IN_FLIGHT, Participant, model_name};
use convoke_common::rpc::{PlanOptions, Planned, RETURN_BOUND, WorkerCount};
use convoke_common::rpc_transport::{Charge, codec, current_charge};
use convoke_common::{Code, Error, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::Service;
use super::members::Caller;
use crate::membership::{ConnectionId, Membership, Plan};
use crate::place::ClusterModel;
use crate::plan::{PlannedPrograms, plan};
use crate::tasks::blocking;

/// Plans that are computed at once: each takes a core.
const AT_ONCE: usize = 2;

/// Plans that are computed or wait, of all clients, of those of one token, and of one: each holds a function of up to a
/// frame.
const WAITING: usize = 64;
const OF_TOKEN: usize = 48;
const OF_ONE: usize = 16;

/// What a program takes in memory, in lengths of what it takes on the wire.
const IN_MEMORY: u64 = 3;

/// Pins and axes of one plan.
const MOST_NAMES: usize = 4096;

/// A place among those that plan or wait, one of the client's share of them and one of its token's.
type Place = [OwnedSemaphorePermit; 3];

/// What a request for a plan holds until it is computed: its place, and the bytes that it is charged with.
type RequestGuard = (Place, Charge);

/// Who has a share of the places.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Sharer {
    Client(ConnectionId),
    Token(TokenId),
}

/// The bounds on planning.
pub struct Planning {
    places: Arc<Semaphore>,
    /// Of those clients that plan, and their tokens.
    shares: Mutex<BTreeMap<Sharer, Weak<Semaphore>>>,
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

    /// Takes a turn to compute.
    async fn turn(&self) -> Result<OwnedSemaphorePermit> {
        let turn = self.turns.clone().acquire_owned().await;
        turn.map_err(|_| Error::internal("the planner is closed"))
    }

    fn share(&self, sharer: Sharer, places: usize) -> Arc<Semaphore> {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        shares.retain(|_, share| share.strong_count() > 0);
        let known = shares.get(&sharer).and_then(Weak::upgrade);
        let share = known.unwrap_or_else(|| Arc::new(Semaphore::new(places)));
        shares.insert(sharer, Arc::downgrade(&share));
        share
    }

    /// A place among those that plan or wait, of the client's share of them and of its token's; all held as long as it
    /// plans.
    fn enter(&self, client: ConnectionId, token: &TokenId) -> Result<Place> {
        let busy = |msg: String| Error::new(Code::Busy, msg).advise("try again in a moment");
        let own = self
            .share(Sharer::Client(client), OF_ONE)
            .try_acquire_owned();
        let own = own.map_err(|_| busy(format!("{OF_ONE} plans of this client are being made")))?;
        let of_token = self.share(Sharer::Token(token.clone()), OF_TOKEN);
        let of_token = of_token.try_acquire_owned().map_err(|_| {
            busy(format!(
                "{OF_TOKEN} plans of the holders of token {token} are being made"
            ))
        })?;
        let place = self.places.clone().try_acquire_owned();
        let place = place.map_err(|_| busy(format!("{WAITING} plans are being made already")))?;
        Ok([own, of_token, place])
    }
}

/// Offers the caller no more of a worker than its token may have there.
fn within_budget(cluster: &mut ClusterModel, caller: &PeerIdentity) {
    for worker in &mut cluster.workers {
        worker.memory = worker.memory.min(caller.memory_of(worker.memory));
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

/// Whether a function that could not be planned may fit once more workers are there.
fn lacks_workers(error: &Error, options: &PlanOptions) -> bool {
    match error.code {
        Code::NoWorkers | Code::ClusterTooSmall | Code::UnsupportedOp => true,
        // A pin may name one that is not there.
        Code::InvalidArgument => !options.pins.is_empty(),
        _ => false,
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

    /// Plans `function` for the workers that are there, without those that the caller avoids. Where these are too few and
    /// others may be about to return, it waits for those, at most [`RETURN_BOUND`], and plans anew as they come. After
    /// that it takes avoided ones that are still there: what separated them from the caller may be over.
    async fn fitted(
        &self,
        caller: &PeerIdentity,
        mut function: Arc<Function>,
        options: PlanOptions,
        held: Arc<RequestGuard>,
        mut turn: OwnedSemaphorePermit,
    ) -> Result<PlannedPrograms> {
        let patience = Instant::now() + RETURN_BOUND;
        let mut population = self.population.subscribe();
        loop {
            // Whoever comes from here on wakes the wait below.
            population.mark_unchanged();
            let avoid = options.avoid.clone();
            let look = move |core: &mut Membership, now| {
                (core.model(&avoid), core.absent(now, patience, &avoid))
            };
            let (mut cluster, absent) = self.core.call(look).await?;
            within_budget(&mut cluster, caller);
            // Planning takes the function, and a copy costs as much as it is large: only where it may be needed.
            let again = absent.is_some() || !options.avoid.is_empty();
            let again = again.then(|| function.clone());
            let planned = self.computed(function, cluster, options.clone(), held.clone(), turn);
            let (error, kept) = match (planned.await, again) {
                (Err(error), Some(kept)) if lacks_workers(&error, &options) => (error, kept),
                (planned, _) => return planned,
            };
            let Some(until) = absent else {
                let mut all = self.core.call(|core, _| core.model(&[])).await?;
                within_budget(&mut all, caller);
                let turn = self.planning.turn().await?;
                let planned = self.computed(kept, all, options, held, turn).await;
                return planned.map_err(|_| error);
            };
            tracing::info!(%error, "a plan waits for workers that may return");
            // Until the workers are others, or it is time.
            let _ = timeout_at(until, population.changed()).await;
            (function, turn) = (kept, self.planning.turn().await?);
        }
    }

    /// Plans `function` for these workers. What is held for the request and the turn stay until the work is done, also where
    /// the caller no longer waits for it.
    async fn computed(
        &self,
        function: Arc<Function>,
        cluster: ClusterModel,
        options: PlanOptions,
        held: Arc<RequestGuard>,
        turn: OwnedSemaphorePermit,
    ) -> Result<PlannedPrograms> {
        let options = for_what_is_left(options, &cluster)?;
        let planned = blocking(&self.world, move || {
            let _bounds = (held, turn);
            compute(function, &cluster, &options)
        });
        planned.await?
    }

    /// Drops plans of the caller until those of its token leave half of what it may have to requests.
    async fn make_room(&self, caller: ConnectionId, account: &Ledger) -> Result<()> {
        let limit = account.owner().map_or(u64::MAX, |owner| owner.limit);
        while account.used_by_owner(Account::Plans) > limit / 2 {
            let dropped = self.core.call(move |core, _| core.drop_oldest_plan(caller));
            if !dropped.await? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Charges a plan that is to be kept, in place of the caller's oldest where there is no room.
    async fn charge_plan(
        &self,
        caller: ConnectionId,
        account: &Ledger,
        plan: &Plan,
    ) -> Result<Reservation> {
        let written = plan.parts.iter().map(|(program, _)| {
            codec::size(&**program).map_err(|e| Error::internal(e.to_string()))
        });
        let bytes = written.sum::<Result<u64>>()?.saturating_mul(IN_MEMORY);
        loop {
            let refused = match account.reserve(Account::Plans, bytes) {
                Ok(charge) => return Ok(charge),
                Err(refused) => refused,
            };
            let dropped = self.core.call(move |core, _| core.drop_oldest_plan(caller));
            if !dropped.await? {
                return Err(refused);
            }
        }
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
        let place = self.planning.enter(caller.id, &caller.identity.token_id)?;
        let account = self.account_of(&caller.identity);
        self.make_room(caller.id, &account).await?;
        let held = Arc::new((place, current_charge()));
        let turn = self.planning.turn().await?;
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
        let model = model_name(&function.name);
        let planned = self
            .fitted(&caller.identity, function, options, held, turn)
            .await?;
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
        let charge = self.charge_plan(caller.id, &account, &plan).await?;
        tracing::info!(plan = %id, model = plan.model, workers = plan.parts.len(), "planned");
        let owner = caller.id;
        self.core
            .call(move |core, now| core.keep_plan(now, owner, id, plan, Some(charge)))
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
    fn one_client_and_one_token_take_no_more_than_their_shares_of_the_places() {
        let planning = Planning::default();
        let [a, b] = ["aaaa", "bbbb"].map(|t| t.parse::<TokenId>().unwrap());
        let mut held: Vec<_> = (0..OF_ONE)
            .map(|_| planning.enter(ConnectionId(1), &a).unwrap())
            .collect();
        let refused = planning.enter(ConnectionId(1), &a).unwrap_err();
        assert_eq!(refused.code, Code::Busy);
        for n in OF_ONE..OF_TOKEN {
            held.push(planning.enter(ConnectionId(2 + n as u64), &a).unwrap());
        }
        let refused = planning.enter(ConnectionId(0), &a).unwrap_err();
        assert!(refused.message.contains("token aaaa"), "{refused}");
        for n in OF_TOKEN..WAITING {
            held.push(planning.enter(ConnectionId(2 + n as u64), &b).unwrap());
        }
        assert!(planning.enter(ConnectionId(0), &b).is_err());
        drop(held.remove(0));
        held.push(planning.enter(ConnectionId(1), &a).unwrap());
        held.clear();
        assert!(planning.enter(ConnectionId(0), &a).is_ok());
        assert_eq!(planning.shares.lock().unwrap().len(), 2);
    }
}
