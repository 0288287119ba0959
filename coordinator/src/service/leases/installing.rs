//! Installs plans: on all workers of a plan at once, and on all of them or none.

use std::sync::Arc;
use std::time::Duration;

use convoke_common::admission::call;
use convoke_common::detection::timer::{Timer, TimerKind};
use convoke_common::grant::Grant;
use convoke_common::ids::{LeaseId, PlanId};
use convoke_common::mutant;
use convoke_common::rpc::transport::call_context;
use convoke_common::rpc::{INSTALL_BOUND, InstallAnswer, LeaseGrant, Progress, answer};
use convoke_common::{Code, Error, Result};
use convoke_graph::ids::ParticipantIx;
use convoke_graph::program::Program;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tracing::Instrument;

use crate::membership::{ConnectionId, InstallOrder, PlanPart, events};
use crate::service::Service;
use crate::service::connections::Peer;

/// If a worker failed as a consequence of another failure, how long the cause may take to arrive.
const CAUSE_BOUND: Duration = Duration::from_secs(2);

/// Whether the connection to a peer has ended; `None` is a peer whose connection was over before it was asked for.
fn has_ended(peer: Option<&Peer>) -> bool {
    peer.is_none_or(|p| p.connection.close_reason().is_some())
}

impl Service {
    /// Installs a plan for its driver and returns the lease, which the caller has to release.
    pub(in crate::service) async fn install(
        self: &Arc<Self>,
        driver: ConnectionId,
        plan: PlanId,
    ) -> Result<LeaseGrant> {
        let lease = LeaseId::of_lease(u64::from_le_bytes(self.world.rng.bytes()));
        let (answer, answered) = oneshot::channel();
        // From the grant on this runs in a task of its own, which cleans up even if the caller goes away.
        let install = self.clone().run_install(driver, lease, plan, answer);
        self.tasks.spawn(install.in_current_span());
        let stopped = |_| Error::internal("an install ended without a result");
        answered.await.map_err(stopped)?
    }

    async fn run_install(
        self: Arc<Self>,
        driver: ConnectionId,
        lease: LeaseId,
        plan: PlanId,
        mut answer: oneshot::Sender<Result<LeaseGrant>>,
    ) {
        let request = events::InstallRequest {
            driver,
            plan,
            lease,
        };
        let granted = match self.core.apply(request).await {
            Ok(Ok(granted)) => granted,
            Ok(Err(error)) => return drop(answer.send(Err(error.into()))),
            Err(error) => return drop(answer.send(Err(error))),
        };
        let installed = tokio::select! {
            biased;
            () = answer.closed() => None,
            installed = self.install_all(lease, plan, &granted) => Some(installed),
        };
        let model = &granted.plan.model;
        let result = match installed {
            Some(Ok(())) => match self.core.apply(events::InstallSuccess { lease }).await {
                Ok(granted) => granted.map_err(Error::from),
                Err(error) => Err(error),
            },
            Some(Err(error)) => {
                let site = error.site.as_ref().and_then(|site| site.worker.clone());
                if let Some(worker) = site.filter(|_| error.code == Code::OutOfMemory) {
                    // Further plans of this client's token look elsewhere.
                    drop(self.core.apply(events::RoomRefusal { lease, worker }).await);
                }
                if !mutant!("abandoned-install") {
                    drop(self.core.apply(events::InstallFailure { lease }).await);
                }
                Err(error)
            }
            None => {
                tracing::info!(%lease, model, "install cancelled by its driver");
                drop(self.core.apply(events::InstallFailure { lease }).await);
                return;
            }
        };
        match &result {
            Ok(()) => tracing::info!(%lease, model, "lease granted"),
            Err(error) => tracing::warn!(%lease, model, %error, "install failed"),
        }
        let leased = result.map(|()| LeaseGrant {
            lease,
            in_flight: granted.plan.in_flight,
        });
        if answer.send(leased).is_err() {
            drop(self.core.apply(events::InstallFailure { lease }).await);
        }
    }

    /// Ends the leases that a plan was granted: its driver no longer waits for the install.
    pub(in crate::service) async fn abandon(
        &self,
        driver: ConnectionId,
        plan: PlanId,
    ) -> Result<()> {
        self.core
            .apply(events::PlanAbandonment { driver, plan })
            .await
    }

    /// Installs a plan on all workers. If several workers fail, it returns the first cause, else the first loss, else
    /// the first error.
    async fn install_all(
        &self,
        lease: LeaseId,
        plan: PlanId,
        granted: &InstallOrder,
    ) -> Result<()> {
        let parts = granted
            .plan
            .parts
            .iter()
            .zip(&granted.connections)
            .enumerate();
        let mut running: FuturesUnordered<_> = parts
            .map(|(me, (part, at))| self.install_one(lease, plan, granted, me, part, *at))
            .collect();
        let mut first: Option<Error> = None;
        loop {
            let next = match &first {
                None => running.next().await,
                Some(_) => {
                    let timer = Timer::arm(TimerKind::Cause, Instant::now() + CAUSE_BOUND);
                    let next = timeout_at(timer.due(), running.next()).await;
                    next.unwrap_or(None)
                }
            };
            match next {
                None => return first.map_or(Ok(()), Err),
                Some(Ok(())) => {}
                Some(Err(error)) if !error.code.is_secondary() => return Err(error),
                Some(Err(error)) => {
                    let more = |first: &Error| {
                        first.code != Code::PeerLost && error.code == Code::PeerLost
                    };
                    if first.as_ref().is_none_or(more) {
                        first = Some(error);
                    }
                }
            }
        }
    }

    async fn install_one(
        &self,
        lease: LeaseId,
        plan: PlanId,
        granted: &InstallOrder,
        me: usize,
        part: &PlanPart,
        connection: ConnectionId,
    ) -> Result<()> {
        let name = granted
            .plan
            .participants
            .get(me)
            .map(|p| p.name.clone())
            .unwrap_or_default();
        let me = ParticipantIx::try_from(me)
            .map_err(|_| Error::internal("more workers than a lease can number"))?;
        let (bodies, parts) = granted.plan.bodies_of(me);
        let grant = Grant {
            lease,
            plan,
            program: part.program.id(),
            me,
            participants: granted.plan.participants.clone(),
            axes: granted.plan.axes.clone(),
            in_flight: granted.plan.in_flight,
            step_bytes: part.step_bytes,
            bodies,
        };
        let parts = std::iter::once(&part.program).chain(parts);
        let programs: Vec<Arc<Program>> = parts.map(|p| p.program().clone()).collect();
        let peer = self.connections.get(connection);
        let mut answered = false;
        let installed = async {
            let worker = self.worker(&name, connection).await?;
            let what = format!("worker '{name}'");
            // The programs follow where the worker does not have them.
            for programs in [vec![], programs] {
                let said = worker.install(call_context(INSTALL_BOUND), grant.clone(), programs);
                let said = said.await;
                answered = said.is_ok();
                if answer(Some(&name), said)? == InstallAnswer::Installed {
                    return Ok(());
                }
            }
            let msg = format!("{what} asks for a program that it was sent");
            Err(Error::new(Code::ProtocolViolation, msg))
        };
        let installed = installed.await;
        installed.map_err(|e| match e.code {
            // The worker did not answer because its connection ended. The error is then a loss, as it is for the driver
            // of a step, with the reason for the connection's end if that is known. A worker whose connection stands is
            // not lost: the error says what kept the call from it.
            Code::Unreachable if !answered && has_ended(peer.as_ref()) => {
                let why = peer.and_then(|p| p.watched).and_then(|w| w.ended());
                let why = why.unwrap_or_else(|| "its connection ended".to_owned());
                Error::lost(&name, why).said_by("the coordinator")
            }
            _ => e.about(&name),
        })
    }

    /// Returns the progress of an install, summed over its workers. A worker that does not answer counts as not begun.
    pub(in crate::service) async fn progress(
        &self,
        driver: ConnectionId,
        plan: PlanId,
    ) -> Result<Progress> {
        let used = events::PlanUse {
            owner: driver,
            id: plan,
        };
        let granted = self.core.apply(used).await??;
        let asked = granted
            .connections
            .iter()
            .zip(&granted.plan.participants)
            .map(async |(at, p)| {
                let worker = self.worker(&p.name, *at).await?;
                answer(Some(&p.name), worker.progress(call(), plan).await)
            });
        let answers = futures::future::join_all(asked).await;
        let sum = |sum: Progress, one: Progress| Progress {
            done: sum.done.saturating_add(one.done),
            total: sum.total.saturating_add(one.total),
        };
        Ok(answers.into_iter().flatten().fold(Progress::default(), sum))
    }
}
