//! The lease of an installed plan: how it is called, and how it is released.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use convoke_common::error::{Code, Error, Result};
use convoke_common::grant::Participant;
use convoke_common::rpc::PlanAnswer;
use convoke_graph::Tensor;
use convoke_graph::dim::Bindings;
use convoke_graph::program::FetchFrom;
use convoke_rendezvous::driver::Driver;
use convoke_rendezvous::eager::direct::{DirectFunction, Number};
use tokio::time::Instant;

use crate::calls::attempts::FailedAttempt;
use crate::calls::result::CallResult;
use crate::calls::worker_process::{WorkerProcess, named};
use crate::cluster::presence::ClusterPresence;
use crate::cluster::runtime::NetThread;
use crate::eager::direct::Line;

/// An installed plan. Dropping it releases the lease.
pub(crate) struct Lease {
    driver: Arc<Driver>,
    pub(crate) planned: PlanAnswer,
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

/// The workers of a plan: all participants but the last, which is the driver.
pub(super) fn workers(planned: &PlanAnswer) -> &[Participant] {
    &planned.participants[..planned.participants.len().saturating_sub(1)]
}

impl Lease {
    /// The lease of an installed plan. It is released once it breaks, even where nobody calls it again.
    pub(super) fn new(
        driver: Arc<Driver>,
        planned: PlanAnswer,
        session: Arc<ClusterPresence>,
        net: NetThread,
    ) -> Lease {
        let lease = Lease {
            driver,
            planned,
            session,
            net,
            unloaded: AtomicBool::new(false),
            released: AtomicBool::new(false),
            direct: OnceLock::new(),
        };
        lease.release_when_broken();
        lease
    }

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

    /// Whether no call can succeed any more.
    pub(crate) fn is_broken(&self) -> bool {
        self.driver.is_broken()
    }

    /// Whether calls with axes of these sizes can succeed.
    pub(crate) fn holds(&self, bindings: &Bindings) -> bool {
        let within = |(s, b): &(Arc<str>, i64)| bindings.get(s).is_none_or(|v| v <= b);
        !self.is_broken() && self.planned.axes.bounds.iter().all(within)
    }

    /// Releases the lease because the model is unloaded: calls that this ends do not run again.
    pub(crate) async fn unload(&self) -> Result<()> {
        self.unloaded.store(true, Ordering::Relaxed);
        self.release().await
    }

    /// Releases the lease, so that its memory can be reserved for another one.
    pub(super) async fn release(&self) -> Result<()> {
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
