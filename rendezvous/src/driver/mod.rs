//! The step driver: the caller's end of a lease.
//!
//! [`Driver::call`] starts a step, feeds its inputs, awaits its results, and resolves with them or with the root cause.
//! [`Driver::call_partial`] resolves with the results that there are, and with an error for each of the others. The
//! [`core`] makes the decisions; the shell owns slots, links and time; the driver owns the window.
//!
//! Invariants
//! 1. Steps are numbered in the order in which they start; step `n` starts after step `n - K` has retired.
//! 2. A call that is dropped cancels its step everywhere.
//! 3. A caller waits for the outcome of its step and never for its retirement.

pub mod core;
mod outcome;
mod shell;

use std::sync::Arc;
use std::time::Duration;

use convoke_common::detection::timer::{Timer, TimerKind};
use convoke_common::error::{Code, Error, Result};
use convoke_common::grant::Participant;
use convoke_common::identity::Role;
use convoke_common::ids::{LeaseId, StepKey};
use convoke_common::memory::Pool;
use convoke_common::mutant;
use convoke_common::telemetry;
use convoke_common::world::World;
use convoke_graph::Tensor;
use convoke_graph::ids::ParticipantIx;
use convoke_graph::program::{Axes, DriverProgram, FetchFrom};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use self::core::{Core, Event};
use self::outcome::{Outcome, StepResults};
use self::shell::{Shell, UnretiredCall};
use crate::frame::Frame;
use crate::hub::Hub;
use crate::lease::{Lease, RecvSpec, StepHandler};
use crate::link::{Link, Outgoing};
use crate::step::slot::RegisterOutcome;
use crate::step::table::Delivery;
use crate::step_event;
use crate::step_events::checksum;

/// Drives the steps of one lease.
pub struct Driver {
    lease: Arc<Lease>,
    hub: Arc<Hub>,
    program: DriverProgram,
    shell: Arc<Shell>,
    launch: tokio::sync::Mutex<u64>,
    /// Holds one permit for each entry of the window.
    window: Vec<Arc<Semaphore>>,
}

impl Driver {
    /// Makes a driver over established links, one for each worker in participant order. Its timers run in `world` until
    /// it is dropped. Where the member of the hub is a worker, the lease is that of a partitioned body.
    pub fn new(
        world: &World,
        hub: Arc<Hub>,
        id: LeaseId,
        participants: Vec<Participant>,
        program: DriverProgram,
        axes: Axes,
        in_flight: u32,
        links: Vec<Arc<Link>>,
        pool: Pool,
    ) -> Arc<Driver> {
        let of_body = hub.me.role == Role::Worker;
        let id = if of_body { id.at_driver() } else { id };
        let k = in_flight.max(1);
        let shell = Shell::new(links, k);
        let recvs = program
            .slots
            .iter()
            .map(|s| RecvSpec {
                from: s.from,
                ty: s.ty.clone(),
            })
            .collect();
        let me = (participants.len() - 1) as ParticipantIx;
        let handler: Arc<dyn StepHandler> = shell.clone();
        let lease = Lease::new(id, me, participants, axes, k, recvs, pool, handler);
        let lease = Arc::new(match of_body {
            true => lease.driven_by_worker(),
            false => lease,
        });
        let _ = shell.lease.set(Arc::downgrade(&lease));
        world.spawn(shell::keep_time(Arc::downgrade(&shell), shell.due()));
        hub.add_lease(lease.clone());
        let of_lease = StepKey { lease: id, n: 0 };
        step_event!(
            "lease",
            of_lease,
            participants = names(&shell.links).as_str()
        );
        // A link that ended before the lease was in the hub was reported to nobody.
        for (ix, link) in shell.links.iter().enumerate() {
            if link.is_closed() {
                shell.lost(ix as ParticipantIx, link.lost());
            }
        }
        let window = (0..k).map(|_| Arc::new(Semaphore::new(1))).collect();
        Arc::new(Driver {
            lease,
            hub,
            program,
            shell,
            launch: tokio::sync::Mutex::new(0),
            window,
        })
    }

    /// The id of the lease.
    pub fn lease(&self) -> LeaseId {
        self.lease.id
    }

    /// The driver's program: which inputs are fed to which slots, and where results are fetched from.
    pub fn program(&self) -> &DriverProgram {
        &self.program
    }

    /// Why no further call can succeed; `None` while calls can.
    pub fn broken(&self) -> Option<Error> {
        self.shell.core.look(Core::broken)
    }

    /// Whether no further call can succeed.
    pub fn is_broken(&self) -> bool {
        self.shell.core.look(Core::is_broken)
    }

    /// The workers that a plan in place of this lease's should not use: lost, leaving, wedged, or out of the reach of
    /// another.
    pub fn unusable(&self) -> Vec<Participant> {
        let of = |ix| self.lease.participants.get(usize::from(ix)).cloned();
        let look = |core: &Core| core.unusable().filter_map(of).collect();
        self.shell.core.look(look)
    }

    /// Runs one step: `inputs` are in the order of the feeds, `axes` in the order of the lease's bounds. Resolves with
    /// the results in the order of the fetches.
    pub async fn call(
        &self,
        inputs: Vec<Tensor>,
        axes: Vec<i64>,
        deadline: Option<Duration>,
    ) -> Result<Vec<Tensor>> {
        let arrived = self.step(&inputs, axes, deadline, false).await?;
        self.results(&inputs, arrived, |r| r.map_err(Arc::unwrap_or_clone))
    }

    /// Like [`Driver::call`], but an error in a node ends only the results that depend on it, and becomes their error.
    /// The whole call fails if the step does: a participant is lost, the deadline passes, or the caller cancels.
    pub async fn call_partial(
        &self,
        inputs: Vec<Tensor>,
        axes: Vec<i64>,
        deadline: Option<Duration>,
    ) -> Result<Vec<Result<Tensor>>> {
        let arrived = self.step(&inputs, axes, deadline, true).await?;
        self.results(&inputs, arrived, |r| Ok(r.map_err(Arc::unwrap_or_clone)))
    }

    /// Runs a step; returns what arrived in the recv slots.
    async fn step(
        &self,
        inputs: &[Tensor],
        axes: Vec<i64>,
        deadline: Option<Duration>,
        partial: bool,
    ) -> StepResults {
        // A deadline beyond the end of time is no deadline.
        let deadline = deadline.and_then(|d| Instant::now().checked_add(d));
        let _timer = deadline.map(|at| Timer::arm(TimerKind::Deadline, at));
        // The span lasts from the wait for the window to the outcome that the caller sees.
        let span = tracing::debug_span!("call", key = tracing::field::Empty);
        let begun = self.begin(inputs, axes, partial, &span);
        let (outcome, n) = match deadline {
            None => begun.await?,
            Some(at) => match timeout_at(at, begun).await {
                Ok(begun) => begun?,
                Err(_) => {
                    let msg = "the step could not start by its deadline: those before it still run";
                    return Err(Error::new(Code::DeadlineExceeded, msg));
                }
            },
        };
        let guard = CancelOnDrop {
            shell: &self.shell,
            n: Some(n),
        };
        let outcome = match deadline {
            None => outcome.take().await,
            Some(at) => match timeout_at(at, outcome.take()).await {
                Ok(taken) => taken,
                Err(_) => self.too_late(n, &outcome).await,
            },
        };
        guard.disarm();
        outcome
    }

    /// The results that arrived, in the order of the fetches, each mapped by `one`.
    fn results<T>(
        &self,
        inputs: &[Tensor],
        mut arrived: Vec<Option<Delivery>>,
        one: impl Fn(Delivery) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut uses: Vec<usize> = vec![0; arrived.len()];
        for f in &self.program.fetches {
            if let FetchFrom::Worker { slot, .. } = f.from {
                uses[slot as usize] += 1;
            }
        }
        self.program
            .fetches
            .iter()
            .map(|f| match f.from {
                FetchFrom::Param(i) => inputs.get(i as usize).cloned().map(Ok),
                FetchFrom::Worker { slot, .. } => {
                    let slot = slot as usize;
                    uses[slot] -= 1;
                    if uses[slot] == 0 {
                        arrived[slot].take()
                    } else {
                        arrived[slot].clone()
                    }
                }
            })
            .map(|t| one(t.ok_or_else(|| Error::internal("a result is missing"))?))
            .collect()
    }

    /// Waits for room in the window, then starts and feeds a step.
    async fn begin(
        &self,
        inputs: &[Tensor],
        axes: Vec<i64>,
        partial: bool,
        span: &tracing::Span,
    ) -> Result<(Arc<Outcome>, u64)> {
        let feeds = self.program.feeds.len();
        if inputs.len() != feeds {
            let msg = format!("{} inputs for {feeds} parameters", inputs.len());
            return Err(Error::new(Code::InvalidInput, msg));
        }
        let mut next = self.launch.lock().await;
        let n = *next;
        let entry = (n % self.window.len() as u64) as usize;
        let permit = self.room(entry).await.map_err(|_| self.why_closed())?;
        self.lease.bind(n, &axes)?;
        if self.lease.table.admit(n).is_err() {
            return Err(Error::internal(format!(
                "step {n} is outside the driver's own window"
            )));
        }
        *next += 1;
        let slots = self.program.slots.len();
        let cancel = CancellationToken::new();
        let key = StepKey {
            lease: self.lease.id,
            n,
        };
        span.record("key", tracing::field::display(key));
        let trace = telemetry::trace_of(span);
        let outcome = Arc::<Outcome>::default();
        self.shell.enter(UnretiredCall {
            n,
            start: Frame::Start {
                key: self.lease.key_at(0, n),
                axes,
                trace,
                partial,
            },
            partial,
            results: vec![None; slots],
            outcome: outcome.clone(),
            cancel: cancel.clone(),
            _permit: permit,
        });
        step_event!("begin", key);
        // The step begins before its results are awaited: a result counts only once the step has begun, and one that
        // arrived before is stored in its slot until then.
        self.shell.drive(Event::Begin { n, results: slots });
        for slot in 0..slots as u32 {
            if let Ok(s) = self.lease.table.slot(n, slot)
                && let RegisterOutcome::Ready(delivered) = s.register(n)
            {
                if delivered.is_ok() {
                    step_event!("taken", key, slot = slot);
                }
                self.shell.store(n, slot, delivered);
            }
        }
        for (feed, tensor) in self.program.feeds.iter().zip(inputs) {
            for (to, slot) in &feed.to {
                if let Some(link) = self.shell.links.get(usize::from(*to)) {
                    step_event!(
                        "sent",
                        key,
                        slot = *slot,
                        peer = *to,
                        checksum = checksum(tensor)
                    );
                    link.send_tensor(Outgoing {
                        key: self.lease.key_at(*to, n),
                        slot: *slot,
                        tensor: tensor.clone(),
                        priority: u64::MAX,
                        cancel: cancel.clone(),
                        sent: Box::new(|| {}),
                    });
                }
            }
        }
        Ok((outcome, n))
    }

    /// Ends a step whose deadline has passed; returns the outcome if the step has resolved meanwhile.
    async fn too_late(&self, n: u64, outcome: &Outcome) -> StepResults {
        let unfinished = self.shell.core.look(|core| core.unfinished(n));
        let names: Vec<&str> = unfinished.iter().map(|w| self.lease.name_of(*w)).collect();
        let late = |msg: String| Error::new(Code::DeadlineExceeded, msg);
        let error = match names[..] {
            [] => late("the step did not end by its deadline".to_owned()),
            _ => late(format!(
                "the step did not end by its deadline: {} still ran",
                names.join(", ")
            ))
            // Its kernels may have waited for their turn all the time.
            .advise("allow more time; `convoke status` says who computes there and who waits"),
        };
        self.shell.drive(Event::Failed {
            n,
            from: None,
            error,
        });
        outcome.take().await
    }

    /// Waits for the permit of a window entry, until step `n - K` has retired. Participants that do not quiesce that
    /// step are given up, so the wait is bounded.
    async fn room(&self, entry: usize) -> Result<OwnedSemaphorePermit, AcquireError> {
        self.window[entry].clone().acquire_owned().await
    }

    /// Returns once every step that was started has retired; meanwhile no step starts. Steps that failed retire within
    /// [`QUIESCE_BOUND`](self::core::QUIESCE_BOUND), and so do all steps once the driver is closed.
    pub async fn quiesce(&self) {
        let _none_starts = self.launch.lock().await;
        self.shell.idle().await;
    }

    /// Ends the lease at this side: calls in flight and later ones fail. The driver listens to what participants say
    /// about its steps until it is dropped.
    pub fn close(&self) {
        self.window.iter().for_each(|w| w.close());
        self.shell.drive(Event::Closed {
            error: self.why_closed(),
        });
    }

    /// Tells the participants that the driver is done with the lease. Call this once the driver is closed and
    /// quiescent.
    pub fn release(&self) {
        let lease = self.lease.id;
        let links = self.shell.links.iter();
        links.for_each(|l| l.send(Frame::Release { lease }));
    }

    /// Resolves when no further call can succeed, or when the driver is dropped; it does not keep the driver alive.
    pub fn broken_later(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut broken = self.shell.when_broken();
        // Waiting fails if the shell, which owns the sender, was dropped.
        async move { drop(broken.wait_for(|broken| *broken).await) }
    }

    /// The error of a closed lease: the loss that broke it, if there was one.
    fn why_closed(&self) -> Error {
        let unloaded = || Error::new(Code::LeaseRetired, "the function was unloaded");
        self.broken().unwrap_or_else(unloaded)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.close();
        self.hub.remove_lease(self.lease.id);
    }
}

/// The names of the peers of these links, in order.
fn names(links: &[Arc<Link>]) -> String {
    let names: Vec<&str> = links.iter().map(|l| l.peer().name.as_str()).collect();
    names.join(",")
}

struct CancelOnDrop<'a> {
    shell: &'a Shell,
    n: Option<u64>,
}

impl CancelOnDrop<'_> {
    fn disarm(mut self) {
        self.n = None;
    }
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(n) = self.n.filter(|_| !mutant!("cancel-not-forwarded")) {
            let error = Error::new(Code::Cancelled, "the caller cancelled the step");
            self.shell.drive(Event::Failed {
                n,
                from: None,
                error,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use convoke_common::world::NoCompute;
    use convoke_graph::DType;
    use convoke_graph::graph::TensorType;
    use convoke_graph::program::DriverSlot;

    use super::*;
    use crate::fuzzing::{LEASE, axes, participants, peer, pool, worker};
    use crate::step::slot::{Meeting, PublishOutcome};

    /// How many results a step has: so many that results arrive while others are not awaited yet.
    const RESULTS: u32 = 4096;
    const STEPS: u64 = 64;

    /// Delivers each result of these steps as soon as it is awaited.
    fn deliver(driver: &Driver) {
        let tensor = Tensor::zeros(DType::F32, &[2]).unwrap();
        for n in 0..STEPS {
            for i in 0..RESULTS {
                let slot = loop {
                    match driver.lease.table.slot(n, i) {
                        Ok(slot) if slot.meeting() == Meeting::ReceiverWaits => break slot,
                        _ => std::hint::spin_loop(),
                    }
                };
                slot.claim(n).unwrap();
                let published = slot.publish(n, Ok(tensor.clone()));
                assert_eq!(published, PublishOutcome::Awaited);
                driver.shell.arrived(n, i);
            }
        }
    }

    #[tokio::test]
    #[allow(clippy::disallowed_methods, reason = "a race needs threads of its own")]
    async fn results_that_arrive_while_a_step_begins_are_counted() {
        let world = World::real(Arc::new(NoCompute));
        let hub = Hub::new(peer(2));
        let workers = [0, 1].map(|ix| worker(ix, vec![]).unwrap());
        workers.iter().for_each(|w| Link::join_local(&hub, w));
        let links = [0, 1].map(|ix| hub.link(&peer(ix)).unwrap());
        let slot = DriverSlot {
            from: 0,
            ty: TensorType::fixed(DType::F32, &[2]),
        };
        let program = DriverProgram {
            feeds: vec![],
            fetches: vec![],
            slots: vec![slot; RESULTS as usize],
        };
        let (window, pool) = (STEPS as u32, pool().unwrap());
        let (of, axes, links) = (participants(), axes(), links.to_vec());
        let driver = Driver::new(&world, hub, LEASE, of, program, axes, window, links, pool);
        let delivering = driver.clone();
        let delivered = std::thread::spawn(move || deliver(&delivering));
        for n in 0..STEPS {
            let call = driver.call(vec![], vec![3], None);
            let resolved = tokio::time::timeout(Duration::from_secs(20), call).await;
            let resolved = resolved.unwrap_or_else(|_| panic!("step {n} hangs"));
            resolved.unwrap();
        }
        delivered.join().unwrap();
    }
}
