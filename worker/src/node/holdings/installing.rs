//! Installs of leases: what is under way, what is waited for, and what was released before it came.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use convoke_common::error::{Code, Error, Result};
use convoke_common::grant::{Grant, Participant};
use convoke_common::ids::{LeaseId, PlanId, StepKey};
use convoke_common::memory::{Pool, Purpose};
use convoke_common::rpc::InstallAnswer;
use convoke_graph::program::{HashedProgram, Program, model_name};
use convoke_rendezvous::{Lease, Link, RecvSpec, StepHandler, step_event};
use futures::future::select_all;

use super::links::{gone, lends};
use super::{DIVIDED, EndingLease, Holdings, InstalledLease, LOWERED, SETTLE_BOUND};
use crate::device::{OwnedDevice, copy_constants};
use crate::executor::Executor;
use crate::node::records::{account_of, share_of};
use crate::program::install::{self, Counter};
use crate::weights::loader::{ClientSource, Loader};

/// An install that is under way.
pub(super) struct RunningInstall {
    pub(super) plan: PlanId,
    pub(super) counter: Arc<Counter>,
    /// Whether the lease was released while its install runs.
    pub(super) released: AtomicBool,
}

/// The latest leases that were released before their install came: each call has a stream of its own, and one may
/// overtake another.
#[derive(Default)]
pub(super) struct EarlyReleases(VecDeque<LeaseId>);

impl EarlyReleases {
    const MOST: usize = 256;

    pub(super) fn note(&mut self, lease: LeaseId) {
        if self.0.len() == Self::MOST {
            self.0.pop_front();
        }
        self.0.push_back(lease);
    }
}

/// Lists an install as under way until it is dropped.
struct InstallListing<'a>(&'a Holdings, StepKey);

impl Drop for InstallListing<'_> {
    fn drop(&mut self) {
        step_event!("installed", self.1);
        self.0.installing().remove(&self.1.lease);
        // Another install may wait for the memory that this one has freed.
        self.0.ledger.freed().notify_waiters();
    }
}

impl Holdings {
    /// Installs this worker's part of a lease. Where the worker neither has the program of the grant nor was sent it,
    /// nothing is done, and the answer says so.
    pub async fn install(
        self: &Arc<Self>,
        grant: Grant,
        sent: Option<Arc<Program>>,
    ) -> Result<InstallAnswer> {
        if let Some(refusal) = self.engine.gate.refusal() {
            return Err(refusal.clone());
        }
        let Some(program) = self.programs.find(&grant.program, sent)? else {
            return Ok(InstallAnswer::NeedsProgram);
        };
        let underway = Arc::new(RunningInstall {
            plan: grant.plan,
            counter: Arc::default(),
            released: AtomicBool::new(false),
        });
        self.installing().insert(grant.lease, underway.clone());
        // The install belongs to no step: the step number of the key has no meaning.
        let key = StepKey {
            lease: grant.lease,
            n: 0,
        };
        step_event!("install", key);
        // The drop ends the listing when the install is cancelled, too.
        let _listed = InstallListing(self, key);
        let installed = self.install_counted(grant, &program, &underway).await;
        installed.map(|()| InstallAnswer::Installed)
    }

    pub(super) fn forgone(&self) -> MutexGuard<'_, EarlyReleases> {
        self.forgone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn installing(&self) -> MutexGuard<'_, BTreeMap<LeaseId, Arc<RunningInstall>>> {
        self.installing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns once released leases have freed their memory, or have had [`SETTLE_BOUND`] to: kernels that run for them
    /// must notice first. Leases that were released during their install count as well.
    async fn settled(&self) {
        let settle = async {
            loop {
                let device = self.engine.device.as_ref().map(|owned| &owned.memory);
                let ledgers = std::iter::once(&self.ledger).chain(device);
                let mut freed: Vec<_> = ledgers.map(|l| Box::pin(l.freed().notified())).collect();
                // The waiters register before they look, so that they miss no memory that is freed in between.
                for waiter in &mut freed {
                    waiter.as_mut().enable();
                }
                if self.has_settled() {
                    return;
                }
                select_all(freed).await;
            }
        };
        if tokio::time::timeout(SETTLE_BOUND, settle).await.is_err() {
            tracing::warn!("a lease that was released still holds its memory");
        }
    }

    pub(super) fn has_settled(&self) -> bool {
        self.settling() == 0
    }

    /// Number of released leases whose memory is still in use.
    pub(super) fn settling(&self) -> usize {
        let installing = self.installing();
        let released = installing.values();
        let released = released.filter(|u| u.released.load(Ordering::Relaxed));
        let released = released.count();
        drop(installing);
        let mut ending = self.ending();
        ending.retain(EndingLease::is_held);
        ending.len() + released
    }

    async fn install_counted(
        self: &Arc<Self>,
        grant: Grant,
        hashed: &HashedProgram,
        underway: &RunningInstall,
    ) -> Result<()> {
        if self.forgone().0.contains(&grant.lease) {
            return Err(released_early(grant.lease));
        }
        let violation = |why: &str| Err(Error::new(Code::ProtocolViolation, why));
        let program = hashed.program().clone();
        grant.check(&program)?;
        let own = self.engine.profile();
        if program.profile != own {
            let msg = format!(
                "worker {} computes under the numerics profile {own}, the plan under {}",
                self.me.name, program.profile
            );
            return Err(Error::new(Code::VersionMismatch, msg));
        }
        let mine = grant.participants.get(usize::from(grant.me));
        if !mine.is_some_and(|p| p.name == self.me.name && p.incarnation == self.me.incarnation) {
            return violation("the grant is for another worker");
        }
        let links = self.links(&grant, &program).await?;
        self.settled().await;
        if underway.released.load(Ordering::Relaxed) {
            return Err(released_early(grant.lease));
        }
        let needed: Vec<Arc<Link>> = links.iter().flatten().cloned().collect();
        let driver = &grant.participants[grant.participants.len() - 1];
        let ledger = account_of(&self.ledger, links.last().and_then(Option::as_ref));
        let records = self.records.of(links.last().and_then(Option::as_ref));
        let forms = match self.engine.device {
            Some(_) => LOWERED + DIVIDED,
            None => LOWERED,
        };
        let code = records.reserve(hashed.encoded_bytes().saturating_mul(forms))?;
        let paid = self.programs.keep(hashed, &records)?;
        let weights = Pool::new(&ledger, Purpose::Weights, 0)?;
        let client = self.client_source(driver, &links);
        let loader = Loader::new(
            self.world.clone(),
            self.root.clone(),
            self.cache.clone(),
            client,
            self.loaded.clone(),
            self.load_buffer.clone(),
        );
        let name = model_name(&program.name);
        let driver_link = links.last().and_then(Option::as_ref);
        let share = share_of(driver_link, &driver.name, grant.lease);
        let mut ready = install::prepare(
            &self.engine,
            &share,
            program.clone(),
            Arc::new(loader),
            weights,
            &self.weights,
            &underway.counter,
        )
        .await?;
        let device = self.engine.device.clone().map(|owned| OwnedDevice {
            memory: account_of(&owned.memory, links.last().and_then(Option::as_ref)),
            ..owned
        });
        if let Some(owned) = &device {
            copy_constants(&mut ready.installed, owned, &share)
                .await
                .map_err(|e| self.engine.device_failed(e).at(self.engine.place()))?;
        }
        // The memory of steps is reserved only now: the plan counts on loading and steps needing memory one after the
        // other.
        let step_bytes = grant.step_bytes.saturating_mul(u64::from(grant.in_flight));
        let pool = match lends(&program, &grant.axes, &links).await {
            true => Pool::shared(&ledger, Purpose::Leases, step_bytes)?,
            false => Pool::new(&ledger, Purpose::Leases, step_bytes)?,
        };
        let device = device.filter(|_| ready.installed.code.uses_device());
        let queue = device.map(|owned| {
            let memory = &owned.memory;
            let opened = owned
                .device
                .open(&share, memory, Purpose::Leases, step_bytes);
            opened.map_err(|e| self.engine.device_failed(e).at(self.engine.place()))
        });
        let queue = queue.transpose()?;
        let (me, id) = (Arc::downgrade(self), grant.lease);
        let driver_gone = Box::new(move || {
            if let Some(me) = me.upgrade() {
                me.drop_lease(id);
            }
        });
        let executor = Executor::new(
            self.engine.clone(),
            Arc::new(ready.installed),
            share,
            pool.clone(),
            links,
            grant.in_flight,
            driver_gone,
        );
        let recvs = program
            .recvs
            .iter()
            .map(|r| RecvSpec {
                from: r.from,
                ty: program.values[r.value as usize].ty.clone(),
            })
            .collect();
        let handler: Arc<dyn StepHandler> = executor.clone();
        let lease = Arc::new(Lease::new(
            grant.lease,
            grant.me,
            grant.participants,
            grant.axes,
            grant.in_flight,
            recvs,
            pool,
            handler,
        ));
        executor.attach(&lease);
        if let Some(queue) = queue {
            executor.use_device(queue);
        }
        executor.serve_handles(self.eager.clone());
        let held = InstalledLease {
            lease: lease.clone(),
            executor,
            name,
            weights_bytes: ready.weights_bytes,
            _weights: ready.weights,
            _code: code,
            _program: paid,
            _pins: ready.pins,
        };
        self.held().insert(lease.id, held);
        self.hub.add_lease(lease.clone());
        if underway.released.load(Ordering::Relaxed) {
            self.release(lease.id);
            return Err(released_early(lease.id));
        }
        // A link that ended before the hub knew the lease has reported its end to no one.
        if let Some(l) = needed.iter().find(|l| l.is_closed()) {
            self.release(lease.id);
            let msg = format!(
                "worker {} lost contact with {} while it installed {}",
                self.me.name,
                l.peer().name,
                program.name
            );
            return Err(gone(&l.peer().name, msg));
        }
        tracing::info!(lease = %lease.id, model = program.name, "installed");
        Ok(())
    }

    fn client_source(
        &self,
        driver: &Participant,
        links: &[Option<Arc<Link>>],
    ) -> Option<ClientSource> {
        let local = self
            .local_clients
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(source) = local.get(&driver.name) {
            return Some(ClientSource::Local(source.clone()));
        }
        let link = links.last()?.as_ref()?;
        link.connection().map(|c| ClientSource::Remote(c.clone()))
    }
}

fn released_early(lease: LeaseId) -> Error {
    let msg = format!("{lease} was released while it was installed");
    Error::new(Code::LeaseRetired, msg)
}
