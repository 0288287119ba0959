//! A model's lease: planned, installed, called, and replaced once its sizes or its workers no longer do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use convoke_common::Tensor;
use convoke_common::admission::call;
use convoke_common::dim::Bindings;
use convoke_common::error::{Code, Error, Result};
use convoke_common::ids::Incarnation;
use convoke_common::memory::{Account, Pool};
use convoke_common::program::{FetchFrom, MOST_IN_FLIGHT, Participant};
use convoke_common::rpc::{self, Leased, Planned};
use convoke_common::rpc_transport::call_context;
use convoke_rendezvous::driver::Driver;
use convoke_rendezvous::eager::direct::{DirectFunction, Number};
use tokio::sync::{OwnedRwLockReadGuard, RwLock, oneshot};
use tokio::time::Instant;
use tracing::Instrument;

use crate::attempts::{Attempts, Failed};
use crate::builder::Phase;
use crate::callbacks::Progress;
use crate::coordinator::is_away;
use crate::eager::direct::Line;
use crate::function::Inner;
use crate::partial::Given;
use crate::runtime::NetThread;
use crate::session::Session;

/// How often progress of a loading model is asked for.
const PROGRESS_PERIOD: Duration = Duration::from_millis(200);

/// A worker process.
pub(crate) type Named = (String, Incarnation);

/// An installed plan. Dropping it gives back what it leased.
pub(crate) struct Lease {
    driver: Arc<Driver>,
    pub(crate) planned: Planned,
    /// Held for reading by each call, so that a lease is replaced between calls.
    calls: Arc<RwLock<()>>,
    session: Arc<Session>,
    net: NetThread,
    /// The model was unloaded: its calls are not to run elsewhere.
    unloaded: AtomicBool,
    released: AtomicBool,
    /// How it is called on the caller's thread, and what its step is fed with then; none where it never is.
    direct: OnceLock<Option<Direct>>,
}

/// See [`Lease::direct`].
pub(crate) struct Direct {
    pub(crate) function: Arc<dyn DirectFunction>,
    pub(crate) numbers: Vec<Number>,
}

/// A lease and the right to call it.
pub(crate) struct Held {
    pub(crate) lease: Arc<Lease>,
    _call: Option<OwnedRwLockReadGuard<()>>,
}

impl Held {
    /// To be called in the turn of who may replace the lease: then it is granted at once.
    fn of(lease: &Arc<Lease>) -> Held {
        Held {
            lease: lease.clone(),
            _call: lease.calls.clone().try_read_owned().ok(),
        }
    }
}

pub(crate) fn named(p: &Participant) -> Named {
    (p.name.clone(), p.incarnation)
}

/// The workers of a plan.
fn workers(planned: &Planned) -> &[Participant] {
    &planned.participants[..planned.participants.len().saturating_sub(1)]
}

impl Lease {
    /// Runs one step.
    pub(crate) async fn step<R: Given>(
        &self,
        inputs: Vec<Tensor>,
        bindings: &Bindings,
        deadline: Option<Instant>,
    ) -> Result<Vec<R>, Failed> {
        let axes = self.planned.axes.bounds.iter();
        let sizes = axes.map(|(s, _)| bindings.get(s).copied().unwrap_or(1));
        let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        let done = R::step(&self.driver, inputs, sizes.collect(), left).await;
        done.map_err(|error| match self.unloaded.load(Ordering::Relaxed) {
            true if error.code == Code::LeaseRetired => {
                Error::new(Code::Cancelled, error.message).into()
            }
            true => error.into(),
            false => Failed::of_step(error, self.unusable()),
        })
    }

    /// How it is called on the caller's thread where it is of one worker, which this is the way to.
    pub(crate) fn direct(&self, worker: &Participant, line: &Line) -> Option<&Direct> {
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
            Some(Direct {
                function,
                numbers: numbers.collect(),
            })
        };
        self.direct.get_or_init(find).as_ref()
    }

    /// The names of its workers.
    pub(crate) fn workers(&self) -> Vec<String> {
        let names = workers(&self.planned).iter().map(|p| p.name.clone());
        names.collect()
    }

    /// Whom a plan in its place should not use.
    fn unusable(&self) -> Vec<Named> {
        self.driver.unusable().iter().map(named).collect()
    }

    pub(crate) fn holds(&self, bindings: &Bindings) -> bool {
        let within = |(s, b): &(Arc<str>, i64)| bindings.get(s).is_none_or(|v| v <= b);
        self.driver.broken().is_none() && self.planned.axes.bounds.iter().all(within)
    }

    /// Frees it for good.
    pub(crate) async fn unload(&self) -> Result<()> {
        self.unloaded.store(true, Ordering::Relaxed);
        self.release().await
    }

    /// Frees it, so that what it held can be had by another.
    async fn release(&self) -> Result<()> {
        let released = release(&self.session, &self.driver).await;
        self.released.store(true, Ordering::Relaxed);
        released
    }

    /// Frees it once no step of it can succeed any more, also where nobody calls it again: the workers that are left have
    /// its memory back.
    fn release_when_broken(&self) {
        let (session, driver) = (self.session.clone(), Arc::downgrade(&self.driver));
        self.net.detach(async move {
            let broken = match driver.upgrade() {
                Some(driver) => driver.broken_later(),
                None => return,
            };
            broken.await;
            if let Some(driver) = driver.upgrade() {
                // First, since steps in flight still wait for the cause.
                driver.quiesce().await;
                drop(release(&session, &driver).await);
            }
        });
    }
}

/// Ends a lease: its steps are over everywhere, or fenced off with whoever did not end them, before its workers drop it.
/// They hear of it from here, and from the coordinator, which knows who has yet to confirm.
async fn release(session: &Session, driver: &Driver) -> Result<()> {
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
    /// The lease, replaced where these sizes exceed its bounds or a worker of it is gone; and the right to call it.
    pub(crate) async fn leased(
        &self,
        bindings: &Bindings,
        avoid: &[Named],
        deadline: Option<Instant>,
    ) -> Result<Held, Failed> {
        let _turn = self.loading.lock().await;
        let mut avoid = avoid.to_vec();
        if let Some(old) = self.lease() {
            if old.holds(bindings) {
                return Ok(Held::of(&old));
            }
            if old.driver.broken().is_none() {
                // Calls that fit the old bounds end undisturbed.
                drop(old.calls.write().await);
            }
            // Its memory is free before any is asked for again.
            let released = old.release().await;
            avoid.extend(old.unusable());
            if is_away(released.as_ref().err()) {
                // Without the coordinator there is no other lease.
                released?;
            }
            self.put_lease(None);
        }
        let lease = self.new_lease(bindings, avoid, deadline).await?;
        self.put_lease(Some(lease.clone()));
        Ok(Held::of(&lease))
    }

    /// [`Inner::leased`], where the lease is there and will do.
    fn holding(&self, bindings: &Bindings) -> Option<Held> {
        let _turn = self.loading.try_lock().ok()?;
        let lease = self.lease().filter(|l| l.holds(bindings))?;
        Some(Held::of(&lease))
    }

    /// Plans for axes of these sizes; nothing is installed.
    pub(crate) async fn planned(
        &self,
        bindings: &Bindings,
        avoid: Vec<Named>,
        deadline: Option<Instant>,
    ) -> Result<Planned> {
        self.progress.note(Phase::Planning);
        let mut options = self.options.clone();
        let bounds = self.bounds_for(bindings).into_iter();
        options.axes.bounds = bounds.map(|(s, b)| (s.into(), b)).collect();
        let expected = bindings.iter().map(|(s, size)| (s.to_string(), *size));
        options.expected = expected.collect();
        options.avoid = avoid;
        let me = self.session.hub.me.incarnation;
        let ask = self.session.coordinator.ask_apart(deadline, |client| {
            let (function, options) = (self.function.clone(), options.clone());
            async move {
                let context = call_context(rpc::PLAN_BOUND);
                let answer = client.plan(context, function, options, me);
                rpc::answer("the coordinator", answer.await)
            }
        });
        ask.await
    }

    /// Plans and installs for axes of these sizes.
    async fn new_lease(
        &self,
        bindings: &Bindings,
        avoid: Vec<Named>,
        deadline: Option<Instant>,
    ) -> Result<Arc<Lease>, Failed> {
        let mut planned = self.planned(bindings, avoid.clone(), deadline).await?;
        let mut established = self.establish(&planned, deadline).await;
        if established.as_ref().is_err_and(forgotten) {
            // The coordinator went away over it: nothing is installed, and one that returns knows no plans.
            planned = self.planned(bindings, avoid, deadline).await?;
            established = self.establish(&planned, deadline).await;
        }
        established.map_err(|error| {
            let site = error.site.as_ref().and_then(|s| s.worker.as_ref());
            let about = workers(&planned).iter().find(|p| Some(&p.name) == site);
            Failed::of_install(error, about.map(named))
        })
    }

    /// Installs a plan and takes the driver's place in it, in a task of its own: where the caller goes away, whatever was
    /// granted by then is given back.
    async fn establish(&self, planned: &Planned, deadline: Option<Instant>) -> Result<Arc<Lease>> {
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

    /// A lease for these sizes; planned again where a worker is lost meanwhile, as often as the call may.
    pub(crate) async fn ready(&self, bindings: &Bindings, attempts: &mut Attempts) -> Result<Held> {
        let held = match self.holding(bindings) {
            Some(held) => held,
            // Apart, since it is large, and every call would carry it.
            None => Box::pin(self.await_lease(bindings, attempts)).await?,
        };
        if let Some(rerun) = attempts.rerun(|| held.lease.workers()) {
            tracing::warn!(target: "convoke::rerun", "{rerun}");
            self.progress.note(Phase::Rerun(rerun));
        }
        Ok(held)
    }

    async fn await_lease(&self, bindings: &Bindings, attempts: &mut Attempts) -> Result<Held> {
        loop {
            let leased = async {
                tokio::select! {
                    biased;
                    leased = self.leased(bindings, attempts.avoid(), attempts.deadline()) => leased,
                    () = self.unloading.notified() => {
                        let msg = "the model was unloaded while it was planned and loaded";
                        Err(Error::new(Code::Cancelled, msg).into())
                    }
                }
            };
            let leased = match attempts.deadline() {
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

/// A plan on its way to a lease.
struct Install {
    /// When the call has to be over that it is for.
    deadline: Option<Instant>,
    planned: Planned,
    session: Arc<Session>,
    net: NetThread,
    progress: Progress,
}

impl Install {
    async fn establish(&self) -> Result<Arc<Lease>> {
        let (session, planned) = (&self.session, &self.planned);
        // Linked before the install: workers ask this client for weights over these connections.
        let links = session.links(workers(planned)).await?;
        let pool = Pool::new(&session.ledger, Account::Leases, 0)?;
        let leased = self.installed().await?;
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

    async fn installed(&self) -> Result<Leased> {
        let client = self.session.coordinator.client(self.deadline).await?;
        let plan = self.planned.plan;
        let install = client.install(call_context(rpc::INSTALL_BOUND), plan);
        tokio::pin!(install);
        loop {
            tokio::select! {
                biased;
                answer = &mut install => return rpc::answer("the coordinator", answer),
                () = tokio::time::sleep(PROGRESS_PERIOD) => {
                    if let Ok(Ok(p)) = client.progress(call(), plan).await {
                        self.progress.note(Phase::Loading { done: p.done, total: p.total });
                    }
                }
            }
        }
    }

    /// The lease may have been granted already, and the answer be on its way. A coordinator that is away hears what this
    /// client holds when it is back.
    async fn give_up(&self) {
        if let Ok(client) = self.session.coordinator.client(None).await {
            drop(client.abandon(call(), self.planned.plan).await);
        }
    }
}

/// Whether the coordinator that answered, or did not, is another than the one that planned.
fn forgotten(e: &Error) -> bool {
    is_away(Some(e)) || e.code == Code::NotFound && e.site.is_none()
}
