//! Leases of a function: planned, installed, called, and replaced once a call exceeds their bounds or a worker is gone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use convoke_common::admission::call;
use convoke_common::control_event;
use convoke_common::detection::timer::{Timer, TimerKind};
use convoke_common::error::{Code, Error, Result};
use convoke_common::grant::{MOST_IN_FLIGHT, Participant};
use convoke_common::ids::Incarnation;
use convoke_common::memory::{Pool, Purpose};
use convoke_common::rpc::transport::call_context;
use convoke_common::rpc::{self, Intent, LeaseGrant, PlanAnswer};
use convoke_graph::Tensor;
use convoke_graph::dim::Bindings;
use convoke_graph::program::{Axes, FetchFrom};
use convoke_rendezvous::driver::Driver;
use convoke_rendezvous::eager::direct::{DirectFunction, Number};
use tokio::sync::{OwnedRwLockReadGuard, RwLock, oneshot};
use tokio::time::Instant;
use tracing::Instrument;

use crate::calls::attempts::{Attempts, FailedAttempt};
use crate::calls::function::{Growth, Inner};
use crate::calls::partial::CallResult;
use crate::cluster::callbacks::Progress;
use crate::cluster::coordinator::is_away;
use crate::cluster::presence::ClusterPresence;
use crate::cluster::runtime::NetThread;
use crate::eager::direct::Line;
use crate::model::builder::Phase;

/// How often the coordinator is asked for the progress of a load.
const PROGRESS_PERIOD: Duration = Duration::from_millis(200);

/// The name and the incarnation of a worker process.
pub(crate) type WorkerProcess = (String, Incarnation);

/// An installed plan. Dropping it releases the lease.
pub(crate) struct Lease {
    driver: Arc<Driver>,
    pub(crate) planned: PlanAnswer,
    /// Locked for reading by each call, so that a working lease is replaced only between calls.
    calls: Arc<RwLock<()>>,
    session: Arc<ClusterPresence>,
    net: NetThread,
    /// Whether the model was unloaded, so that its calls do not run again on another lease.
    unloaded: AtomicBool,
    released: AtomicBool,
    /// How the lease is called on the caller's own thread; `None` inside where that is never possible.
    direct: OnceLock<Option<DirectCall>>,
}

/// A function that runs on the caller's own thread, and the numbers that its recv slots are fed with.
pub(crate) struct DirectCall {
    pub(crate) function: Arc<dyn DirectFunction>,
    pub(crate) numbers: Vec<Number>,
}

/// A lease, and the permit that keeps it from being replaced during a call.
pub(crate) struct CallPermit {
    pub(crate) lease: Arc<Lease>,
    _call: Option<OwnedRwLockReadGuard<()>>,
}

impl CallPermit {
    /// Takes a permit for a call. The caller holds the lock `Inner::loading`, so nobody replaces the lease, and the
    /// permit is granted at once.
    fn of(lease: &Arc<Lease>) -> CallPermit {
        CallPermit {
            lease: lease.clone(),
            _call: lease.calls.clone().try_read_owned().ok(),
        }
    }
}

pub(crate) fn named(p: &Participant) -> WorkerProcess {
    (p.name.clone(), p.incarnation)
}

/// The workers of a plan: all participants but the last, which is the driver.
fn workers(planned: &PlanAnswer) -> &[Participant] {
    &planned.participants[..planned.participants.len().saturating_sub(1)]
}

impl Lease {
    /// Runs one step.
    pub(crate) async fn step<R: CallResult>(
        &self,
        inputs: Vec<Tensor>,
        bindings: &Bindings,
        deadline: Option<Instant>,
    ) -> Result<Vec<R>, FailedAttempt> {
        let axes = self.planned.axes.bounds.iter();
        let sizes = axes.map(|(s, _)| bindings.get(s).copied().unwrap_or(1));
        let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        let done = R::step(&self.driver, inputs, sizes.collect(), left).await;
        done.map_err(|error| match self.unloaded.load(Ordering::Relaxed) {
            true if error.code == Code::LeaseRetired => {
                Error::new(Code::Cancelled, error.message).into()
            }
            true => error.into(),
            false => FailedAttempt::of_step(error, self.unusable()),
        })
    }

    /// Returns how the lease is called on the caller's thread. It can be only where `worker`, which `line` leads to, is
    /// its only worker and computes all results.
    pub(crate) fn direct(&self, worker: &Participant, line: &Line) -> Option<&DirectCall> {
        let find = || {
            let [only] = workers(&self.planned) else {
                return None;
            };
            let feeds = self.planned.driver.feeds.iter().zip(0u64..);
            let numbers = feeds.flat_map(|(feed, number)| {
                let slots = feed.to.iter().map(|(_, slot)| *slot);
                slots.map(move |slot| (slot, Tensor::scalar(number)))
            });
            let fetches = &mut self.planned.driver.fetches.iter();
            let made = fetches.all(|f| matches!(f.from, FetchFrom::Worker { .. }));
            let function = line
                .function(self.driver.lease())
                .filter(|_| made && only == worker)?;
            Some(DirectCall {
                function,
                numbers: numbers.collect(),
            })
        };
        self.direct.get_or_init(find).as_ref()
    }

    /// The names of the lease's workers.
    pub(crate) fn workers(&self) -> Vec<String> {
        let names = workers(&self.planned).iter().map(|p| p.name.clone());
        names.collect()
    }

    /// The workers that a plan which replaces this lease should not use.
    pub(crate) fn unusable(&self) -> Vec<WorkerProcess> {
        self.driver.unusable().iter().map(named).collect()
    }

    pub(crate) fn holds(&self, bindings: &Bindings) -> bool {
        let within = |(s, b): &(Arc<str>, i64)| bindings.get(s).is_none_or(|v| v <= b);
        self.driver.broken().is_none() && self.planned.axes.bounds.iter().all(within)
    }

    /// Releases the lease because the model is unloaded: calls that this ends do not run again.
    pub(crate) async fn unload(&self) -> Result<()> {
        self.unloaded.store(true, Ordering::Relaxed);
        self.release().await
    }

    /// Releases the lease, so that its memory can be reserved for another one.
    async fn release(&self) -> Result<()> {
        let released = release(&self.session, &self.driver).await;
        self.released.store(true, Ordering::Relaxed);
        released
    }

    /// Releases the lease once no step of it can succeed any more, even where nobody calls it again, so that the
    /// workers that are left get its memory back.
    fn release_when_broken(&self) {
        let (session, driver) = (self.session.clone(), Arc::downgrade(&self.driver));
        self.net.detach(async move {
            let broken = match driver.upgrade() {
                Some(driver) => driver.broken_later(),
                None => return,
            };
            broken.await;
            if let Some(driver) = driver.upgrade() {
                // Quiescing comes first, since steps in flight still wait for the cause.
                driver.quiesce().await;
                drop(release(&session, &driver).await);
            }
        });
    }
}

/// Ends a lease. Its steps are over at every participant, or fenced off with a participant that did not end them,
/// before the workers drop the lease. The workers hear of the release from this driver, and from the coordinator, which
/// knows who has yet to confirm.
async fn release(session: &ClusterPresence, driver: &Driver) -> Result<()> {
    driver.close();
    driver.quiesce().await;
    driver.release();
    session.coordinator.release(driver.lease()).await
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.driver.close();
        if self.released.load(Ordering::Relaxed) {
            return;
        }
        let (session, driver) = (self.session.clone(), self.driver.clone());
        self.net
            .detach(async move { drop(release(&session, &driver).await) });
    }
}

impl Inner {
    /// Returns the lease with a permit to call it. Replaces the lease first where these sizes exceed its bounds or a
    /// worker of it is gone.
    pub(crate) async fn leased(
        &self,
        bindings: &Bindings,
        avoid: &[WorkerProcess],
        deadline: Option<Instant>,
    ) -> Result<CallPermit, FailedAttempt> {
        let _turn = self.loading.lock().await;
        let mut avoid = avoid.to_vec();
        let mut former = Axes::default();
        if let Some(old) = self.lease() {
            if old.holds(bindings) {
                return Ok(CallPermit::of(&old));
            }
            if old.driver.broken().is_none() {
                // Running calls that fit the old bounds end undisturbed.
                drop(old.calls.write().await);
            }
            // The old lease's memory is freed before memory is asked for again.
            let released = old.release().await;
            avoid.extend(old.unusable());
            if is_away(released.as_ref().err()) {
                // Without the coordinator no other lease can be made.
                released?;
            }
            self.put_lease(None);
            former = old.planned.axes.clone();
        }
        let lease = self.new_lease(bindings, &former, avoid, deadline);
        let lease = lease.await?;
        self.put_lease(Some(lease.clone()));
        Ok(CallPermit::of(&lease))
    }

    /// Like [`Inner::leased`], but returns `None` where the lease would have to be made or waited for.
    fn holding(&self, bindings: &Bindings) -> Option<CallPermit> {
        let _turn = self.loading.try_lock().ok()?;
        let lease = self.lease().filter(|l| l.holds(bindings))?;
        Some(CallPermit::of(&lease))
    }

    /// Plans for axes of these sizes, with as much room to grow as fits, and where it fits with the `former` bounds of axes:
    /// calls whose axes are long in turns need not be planned in turns. Nothing is installed.
    pub(crate) async fn planned(
        &self,
        bindings: &Bindings,
        former: &Axes,
        avoid: Vec<WorkerProcess>,
        deadline: Option<Instant>,
        intent: Intent,
    ) -> Result<PlanAnswer> {
        self.progress.note(Phase::Planning);
        let mut options = self.options.clone();
        options.intent = intent;
        let mut bounds: Vec<Axes> = Vec::with_capacity(Growth::ALL.len() + 1);
        let none = Axes::default();
        let first = [(Growth::ALL[0], former)];
        for (growth, former) in first.into_iter().chain(Growth::ALL.map(|g| (g, &none))) {
            let own = self.bounds_for(bindings, growth, former).into_iter();
            let bounds_of = own.map(|(s, b)| (s.into(), b)).collect();
            let axes = Axes { bounds: bounds_of };
            if !bounds.contains(&axes) {
                bounds.push(axes);
            }
        }
        options.tighter = bounds.split_off(1);
        options.axes = bounds.pop().unwrap_or_default();
        let expected = bindings.iter().map(|(s, size)| (s.to_string(), *size));
        options.expected = expected.collect();
        options.avoid = avoid;
        options.profiles = self.profiles();
        let me = self.session.hub.me.incarnation;
        let ask = self.session.coordinator.ask_apart(deadline, |client| {
            let (function, options) = (self.function.clone(), options.clone());
            async move {
                let wait = match intent {
                    Intent::InstallInTurn { wait_ms } => Duration::from_millis(wait_ms),
                    Intent::Explain | Intent::Install => Duration::ZERO,
                };
                let context = call_context(rpc::PLAN_BOUND + wait);
                let answer = client.plan(context, function, options, me);
                rpc::answer(None, answer.await)
            }
        });
        ask.await
    }

    /// Plans for an install. Where the function does not fit the memory that is free, waits until memory is released,
    /// as long as the load may.
    async fn planned_in_turn(
        &self,
        bindings: &Bindings,
        former: &Axes,
        avoid: Vec<WorkerProcess>,
        deadline: Option<Instant>,
    ) -> Result<PlanAnswer> {
        let Some(most) = self.wait else {
            return self
                .planned(bindings, former, avoid, deadline, Intent::Install)
                .await;
        };
        let in_turn = |wait_ms| Intent::InstallInTurn { wait_ms };
        let at_once = self.planned(bindings, former, avoid.clone(), deadline, in_turn(0));
        let cause = match at_once.await {
            Err(e) if e.code == Code::OutOfMemory => e,
            planned => return planned,
        };
        let most = most.min(rpc::QUEUE_BOUND);
        self.progress.note(Phase::Waiting { cause, most });
        let wait_ms = u64::try_from(most.as_millis()).unwrap_or(u64::MAX).max(1);
        let waited = self.planned(bindings, former, avoid, deadline, in_turn(wait_ms));
        waited.await.map_err(|mut e| {
            if e.code == Code::OutOfMemory {
                e.message = format!("waited {most:?} for memory: {}", e.message);
            }
            e
        })
    }

    /// Plans and installs a lease for axes of these sizes.
    async fn new_lease(
        &self,
        bindings: &Bindings,
        former: &Axes,
        avoid: Vec<WorkerProcess>,
        deadline: Option<Instant>,
    ) -> Result<Arc<Lease>, FailedAttempt> {
        let mut planned = self
            .planned_in_turn(bindings, former, avoid.clone(), deadline)
            .await?;
        let mut established = self.establish(&planned, deadline).await;
        if established.as_ref().is_err_and(forgotten) {
            // The coordinator went away during the install: nothing is installed, and a coordinator that returns knows
            // no plans.
            planned = self
                .planned_in_turn(bindings, former, avoid, deadline)
                .await?;
            established = self.establish(&planned, deadline).await;
        }
        if established.is_ok() {
            self.note_profile(&planned.summary);
        }
        established.map_err(|error| {
            let site = error.site.as_ref().and_then(|s| s.worker.as_ref());
            let about = workers(&planned).iter().find(|p| Some(&p.name) == site);
            FailedAttempt::of_install(error, about.map(named))
        })
    }

    /// Installs a plan and becomes its driver, in a task of its own: where the caller goes away, a lease that was
    /// granted by then is released.
    async fn establish(
        &self,
        planned: &PlanAnswer,
        deadline: Option<Instant>,
    ) -> Result<Arc<Lease>> {
        planned.check()?;
        let install = Install {
            deadline,
            planned: planned.clone(),
            session: self.session.clone(),
            net: self.net.clone(),
            progress: self.progress.clone(),
        };
        let (mut hand_over, taken) = oneshot::channel();
        let task = async move {
            let established = tokio::select! {
                biased;
                () = hand_over.closed() => None,
                established = install.establish() => Some(established),
            };
            match established {
                // A lease that nobody takes is dropped, and so released.
                Some(established) => drop(hand_over.send(established)),
                None => install.give_up().await,
            }
        };
        self.net.detach(task.in_current_span());
        let ended = |_| Error::new(Code::Cancelled, "the client ended");
        taken.await.map_err(ended)?
    }

    /// Returns a lease for these sizes with a permit to call it. Plans again where a worker is lost meanwhile, as often
    /// as `attempts` allows.
    pub(crate) async fn ready(
        &self,
        bindings: &Bindings,
        attempts: &mut Attempts,
    ) -> Result<CallPermit> {
        let held = match self.holding(bindings) {
            Some(held) => held,
            // Boxed, since the future is large, and every call would carry it.
            None => Box::pin(self.await_lease(bindings, attempts)).await?,
        };
        if let Some(rerun) = attempts.rerun(|| held.lease.workers()) {
            tracing::warn!(target: "convoke::rerun", "{rerun}");
            self.progress.note(Phase::Rerun(rerun));
        }
        Ok(held)
    }

    async fn await_lease(
        &self,
        bindings: &Bindings,
        attempts: &mut Attempts,
    ) -> Result<CallPermit> {
        let deadline = attempts.deadline();
        let _timer = deadline.map(|at| Timer::arm(TimerKind::Deadline, at));
        loop {
            let leased = async {
                tokio::select! {
                    biased;
                    leased = self.leased(bindings, attempts.avoid(), deadline) => leased,
                    () = self.unloading.notified() => {
                        let msg = "the model was unloaded while it was planned and loaded";
                        Err(Error::new(Code::Cancelled, msg).into())
                    }
                }
            };
            let leased = match deadline {
                None => leased.await,
                Some(at) => tokio::time::timeout_at(at, leased).await.unwrap_or_else(|_| {
                    let msg = "the call did not end by its deadline: the model was still planned and loaded";
                    Err(Error::new(Code::DeadlineExceeded, msg).into())
                }),
            };
            match leased {
                Ok(held) => return Ok(held),
                Err(failed) => attempts.failed(failed)?,
            }
        }
    }
}

/// A plan that is being installed.
struct Install {
    /// The deadline of the call that needs the lease, if it has one.
    deadline: Option<Instant>,
    planned: PlanAnswer,
    session: Arc<ClusterPresence>,
    net: NetThread,
    progress: Progress,
}

impl Install {
    async fn establish(&self) -> Result<Arc<Lease>> {
        let (session, planned) = (&self.session, &self.planned);
        // The workers are linked before the install: they ask this client for weights over these connections.
        let links = session.links(workers(planned)).await?;
        let pool = Pool::new(&session.ledger, Purpose::Leases, 0)?;
        let leased = self.installed().await?;
        let me = &*session.hub.me.name;
        control_event!("granted", lease = leased.lease.0, name = me);
        session.coordinator.holds(leased.lease);
        let driver = Driver::new(
            &session.world,
            session.hub.clone(),
            leased.lease,
            planned.participants.clone(),
            planned.driver.clone(),
            planned.axes.clone(),
            leased.in_flight.min(MOST_IN_FLIGHT),
            links,
            pool,
        );
        let lease = Lease {
            driver,
            planned: planned.clone(),
            calls: Arc::default(),
            session: session.clone(),
            net: self.net.clone(),
            unloaded: AtomicBool::new(false),
            released: AtomicBool::new(false),
            direct: OnceLock::new(),
        };
        lease.release_when_broken();
        Ok(Arc::new(lease))
    }

    async fn installed(&self) -> Result<LeaseGrant> {
        let client = self.session.coordinator.client(self.deadline).await?;
        let plan = self.planned.plan;
        let install = client.install(call_context(rpc::INSTALL_BOUND), plan);
        tokio::pin!(install);
        loop {
            tokio::select! {
                biased;
                answer = &mut install => return rpc::answer(None, answer),
                () = tokio::time::sleep(PROGRESS_PERIOD) => {
                    if let Ok(Ok(p)) = client.progress(call(), plan).await {
                        self.progress.note(Phase::Loading { done: p.done, total: p.total });
                    }
                }
            }
        }
    }

    /// Abandons the plan. Its lease may have been granted already, with the answer still on its way. A coordinator that
    /// is away hears on its return which leases this client holds.
    async fn give_up(&self) {
        if let Ok(client) = self.session.coordinator.client(None).await {
            drop(client.abandon(call(), self.planned.plan).await);
        }
    }
}

/// Whether an install failed because the coordinator that planned is gone: no coordinator answered, or another one,
/// which does not know the plan.
fn forgotten(e: &Error) -> bool {
    is_away(Some(e)) || e.code == Code::NotFound && e.site.is_none()
}
