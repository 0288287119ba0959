//! The step driver: the caller's end of a lease.
//!
//! [`Driver::call`] starts a step, feeds its inputs, awaits its results, and resolves with them or with the
//! root cause. Decisions are the [`core`]'s; this shell owns slots, links and the window.
//!
//! Invariants
//! 1. Steps are numbered in the order they start; step `n` starts after step `n - K` has retired.
//! 2. A call that is dropped cancels its step everywhere.

pub mod core;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use convoke_common::Tensor;
use convoke_common::error::{Code, Error, Result};
use convoke_common::ids::{LeaseId, ParticipantIx, StepKey};
use convoke_common::memory::Pool;
use convoke_common::program::{Axes, DriverProgram, FetchFrom, Participant};
use convoke_common::telemetry::TraceIds;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use self::core::{Command, Core, Event};
use crate::frame::Frame;
use crate::hub::Hub;
use crate::lease::{Lease, RecvSpec, StepHandler};
use crate::link::{Link, Outgoing};
use crate::slot::Registered;

/// How long a consequence waits for its cause once the step has failed: a killed peer is noticed by its
/// neighbours within this time of each other.
const CAUSE_BOUND: Duration = Duration::from_millis(300);

/// How long a failed step may take to quiesce, looked at twice: kernels notice within milliseconds that they
/// are cancelled.
const QUIESCE_BOUND: Duration = Duration::from_secs(5);

/// Drives the steps of one lease.
pub struct Driver {
    lease: Arc<Lease>,
    hub: Arc<Hub>,
    program: DriverProgram,
    shell: Arc<Shell>,
    launch: tokio::sync::Mutex<u64>,
    /// One permit per entry of the window.
    window: Vec<Arc<Semaphore>>,
}

struct Shell {
    lease: OnceLock<Weak<Lease>>,
    links: Vec<Arc<Link>>,
    core: Mutex<Core>,
    /// Whether somebody carries out commands at the moment.
    draining: AtomicBool,
    /// Calls in flight by window entry.
    calls: Vec<Mutex<Option<InFlight>>>,
}

struct InFlight {
    n: u64,
    start: Frame,
    results: Vec<Option<Tensor>>,
    tell: mpsc::UnboundedSender<Told>,
    cancel: CancellationToken,
    /// Held until retirement: it is the entry's only one.
    _permit: OwnedSemaphorePermit,
}

enum Told {
    Resolved(Result<Vec<Option<Tensor>>>),
    Suspect(Error),
}

impl Driver {
    /// A driver over established links, one per worker in participant order.
    pub fn new(
        hub: Arc<Hub>,
        id: LeaseId,
        participants: Vec<Participant>,
        program: DriverProgram,
        axes: Axes,
        in_flight: u32,
        links: Vec<Arc<Link>>,
        pool: Pool,
    ) -> Arc<Driver> {
        let names = links.iter().map(|l| l.peer().name.clone()).collect();
        let k = in_flight.max(1);
        let shell = Arc::new(Shell {
            lease: OnceLock::new(),
            links,
            core: Mutex::new(Core::new(names)),
            draining: AtomicBool::new(false),
            calls: (0..k).map(|_| Mutex::new(None)).collect(),
        });
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
        let lease = Arc::new(lease);
        let _ = shell.lease.set(Arc::downgrade(&lease));
        hub.add_lease(lease.clone());
        // A link that ended before the lease was in the hub told nobody.
        for (ix, link) in shell.links.iter().enumerate() {
            if link.is_closed() {
                let msg = format!("lost contact with {}", link.peer().name);
                shell.drive(Event::Lost {
                    peer: ix as ParticipantIx,
                    error: Error::new(Code::PeerLost, msg),
                });
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

    /// The lease.
    pub fn lease(&self) -> LeaseId {
        self.lease.id
    }

    /// What is fed and fetched.
    pub fn program(&self) -> &DriverProgram {
        &self.program
    }

    /// Why no further call can succeed, where none can.
    pub fn broken(&self) -> Option<Error> {
        self.shell.core().broken().cloned()
    }

    /// Runs one step: `inputs` in the order of the feeds, `axes` in the order of the lease's bounds.
    /// Resolves with the results in the order of the fetches.
    pub async fn call(
        &self,
        inputs: Vec<Tensor>,
        axes: Vec<i64>,
        deadline: Option<Duration>,
    ) -> Result<Vec<Tensor>> {
        let Some(bound) = deadline else {
            return self.step(inputs, axes).await;
        };
        let late = || {
            let msg = format!("the step did not end within its deadline of {bound:?}");
            Error::new(Code::DeadlineExceeded, msg)
        };
        // Dropping the step's future cancels it everywhere.
        match tokio::time::timeout(bound, self.step(inputs, axes)).await {
            Ok(r) => r,
            Err(_) => Err(late()),
        }
    }

    async fn step(&self, inputs: Vec<Tensor>, axes: Vec<i64>) -> Result<Vec<Tensor>> {
        let (mut told, n) = self.begin(&inputs, axes).await?;
        let guard = CancelOnDrop {
            shell: &self.shell,
            n: Some(n),
        };
        let outcome = match told.recv().await {
            Some(Told::Suspect(error)) => {
                match tokio::time::timeout(CAUSE_BOUND, told.recv()).await {
                    Ok(Some(Told::Resolved(r))) => r,
                    _ => Err(error),
                }
            }
            Some(Told::Resolved(r)) => r,
            None => Err(Error::internal("a step was forgotten by its driver")),
        };
        guard.disarm();
        let mut results = outcome?;
        let mut uses: Vec<usize> = vec![0; results.len()];
        for f in &self.program.fetches {
            if let FetchFrom::Worker { slot, .. } = f.from {
                uses[slot as usize] += 1;
            }
        }
        self.program
            .fetches
            .iter()
            .map(|f| match f.from {
                FetchFrom::Param(i) => inputs.get(i as usize).cloned(),
                FetchFrom::Worker { slot, .. } => {
                    let slot = slot as usize;
                    uses[slot] -= 1;
                    if uses[slot] == 0 {
                        results[slot].take()
                    } else {
                        results[slot].clone()
                    }
                }
            })
            .map(|t| t.ok_or_else(|| Error::internal("a result is missing")))
            .collect()
    }

    /// Waits for room in the window, then starts and feeds a step.
    async fn begin(
        &self,
        inputs: &[Tensor],
        axes: Vec<i64>,
    ) -> Result<(mpsc::UnboundedReceiver<Told>, u64)> {
        let feeds = self.program.feeds.len();
        if inputs.len() != feeds {
            let msg = format!("{} inputs for {feeds} parameters", inputs.len());
            return Err(Error::new(Code::InvalidInput, msg));
        }
        let (tell, told) = mpsc::unbounded_channel();
        let mut next = self.launch.lock().await;
        let n = *next;
        let entry = (n % self.window.len() as u64) as usize;
        let permit = self.room(n, entry).await;
        let permit =
            permit.map_err(|_| Error::new(Code::LeaseRetired, "the function was unloaded"))?;
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
        let trace = convoke_common::telemetry::current_trace();
        let call = InFlight {
            n,
            start: Frame::Start { key, axes, trace },
            results: vec![None; slots],
            tell,
            cancel: cancel.clone(),
            _permit: permit,
        };
        *self.shell.calls[entry]
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(call);
        // A result may even be here already; it counts once the step has begun.
        let mut early = Vec::new();
        for slot in 0..slots as u32 {
            if let Ok(s) = self.lease.table.slot(n, slot)
                && let Registered::Ready(t) = s.register(n)
            {
                early.push((slot, t));
            }
        }
        self.shell.drive(Event::Begin { n, results: slots });
        for (slot, t) in early {
            self.shell.store(n, slot, t);
        }
        for (feed, tensor) in self.program.feeds.iter().zip(inputs) {
            for (to, slot) in &feed.to {
                if let Some(link) = self.shell.links.get(usize::from(*to)) {
                    link.send_tensor(Outgoing {
                        key,
                        slot: *slot,
                        tensor: tensor.clone(),
                        priority: u64::MAX,
                        cancel: cancel.clone(),
                        sent: Box::new(|| {}),
                    });
                }
            }
        }
        Ok((told, n))
    }

    /// The permit of a window entry, once step `n - K` has retired. A worker that does not quiesce it after
    /// it failed is given up, so that nobody waits for ever.
    async fn room(&self, n: u64, entry: usize) -> Result<OwnedSemaphorePermit, AcquireError> {
        let permit = self.window[entry].clone().acquire_owned();
        tokio::pin!(permit);
        let mut late = Vec::new();
        loop {
            if let Ok(permit) = tokio::time::timeout(QUIESCE_BOUND, &mut permit).await {
                return permit;
            }
            let before = n.wrapping_sub(self.window.len() as u64);
            let now = self.shell.core().unquiesced(before);
            for peer in now.iter().copied().filter(|w| late.contains(w)) {
                let msg = format!(
                    "{} did not stop a step that ended",
                    self.lease.name_of(peer)
                );
                let error = Error::new(Code::Wedged, msg).advise("restart this worker");
                self.shell.drive(Event::Lost { peer, error });
            }
            late = now;
        }
    }

    /// Returns once every step that was started has retired.
    pub async fn quiesce(&self) {
        for entry in &self.window {
            // A closed window has nothing to wait for.
            drop(entry.acquire().await);
        }
    }

    /// Ends the lease at this side: calls in flight and later ones fail.
    pub fn close(&self) {
        self.window.iter().for_each(|w| w.close());
        let error = Error::new(Code::LeaseRetired, "the function was unloaded");
        self.shell.drive(Event::Closed { error });
        self.hub.remove_lease(self.lease.id);
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.close();
    }
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
        if let Some(n) = self.n {
            let error = Error::new(Code::Cancelled, "the caller cancelled the step");
            self.shell.drive(Event::Failed {
                n,
                from: None,
                error,
            });
        }
    }
}

impl Shell {
    fn core(&self) -> std::sync::MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lease(&self) -> Option<Arc<Lease>> {
        self.lease.get()?.upgrade()
    }

    fn call(&self, n: u64) -> &Mutex<Option<InFlight>> {
        &self.calls[(n % self.calls.len() as u64) as usize]
    }

    fn with_call<T>(&self, n: u64, f: impl FnOnce(&mut InFlight) -> T) -> Option<T> {
        let mut c = self.call(n).lock().unwrap_or_else(PoisonError::into_inner);
        c.as_mut().filter(|c| c.n == n).map(f)
    }

    fn store(&self, n: u64, slot: u32, tensor: Tensor) {
        // The results of a step that failed meanwhile are gone.
        let stored = self.with_call(n, |c| {
            let result = c.results.get_mut(slot as usize)?;
            result.replace(tensor);
            Some(())
        });
        if stored.flatten().is_some() {
            self.drive(Event::Arrived { n });
        }
    }

    /// Applies an event and carries out what follows, in the order decided. Commands run outside the lock,
    /// since a local link calls straight into its peer, which may call back: what such a call decides is
    /// carried out by the one who is at it already.
    fn drive(&self, event: Event) {
        let mut core = self.core();
        core.apply(event);
        if self.draining.swap(true, Ordering::Relaxed) {
            return;
        }
        while let Some(command) = core.next_command() {
            drop(core);
            self.execute(command);
            core = self.core();
        }
        self.draining.store(false, Ordering::Relaxed);
    }

    fn execute(&self, command: Command) {
        let Some(lease) = self.lease() else { return };
        match command {
            Command::Start { n } => {
                if let Some(frame) = self.with_call(n, |c| c.start.clone()) {
                    self.links.iter().for_each(|l| l.send(frame.clone()));
                }
            }
            Command::Abort { n, error, except } => {
                lease.table.abort(n);
                self.with_call(n, |c| c.cancel.cancel());
                let key = StepKey { lease: lease.id, n };
                for (ix, link) in self.links.iter().enumerate() {
                    if except != Some(ix as ParticipantIx) {
                        link.send(Frame::Abort {
                            key,
                            error: Box::new(error.clone()),
                        });
                    }
                }
            }
            Command::Resolve { n, result } => {
                self.with_call(n, |c| {
                    let results = std::mem::take(&mut c.results);
                    let _ = c.tell.send(Told::Resolved(result.map(|()| results)));
                });
            }
            Command::Suspect { n, error } => {
                self.with_call(n, |c| {
                    let _ = c.tell.send(Told::Suspect(error));
                });
            }
            Command::Retire { n } => {
                lease.table.retire(n);
                let mut c = self.call(n).lock().unwrap_or_else(PoisonError::into_inner);
                if c.as_ref().is_some_and(|c| c.n == n) {
                    // Dropping the permit opens the entry for step n + K.
                    *c = None;
                }
            }
        }
    }
}

impl StepHandler for Shell {
    fn start(&self, n: u64, _: Vec<i64>, _: TraceIds) {
        tracing::warn!(n, "a driver was told to start a step");
    }

    fn arrived(&self, n: u64, slot: u32) {
        let Some(lease) = self.lease() else { return };
        if let Ok(s) = lease.table.slot(n, slot)
            && let Some(t) = s.take(n)
        {
            self.store(n, slot, t);
        }
    }

    fn abort(&self, n: u64, error: Error, from: ParticipantIx) {
        self.drive(Event::Failed {
            n,
            from: Some(from),
            error,
        });
    }

    fn done(&self, n: u64, from: ParticipantIx) {
        self.drive(Event::Done { n, from });
    }

    fn peer_lost(&self, peer: ParticipantIx, error: &Error) {
        // It may have been a second link to the same peer.
        let link = self.links.get(usize::from(peer));
        if link.is_some_and(|l| !l.is_closed()) {
            return;
        }
        self.drive(Event::Lost {
            peer,
            error: error.clone(),
        });
    }
}
