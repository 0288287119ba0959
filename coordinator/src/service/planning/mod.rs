//! Makes plans: away from the network's threads, a few at a time.

mod fitting;
mod profiles;
pub(super) mod queue;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use convoke_common::detection::timer::{Timer, TimerKind};
use convoke_common::grant::{MOST_IN_FLIGHT, Participant};
use convoke_common::identity::TokenId;
use convoke_common::ids::{Incarnation, PlanId};
use convoke_common::memory::{Ledger, Purpose, Reservation};
use convoke_common::rpc::transport::{Charge, current_charge};
use convoke_common::rpc::{Intent, PlanAnswer, PlanOptions, WorkerCount};
use convoke_common::{Code, Error, Result};
use convoke_graph::graph::Function;
use convoke_graph::program::{HashedProgram, model_name};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout_at;

use self::fitting::{FittingPlan, Request};
use self::profiles::plan_apart;
use super::Service;
use super::members::Caller;
use crate::blocking::blocking_within;
use crate::membership::{Asker, ConnectionId, Plan, PlanPart, events};
use crate::place::ClusterModel;
use crate::plan::PlannedPrograms;

/// How many plans are computed at once; each takes a core.
const AT_ONCE: usize = 2;

/// Most plans that are computed or wait: of all clients, of those of one token, and of one client. Each holds a
/// function of up to one frame.
const WAITING: usize = 64;
const OF_TOKEN: usize = 48;
const OF_ONE: usize = 16;

/// How many times its size on the wire a program takes in memory.
const IN_MEMORY: u64 = 3;

/// Most pins, and most axes, of one plan.
const MOST_NAMES: usize = 4096;
/// The most bounds that a request may have besides the first, each of which takes a plan.
const MOST_TIGHTER: usize = 3;

/// The permits of a plan that is computed or waits: one of the client's share, one of its token's, and one of all.
type Place = [OwnedSemaphorePermit; 3];

/// Resources of a request for a plan until the plan is computed: its place, and the charge for its bytes.
type RequestGuard = (Place, Charge);

/// The owner of a share of the places.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Sharer {
    Client(ConnectionId),
    Token(TokenId),
}

/// The bounds on planning.
pub struct PlanningLimits {
    places: Arc<Semaphore>,
    /// The shares of the clients that plan, and of their tokens.
    shares: Mutex<BTreeMap<Sharer, Weak<Semaphore>>>,
    turns: Arc<Semaphore>,
}

impl Default for PlanningLimits {
    fn default() -> PlanningLimits {
        PlanningLimits {
            places: Arc::new(Semaphore::new(WAITING)),
            shares: Mutex::default(),
            turns: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }
}

impl PlanningLimits {
    /// Returns how many plans are computed or wait.
    pub fn len(&self) -> usize {
        WAITING - self.places.available_permits()
    }

    /// Waits for a turn to compute.
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

    /// Takes a place among the plans that are computed or wait, within the shares of the client and its token. The
    /// place is held until the plan is made.
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
        options.stages.len(),
        options.axes.bounds.len(),
        options.expected.len(),
        options.avoid.len(),
        options.ops.len(),
    ];
    if names.iter().any(|n| *n > MOST_NAMES) {
        return bad(&format!(
            "a plan may have {MOST_NAMES} pins, stages and axes"
        ));
    }
    let bounds = options.tighter.iter().map(|axes| axes.bounds.len());
    if options.tighter.len() > MOST_TIGHTER || bounds.max().unwrap_or(0) > MOST_NAMES {
        return bad(&format!(
            "a plan may have {MOST_TIGHTER} tighter bounds of {MOST_NAMES} axes"
        ));
    }
    let artifacts = function.artifacts.iter();
    let mut checked = artifacts.map(|a| {
        a.check()
            .map_err(|e| Error::new(Code::InvalidGraph, e.to_string()))
    });
    checked.try_for_each(|artifact| artifact)
}

/// Adapts options to the workers that are left without the avoided ones: a plan for more workers than those uses them
/// all.
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

/// Returns whether a function that could not be planned may fit once more workers are connected.
fn lacks_workers(error: &Error, options: &PlanOptions) -> bool {
    match error.code {
        Code::NoWorkers | Code::ClusterTooSmall | Code::UnsupportedOp => true,
        // A pin may name a worker that is not connected.
        Code::InvalidArgument => !options.pins.is_empty(),
        _ => false,
    }
}

/// Checks a request, and plans it for the first bounds with which it fits. This is the only place where the service
/// calls the planner.
pub(crate) fn compute(
    function: Arc<Function>,
    cluster: &ClusterModel,
    mut options: PlanOptions,
) -> Result<PlannedPrograms> {
    check(&function, &options)?;
    let mut function = Arc::unwrap_or_clone(function);
    function.name = model_name(&function.name);
    for tighter in std::mem::take(&mut options.tighter) {
        match plan_apart(function.clone(), cluster, &options) {
            Err(e) if needs_less(&e) => options.axes = tighter,
            planned => return planned,
        }
    }
    plan_apart(function, cluster, &options)
}

/// Whether a function may fit with tighter bounds. Where each profile was tried, any of them may fit.
fn needs_less(e: &Error) -> bool {
    let of_memory = |e: &Error| matches!(e.code, Code::ClusterTooSmall | Code::OutOfMemory);
    of_memory(e) || e.attached.iter().any(of_memory)
}

impl Service {
    /// Waits for the workers that a restarted coordinator knows and that have not registered again yet.
    pub(super) async fn returned(&self) -> Result<()> {
        let mut population = self.population.subscribe();
        while let Some(until) = self.core.query(|core, now| core.returning(now)).await? {
            let until = self.core.instant(until);
            // Wake when another worker has registered, or when the wait is over.
            let _timer = Timer::arm(TimerKind::Return, until);
            let _ = timeout_at(until, population.changed()).await;
        }
        Ok(())
    }

    /// Drops plans of the caller until the plans of its token leave half of the token's memory to requests.
    async fn make_room(&self, caller: ConnectionId, account: &Ledger) -> Result<()> {
        let limit = account.owner().map_or(u64::MAX, |owner| owner.limit);
        while account.used_by_owner(Purpose::Plans) > limit / 2 {
            let dropped = self.core.apply(events::PlanEviction { owner: caller });
            if !dropped.await? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Charges a plan that is to be kept. If there is no room, the caller's oldest plans are dropped.
    async fn charge_plan(
        &self,
        caller: ConnectionId,
        account: &Ledger,
        plan: &Plan,
    ) -> Result<Reservation> {
        let parts = plan.parts.iter().map(|part| &part.program);
        let all = parts.chain(plan.bodies.iter().flat_map(|b| &b.programs));
        let written = all.map(HashedProgram::encoded_bytes);
        let bytes = written.sum::<u64>().saturating_mul(IN_MEMORY);
        loop {
            let refused = match account.reserve(Purpose::Plans, bytes) {
                Ok(charge) => return Ok(charge),
                Err(refused) => refused,
            };
            let dropped = self.core.apply(events::PlanEviction { owner: caller });
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
    ) -> Result<PlanAnswer> {
        self.returned().await?;
        let place = self.planning.enter(caller.id, &caller.identity.token_id)?;
        let account = self.account_of(&caller.identity);
        self.make_room(caller.id, &account).await?;
        let held = Arc::new((place, current_charge()));
        let turn = self.planning.turn().await?;
        // The hashing goes on if the call is cancelled meanwhile, and so keeps its turn, its place and its charge.
        let hashed = blocking_within(&self.world, (turn, held), move || {
            let id = function.id();
            (function, id)
        });
        let ((function, function_id), (turn, held)) = hashed.await?;
        let function_id = function_id.map_err(|e| Error::internal(e.to_string()))?;
        self.core
            .query(move |core, _| core.admit(&function_id))
            .await??;
        drop(turn);
        let me = caller.driver(driver);
        let introduction = events::Introduction {
            connection: caller.id,
            driver: me.clone(),
        };
        self.core.apply(introduction).await??;
        let model = model_name(&function.name);
        let installs = options.intent != Intent::Explain;
        let request = Request {
            client: caller.id,
            identity: &caller.identity,
            asker: Asker {
                identity: caller.identity.clone(),
                wants: Some((me, function_id)),
            },
            options,
        };
        let FittingPlan { planned, _place } = self.fitted(&request, function, held).await?;
        let id = PlanId(u64::from_le_bytes(self.world.rng.bytes()));
        let mut participants = planned.participants;
        let name = caller.identity.name.to_string();
        participants.push(Participant {
            name,
            incarnation: driver,
            address: String::new(),
        });
        let parts = planned.programs.into_iter().zip(planned.step_bytes);
        let parts = parts.zip(planned.needed);
        let parts = parts.map(|((program, step_bytes), needed)| PlanPart {
            program,
            step_bytes,
            needed,
        });
        let plan = Arc::new(Plan {
            model,
            function: function_id,
            token: caller.identity.token_id.clone(),
            parts: parts.collect(),
            participants: participants.clone(),
            bodies: planned.bodies,
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
        let kept = events::KeptPlan {
            owner: caller.id,
            id,
            plan,
            charge: Some(Arc::new(charge)),
            installs,
        };
        self.core.apply(kept).await?;
        Ok(PlanAnswer {
            plan: id,
            participants,
            driver: planned.driver,
            axes: planned.axes,
            summary: planned.summary,
            nodes: planned.nodes,
        })
    }
}

#[cfg(test)]
mod tests {
    use convoke_graph::program::Axes;

    use super::*;
    use crate::testing::{cluster, options, parse};

    #[test]
    fn bounds_are_tried_from_roomy_to_tight() {
        let f = parse(
            "param x: f32[n, 256]
             weight a: f32[256, 256]
             y = MatMul(x, a)
             result y",
        );
        let bound = |most: i64| Axes {
            bounds: vec![("n".into(), most)],
        };
        let check =
            |cluster: &ClusterModel, pinned: bool, tighter: &[i64], want: Result<i64, Code>| {
                let mut options = options(&f, WorkerCount::Auto);
                options.axes = bound(1 << 20);
                options.tighter = tighter.iter().map(|most| bound(*most)).collect();
                if pinned {
                    options.pins = vec![("*".into(), "w0".into())];
                }
                let made = compute(Arc::new(f.clone()), cluster, options);
                let made = made.map(|planned| planned.axes.bounds[0].1);
                assert_eq!(made.map_err(|e| e.code), want);
            };
        let small = cluster(1, 4 << 20);
        check(&small, false, &[1 << 19, 100, 10], Ok(100));
        check(&small, false, &[1 << 19], Err(Code::ClusterTooSmall));
        check(&small, false, &[10; 4], Err(Code::InvalidArgument));
        // The faster profile cannot run nodes that are pinned elsewhere, whatever the bounds.
        let mut mixed = cluster(2, 4 << 20);
        mixed.workers[1].profile = "fast".into();
        mixed.workers[1].device_speed.flops *= 100.0;
        check(&mixed, true, &[10], Ok(10));
    }

    #[test]
    fn one_client_and_one_token_take_no_more_than_their_shares_of_the_places() {
        let planning = PlanningLimits::default();
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
