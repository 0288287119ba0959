//! Finds a plan that fits: waits for workers that may return, and for memory that is being released.
//!
//! ```text
//! look at what is free -> plan -> fits ─────────────────────────────────────────> the plan
//!   ^                      '-> does not, and would not if nothing were taken ──> wait for lost workers, or fail
//!   '---- wait for memory <─── does not, but would if nothing were taken
//! ```
//!
//! A request may have several bounds of its axes, the roomiest first: each look takes the first with which the function
//! fits. Every request that fits with none of them waits [`SETTLE`] for memory that is just being given back. One that
//! queues waits for as long as it asked, behind those that came before it.

use std::sync::Arc;
use std::time::Duration;

use convoke_common::detection::timer::{Timer, TimerKind};
use convoke_common::identity::PeerIdentity;
use convoke_common::ids::Incarnation;
use convoke_common::rpc::transport::Charge;
use convoke_common::rpc::{Intent, PlanOptions, QUEUE_BOUND, RETURN_BOUND};
use convoke_common::{Code, Error, Result};
use convoke_graph::graph::Function;
use tokio::time::{Instant, timeout_at};

use super::compute::compute;
use super::limits::RequestGuard;
use super::options::{for_what_is_left, lacks_workers};
use super::profiles::permitted;
use super::queue::QueuePlace;
use crate::blocking::blocking_within;
use crate::membership::{Asker, ConnectionId};
use crate::place::{ClusterModel, MemoryModel, no_room};
use crate::plan::PlannedPrograms;
use crate::service::Service;

/// How long a request that does not queue waits for memory that is being given back: tensors that a client dropped a
/// moment before, or a lease whose workers have yet to hear of its end.
const SETTLE: Duration = Duration::from_secs(1);

/// How often workers are asked for memory that they freed by themselves, as that of handles: at first, and later on.
const PERIODS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// A request for a plan.
pub(super) struct Request<'a> {
    pub client: ConnectionId,
    pub identity: &'a PeerIdentity,
    pub asker: Asker,
    pub options: PlanOptions,
}

/// A plan that fits, and the place that its request has in the queue. The place is kept until the plan is stored.
pub(super) struct FittingPlan {
    pub planned: PlannedPrograms,
    pub _place: Option<QueuePlace>,
}

/// The reason why a function could not be planned yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lack {
    /// It does not fit what is free, but would if nothing were taken.
    Room,
    /// Too many plans are being made.
    Turn,
    /// It does not fit the workers that are there.
    Workers,
}

/// The outcome of one look at the cluster.
type Outcome = Result<PlannedPrograms, (Lack, Error)>;

/// The free memory of each worker, and the number of its constants: those of its host, then those of its device.
type Free = Vec<(String, Incarnation, Vec<([u64; 2], [usize; 2])>)>;

fn free_of(cluster: &ClusterModel) -> Free {
    let of = |m: &MemoryModel| {
        let constants = [m.constants.all.len(), m.constants.own.len()];
        ([m.free, m.budget], constants)
    };
    let workers = cluster.workers.iter();
    workers
        .map(|w| {
            (
                w.name.clone(),
                w.incarnation,
                w.memories().map(of).collect(),
            )
        })
        .collect()
}

impl Service {
    /// Plans `function` for the connected workers except those that the caller avoids. If these do not suffice and
    /// others may return soon, waits for those, at most [`RETURN_BOUND`], and plans again as they come. After that it
    /// also uses avoided workers that are still connected: what separated them from the caller may be over. If the
    /// function does not fit what is free, waits for memory.
    pub(super) async fn fitted(
        &self,
        request: &Request<'_>,
        mut function: Arc<Function>,
        held: Arc<RequestGuard>,
    ) -> Result<FittingPlan> {
        let begun = Instant::now();
        let patience = begun + RETURN_BOUND;
        let (charge, mut held) = (held.1.clone(), Some(held));
        let (place, room_until) = self.in_turn(request, begun, &mut held).await?;
        let (mut population, mut freed) = (self.population.subscribe(), self.freed.subscribe());
        let mut tried: Option<(Free, Error)> = None;
        loop {
            // A worker that registers from here on, or memory that is freed, ends the wait below.
            population.mark_unchanged();
            freed.mark_unchanged();
            let (cluster, absent) = self.looked(request, patience).await?;
            let free = free_of(&cluster);
            let again = absent.is_some() || cluster.is_taken() || !request.options.avoid.is_empty();
            let guard = match &held {
                Some(held) => Ok(held.clone()),
                None => self.guard(request, &charge),
            };
            let (lack, error) = match (&tried, guard) {
                // The free memory has not changed since the last try.
                (Some((before, error)), _) if *before == free => (Lack::Room, error.clone()),
                // Too many plans are being made. Only a request that queued comes here.
                (_, Err(busy)) => (Lack::Turn, busy),
                (_, Ok(held)) => {
                    // Planning consumes the function, and a copy is expensive: make one only if it may be needed.
                    let kept = again.then(|| function.clone());
                    let planned = self.planned(request, function, &cluster, &held, again);
                    let (lack, error) = match planned.await? {
                        Ok(planned) => {
                            return Ok(FittingPlan {
                                planned,
                                _place: place,
                            });
                        }
                        Err(misfit) => misfit,
                    };
                    match kept {
                        Some(kept) => function = kept,
                        None => return Err(error),
                    }
                    tracing::info!(%error, "a plan waits for workers, or for memory");
                    (lack, error)
                }
            };
            let until = match lack {
                Lack::Room => absent.max(Some(room_until)),
                Lack::Turn => Some(room_until),
                Lack::Workers => absent,
            };
            if lack == Lack::Room {
                tried = Some((free, error.clone()));
            }
            let now = Instant::now();
            let Some(until) = until.filter(|until| *until > now) else {
                if request.options.avoid.is_empty() {
                    return Err(error);
                }
                let held = match held {
                    Some(held) => held,
                    None => self.guard(request, &charge)?,
                };
                let planned = self.with_avoided(request, function, held).await;
                let planned = planned.map_err(|_| error)?;
                return Ok(FittingPlan {
                    planned,
                    _place: place,
                });
            };
            let period = match now < begun + SETTLE {
                true => PERIODS.0,
                false => PERIODS.1,
            };
            let news = async {
                tokio::select! {
                    biased;
                    _ = population.changed() => {}
                    _ = freed.changed() => {}
                }
            };
            let awaited = absent.filter(|_| lack != Lack::Turn);
            let _timer = awaited.map(|until| Timer::arm(TimerKind::Return, until));
            // Look again when something has changed, or may have.
            let _ = timeout_at(until.min(now + period), news).await;
        }
    }

    /// Returns the workers that the caller does not avoid, with what is free there, and until when others may return.
    async fn looked(
        &self,
        request: &Request<'_>,
        patience: Instant,
    ) -> Result<(ClusterModel, Option<Instant>)> {
        let avoid = request.options.avoid.clone();
        self.ask_memory(&avoid).await?;
        let (asker, patience) = (request.asker.clone(), self.core.moment(patience));
        let look = self.core.query(move |core, now| {
            let cluster = core.model(now, &avoid, &asker);
            (cluster, core.absent(now, patience, &avoid))
        });
        let (cluster, absent) = look.await?;
        Ok((cluster, absent.map(|until| self.core.instant(until))))
    }

    /// Waits for the turn of a request that queues. Returns its place, and until when it waits for memory.
    async fn in_turn(
        &self,
        request: &Request<'_>,
        begun: Instant,
        held: &mut Option<Arc<RequestGuard>>,
    ) -> Result<(Option<QueuePlace>, Instant)> {
        let settled = begun + SETTLE;
        let wait = match request.options.intent {
            Intent::Explain => return Ok((None, begun)),
            Intent::Install => return Ok((None, settled)),
            Intent::InstallInTurn { wait_ms } => Duration::from_millis(wait_ms).min(QUEUE_BOUND),
        };
        if wait.is_zero() {
            return match self.queue.len() {
                0 => Ok((None, settled)),
                waiting => Err(behind(waiting)),
            };
        }
        // A request that waits takes no place of those that are planned.
        drop(held.take());
        let place = self
            .queue
            .enter(request.client, &request.identity.token_id)?;
        let until = (begun + wait).max(settled);
        if timeout_at(until, place.first()).await.is_err() {
            return Err(behind(place.ahead()));
        }
        Ok((Some(place), until))
    }

    /// Takes a place among the plans that are made, for a request that has come to the front of the queue.
    fn guard(&self, request: &Request<'_>, charge: &Charge) -> Result<Arc<RequestGuard>> {
        let place = self
            .planning
            .enter(request.client, &request.identity.token_id)?;
        Ok(Arc::new((place, charge.clone())))
    }

    /// Plans a function once for these workers. `again` says whether the caller would try once more.
    async fn planned(
        &self,
        request: &Request<'_>,
        function: Arc<Function>,
        cluster: &ClusterModel,
        held: &Arc<RequestGuard>,
        again: bool,
    ) -> Result<Outcome> {
        let options = &request.options;
        let kept = again.then(|| function.clone());
        let planned = self.computed(function, cluster.clone(), options.clone(), held.clone());
        let (error, kept) = match (planned.await, kept) {
            (Ok(planned), _) => return Ok(Ok(planned)),
            (Err(error), Some(kept)) if lacks_workers(&error, options) => (error, kept),
            (Err(error), _) => return Err(error),
        };
        if !cluster.is_taken() {
            return Ok(Err((Lack::Workers, error)));
        }
        let mut least = options.clone();
        // Plan for an idle cluster with the tightest bounds, to learn how much memory is missing at least. A plan that
        // is only explained takes the first bounds that an idle cluster has room for.
        if options.intent != Intent::Explain
            && let Some(tightest) = std::mem::take(&mut least.tighter).pop()
        {
            least.axes = tightest;
        }
        let idle = self.computed(kept, cluster.idle(), least, held.clone());
        let mut idle = match idle.await {
            Ok(idle) => idle,
            // The error says how much memory is missing compared to the whole workers.
            Err(error) => return Ok(Err((Lack::Workers, error))),
        };
        let needs = idle.participants.iter().zip(&idle.needed);
        let needs = needs.map(|(p, n)| (&*p.name, n.host.all, n.device.all));
        let full = no_room(needs, cluster);
        if options.intent != Intent::Explain {
            return Ok(Err((Lack::Room, full)));
        }
        for part in &mut idle.summary.parts {
            let Some(worker) = cluster.workers.iter().find(|w| w.name == part.name) else {
                continue;
            };
            part.free = worker.host.usable();
            let own = worker.device_memory.as_ref();
            part.device_free = own.map_or(part.free, MemoryModel::usable);
        }
        idle.summary.warnings.push(full.message);
        Ok(Ok(idle))
    }

    /// Plans a function for all workers, those that the caller avoids as well.
    async fn with_avoided(
        &self,
        request: &Request<'_>,
        function: Arc<Function>,
        held: Arc<RequestGuard>,
    ) -> Result<PlannedPrograms> {
        let asker = request.asker.clone();
        let model = self
            .core
            .query(move |core, now| core.model(now, &[], &asker));
        let (all, options) = (model.await?, request.options.clone());
        self.computed(function, all, options, held).await
    }

    /// Plans `function` for these workers, as soon as it is its turn. `held`, the memory charged for the request, is
    /// kept until the computation ends, even if the caller stopped waiting.
    async fn computed(
        &self,
        function: Arc<Function>,
        cluster: ClusterModel,
        options: PlanOptions,
        held: Arc<RequestGuard>,
    ) -> Result<PlannedPrograms> {
        let turn = self.planning.turn().await?;
        let cluster = permitted(&cluster, &options.profiles)?.into_owned();
        let options = for_what_is_left(options, &cluster)?;
        let planned = blocking_within(&self.world, (held, turn), move || {
            compute(function, &cluster, options)
        });
        planned.await?.0
    }
}

/// The error of a request that would have to wait behind this many others.
fn behind(waiting: usize) -> Error {
    let loads = match waiting {
        1 => "1 load waits".to_owned(),
        n => format!("{n} loads wait"),
    };
    let msg = format!("{loads} for memory before this one");
    Error::new(Code::OutOfMemory, msg)
        .advise("wait longer, start more workers, or unload models that are no longer used")
}
