//! Installs of plans, which make leases of them.

use std::sync::Arc;
use std::time::Duration;

use convoke_common::admission::call;
use convoke_common::control_event;
use convoke_common::error::{Code, Error, Result};
use convoke_common::grant::MOST_IN_FLIGHT;
use convoke_common::memory::{Pool, Purpose};
use convoke_common::rpc::transport::call_context;
use convoke_common::rpc::{self, LeaseGrant, PlanAnswer};
use convoke_rendezvous::driver::Driver;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::Instrument;

use crate::calls::attempts::FailedAttempt;
use crate::calls::function::Inner;
use crate::calls::holder::{Predecessor, Request};
use crate::calls::lease::{Lease, workers};
use crate::calls::worker_process::named;
use crate::cluster::callbacks::Progress;
use crate::cluster::coordinator::is_away;
use crate::cluster::presence::ClusterPresence;
use crate::cluster::runtime::NetThread;
use crate::model::phase::Phase;

/// How often the coordinator is asked for the progress of a load.
const PROGRESS_PERIOD: Duration = Duration::from_millis(200);

impl Inner {
    /// Plans and installs a lease for a request. What the lease before it leaves counts where there was one.
    pub(crate) async fn new_lease(
        &self,
        request: &Request,
        predecessor: Predecessor,
    ) -> Result<Arc<Lease>, FailedAttempt> {
        let (sizes, former, deadline) = (&request.sizes, &predecessor.axes, request.deadline);
        let avoid = [request.avoid.clone(), predecessor.unusable].concat();
        let mut planned = self
            .planned_in_turn(sizes, former, avoid.clone(), deadline)
            .await?;
        let mut established = self.establish(&planned, deadline).await;
        if established.as_ref().is_err_and(forgotten) {
            // The coordinator went away during the install: nothing is installed, and a coordinator that returns knows
            // no plans.
            planned = self.planned_in_turn(sizes, former, avoid, deadline).await?;
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
        let lease = Lease::new(driver, planned.clone(), session.clone(), self.net.clone());
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
