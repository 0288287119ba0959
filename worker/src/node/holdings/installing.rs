//! Installs of leases: their phases, and the lease that they make.

use std::sync::Arc;

use convoke_common::error::{Code, Error, Result};
use convoke_common::grant::{Grant, MOST_BODIES, Participant};
use convoke_common::identity::Role;
use convoke_common::ids::{LeaseId, StepKey};
use convoke_common::memory::{Ledger, Pool, Purpose};
use convoke_common::rpc::InstallAnswer;
use convoke_common::world::Share;
use convoke_graph::ids::ParticipantIx;
use convoke_graph::program::{Axes, HashedProgram, Program, model_name};
use convoke_rendezvous::{Lease, Link, RecvSpec, StepHandler, step_event};
use futures::future::select_all;

use super::bodies::BodyDriver;
use super::core::BeginRefusal;
use super::links::{gone, lends};
use super::{DIVIDED, Holdings, InstalledLease, LOWERED, SETTLE_BOUND};
use crate::device::{OwnedDevice, copy_constants};
use crate::executor::{DrivenBodies, DrivenBody, Executor};
use crate::node::records::{Records, account_of, share_of};
use crate::program::install;
use crate::weights::counter::Counter;
use crate::weights::loader::{ClientSource, Loader};

/// The resources that all parts of one install share.
struct InstallBase {
    records: Records,
    ledger: Ledger,
    device: Option<OwnedDevice>,
    share: Share,
    loader: Arc<Loader>,
    counter: Arc<Counter>,
    in_flight: u32,
}

/// One program to install: the worker's part of the function, or of a partitioned body.
pub(super) struct Part {
    /// The number of the body; 0 for the function itself.
    pub(super) number: u32,
    pub(super) lease: LeaseId,
    pub(super) hashed: HashedProgram,
    pub(super) me: ParticipantIx,
    pub(super) participants: Vec<Participant>,
    pub(super) axes: Axes,
    pub(super) step_bytes: u64,
    pub(super) links: Vec<Option<Arc<Link>>>,
}

/// Lists an install as under way until it is dropped.
struct InstallListing<'a>(&'a Holdings, StepKey);

impl Drop for InstallListing<'_> {
    fn drop(&mut self) {
        step_event!("installed", self.1);
        self.0
            .tell_leases(|leases| leases.install_ended(self.1.lease));
    }
}

impl Holdings {
    /// Installs this worker's part of a lease. Where the worker neither has a program of the grant nor was sent it,
    /// nothing is done, and the answer says so.
    pub async fn install(
        self: &Arc<Self>,
        grant: Grant,
        sent: Vec<Arc<Program>>,
    ) -> Result<InstallAnswer> {
        if let Some(refusal) = self.engine.gate.refusal() {
            return Err(self.engine.refused(refusal));
        }
        if grant.bodies.len() > MOST_BODIES {
            let msg = "the grant has more bodies than there may be";
            return Err(Error::new(Code::ProtocolViolation, msg));
        }
        let mut sent = sent.into_iter();
        let mut programs = Vec::with_capacity(1 + grant.bodies.len());
        for id in grant.programs() {
            match self.programs.find(id, sent.next())? {
                Some(program) => programs.push(program),
                None => return Ok(InstallAnswer::NeedsProgram),
            }
        }
        let counter = Arc::<Counter>::default();
        let begin = self.tell_leases(|l| l.begin(grant.lease, grant.plan, counter.clone()));
        begin.map_err(|refusal| refused(grant.lease, refusal))?;
        // The install belongs to no step: the step number of the key has no meaning.
        let key = StepKey {
            lease: grant.lease,
            n: 0,
        };
        step_event!("install", key);
        // The drop ends the listing when the install is cancelled, too.
        let _listed = InstallListing(self, key);
        let installed = self.install_counted(grant, programs, &counter).await;
        installed.map(|()| InstallAnswer::Installed)
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
                if self.settling() == 0 {
                    return;
                }
                select_all(freed).await;
            }
        };
        if tokio::time::timeout(SETTLE_BOUND, settle).await.is_err() {
            tracing::warn!("a lease that was released still holds its memory");
        }
    }

    async fn install_counted(
        self: &Arc<Self>,
        grant: Grant,
        programs: Vec<HashedProgram>,
        counter: &Arc<Counter>,
    ) -> Result<()> {
        let mut programs = programs.into_iter();
        let hashed = programs.next();
        let hashed = hashed.ok_or_else(|| Error::internal("an install without a program"))?;
        grant.check(hashed.program())?;
        self.is_mine(&grant.participants, grant.me)?;
        let driver = grant.participants.last().cloned();
        let driver = driver.ok_or_else(|| Error::internal("a lease without participants"))?;
        let program = hashed.program();
        let own = Part {
            number: 0,
            lease: grant.lease,
            links: self
                .links(&grant.participants, grant.me, program, Role::Client)
                .await?,
            hashed,
            me: grant.me,
            participants: grant.participants,
            axes: grant.axes,
            step_bytes: grant.step_bytes,
        };
        let (parts, mut drivers) = self.bodies(own.lease, grant.bodies, programs).await?;
        self.settled().await;
        if !self.leases.look(|leases| leases.is_wanted(grant.lease)) {
            return Err(released_early(grant.lease));
        }
        let mut needed: Vec<Arc<Link>> = own.links.iter().flatten().cloned().collect();
        needed.extend(parts.iter().flat_map(|p| &p.links).flatten().cloned());
        needed.extend(drivers.iter().flat_map(|d| &d.links).cloned());
        let driver_link = own.links.last().and_then(Option::as_ref);
        let ledger = account_of(&self.ledger, driver_link);
        let client = self.client_source(&driver, &own.links);
        let loader = Loader::new(
            self.world.clone(),
            self.root.clone(),
            self.cache.clone(),
            client,
            self.loaded.clone(),
            self.load_buffer.clone(),
        );
        let base = InstallBase {
            records: self.records.of(driver_link),
            device: self.engine.device.clone().map(|owned| OwnedDevice {
                memory: account_of(&owned.memory, driver_link),
                ..owned
            }),
            share: share_of(driver_link, &driver.name, grant.lease),
            ledger,
            loader: Arc::new(loader),
            counter: counter.clone(),
            in_flight: grant.in_flight,
        };
        let name = own.hashed.program().name.clone();
        // The coordinator computed the reservations for this order: bodies as they are granted, and last the program
        // around them.
        let mut bodies = Vec::with_capacity(parts.len());
        for part in parts {
            bodies.push(self.install_part(&base, part, &mut drivers).await?);
        }
        let mut held = self.install_part(&base, own, &mut drivers).await?;
        held.bodies = bodies;
        let (id, remains) = (held.lease.id, held.remains());
        // The hub knows the lease before it is held: whoever releases it takes it off the hub as well.
        for part in held.bodies.iter().chain([&held]) {
            self.hub.add_lease(part.lease.clone());
        }
        let held = Arc::new(held);
        if !self.tell_leases(|leases| leases.installed(id, held, remains)) {
            return Err(released_early(id));
        }
        // A link that ended before the hub knew the lease has reported its end to no one.
        if let Some(l) = needed.iter().find(|l| l.is_closed()) {
            self.release(id);
            let msg = format!(
                "worker {} lost contact with {} while it installed {name}",
                self.me.name,
                l.peer().name,
            );
            return Err(gone(&l.peer().name, msg));
        }
        tracing::info!(lease = %id, model = name, "installed");
        Ok(())
    }

    /// Fails where participant `me` is another one than this worker.
    pub(super) fn is_mine(&self, participants: &[Participant], me: ParticipantIx) -> Result<()> {
        let mine = participants.get(usize::from(me));
        match mine.is_some_and(|p| p.name == self.me.name && p.incarnation == self.me.incarnation) {
            true => Ok(()),
            false => Err(Error::new(
                Code::ProtocolViolation,
                "the grant is for another worker",
            )),
        }
    }

    /// Installs one program: loads its weights, and reserves the memory of its steps. It takes from `drivers` those
    /// that drive bodies for its nodes.
    async fn install_part(
        self: &Arc<Self>,
        base: &InstallBase,
        part: Part,
        drivers: &mut Vec<BodyDriver>,
    ) -> Result<InstalledLease> {
        let program = part.hashed.program().clone();
        let own = self.engine.profile();
        if program.profile != own {
            let msg = format!(
                "worker {} computes under the numerics profile {own}, the plan under {}",
                self.me.name, program.profile
            );
            return Err(Error::new(Code::VersionMismatch, msg));
        }
        // A body runs on the host, as it does where one worker runs all of it.
        let device = base.device.clone().filter(|_| part.number == 0);
        let forms = match device {
            Some(_) => LOWERED + DIVIDED,
            None => LOWERED,
        };
        let code = base
            .records
            .reserve(part.hashed.encoded_bytes().saturating_mul(forms))?;
        let paid = self.programs.keep(&part.hashed, &base.records)?;
        let weights = Pool::new(&base.ledger, Purpose::Weights, 0)?;
        let mut ready = install::prepare(
            &self.engine,
            &base.share,
            program.clone(),
            base.loader.clone(),
            weights,
            &self.weights,
            &base.counter,
            device.as_ref().map(|owned| &*owned.device),
        )
        .await?;
        if let Some(owned) = &device {
            let code = &ready.installed.code;
            let needed = code.constants_on_device();
            let copies = copy_constants(&code.constants, needed, owned, &base.share).await;
            ready.installed.device_constants =
                copies.map_err(|e| self.engine.device_failed(e).at(self.engine.place()))?;
        }
        // The memory of steps is reserved only now: the plan counts on loading and steps needing memory one after the
        // other.
        let step_bytes = part.step_bytes.saturating_mul(u64::from(base.in_flight));
        let pool = match lends(&program, &part.axes, &part.links).await {
            true => Pool::shared(&base.ledger, Purpose::Leases, step_bytes)?,
            false => Pool::new(&base.ledger, Purpose::Leases, step_bytes)?,
        };
        let device = device.filter(|_| ready.installed.code.uses_device());
        let queue = device.map(|owned| {
            let memory = &owned.memory;
            let opened = owned
                .device
                .open(&base.share, memory, Purpose::Leases, step_bytes);
            opened.map_err(|e| self.engine.device_failed(e).at(self.engine.place()))
        });
        let queue = queue.transpose()?;
        let (me, id, of_body) = (Arc::downgrade(self), part.lease, part.number > 0);
        let driver_gone = Box::new(move || {
            // The lease of a body goes with the lease that it is a part of.
            if let Some(me) = me.upgrade().filter(|_| !of_body) {
                me.drop_lease(id);
            }
        });
        let executor = Executor::new(
            self.engine.clone(),
            Arc::new(ready.installed),
            base.share.clone(),
            pool.clone(),
            part.links,
            base.in_flight,
            driver_gone,
        );
        let driven = drivers.extract_if(.., |d| d.within == part.number);
        let driven: Vec<DrivenBody> = driven
            .map(|d| d.start(self, base.in_flight, &pool))
            .collect();
        if !driven.is_empty() {
            let driven = DrivenBodies::new(&self.world, driven, base.in_flight);
            executor.drive_bodies(driven);
        }
        let recvs = program
            .recvs
            .iter()
            .map(|r| RecvSpec {
                from: r.from,
                ty: program.values[r.value as usize].ty.clone(),
            })
            .collect();
        let handler: Arc<dyn StepHandler> = executor.clone();
        let lease = Lease::new(
            part.lease,
            part.me,
            part.participants,
            part.axes,
            base.in_flight,
            recvs,
            pool,
            handler,
        );
        let lease = Arc::new(match of_body {
            true => lease.driven_by_worker(),
            false => lease,
        });
        executor.attach(&lease);
        if let Some(queue) = queue {
            executor.use_device(queue);
        }
        executor.serve_handles(self.eager.clone());
        Ok(InstalledLease {
            lease,
            executor,
            name: model_name(&program.name),
            weights_bytes: ready.weights_bytes,
            bodies: vec![],
            _weights: ready.weights,
            _code: code,
            _program: paid,
            _pins: ready.pins,
        })
    }

    fn client_source(
        &self,
        driver: &Participant,
        links: &[Option<Arc<Link>>],
    ) -> Option<ClientSource> {
        let local = self.local_clients().get(&driver.name).cloned();
        if let Some(source) = local {
            return Some(ClientSource::Local(source));
        }
        let link = links.last()?.as_ref()?;
        link.connection().map(|c| ClientSource::Remote(c.clone()))
    }
}

fn refused(lease: LeaseId, refusal: BeginRefusal) -> Error {
    match refusal {
        BeginRefusal::Released => released_early(lease),
        BeginRefusal::Present => {
            let msg = format!("{lease} is here already, or is being installed");
            Error::new(Code::ProtocolViolation, msg)
        }
    }
}

fn released_early(lease: LeaseId) -> Error {
    let msg = format!("{lease} was released while it was installed");
    Error::new(Code::LeaseRetired, msg)
}
