//! The shell of a driver's core: carries out its commands on links, slots and waiting callers, and keeps its time.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use convoke_common::actor::{self, SharedCore};
use convoke_common::error::Error;
use convoke_common::ids::StepKey;
use convoke_common::mutant;
use convoke_common::telemetry::TraceIds;
use convoke_graph::ids::ParticipantIx;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::core::{Command, Core, Event};
use super::outcome::Outcome;
use crate::frame::Frame;
use crate::lease::{Lease, StepHandler};
use crate::link::Link;
use crate::step::table::Delivery;
use crate::step_event;

/// Carries out the commands of a driver's core.
pub(super) struct Shell {
    pub(super) lease: OnceLock<Weak<Lease>>,
    pub(super) links: Vec<Arc<Link>>,
    pub(super) core: SharedCore<Core>,
    /// The calls in flight, by window entry.
    calls: Vec<Mutex<Option<UnretiredCall>>>,
    /// When the core's next timeout is due.
    due: watch::Sender<Option<Instant>>,
    /// Whether every step that began has retired.
    idle: watch::Sender<bool>,
    /// Whether no further step can succeed.
    broken: watch::Sender<bool>,
}

/// A call whose step has not retired.
pub(super) struct UnretiredCall {
    pub(super) n: u64,
    pub(super) start: Frame,
    /// Whether the call accepts errors in place of results.
    pub(super) partial: bool,
    pub(super) results: Vec<Option<Delivery>>,
    pub(super) outcome: Arc<Outcome>,
    pub(super) cancel: CancellationToken,
    /// The only permit of the window entry, held until the step retires.
    pub(super) _permit: OwnedSemaphorePermit,
}

impl Shell {
    pub(super) fn new(links: Vec<Arc<Link>>, in_flight: u32) -> Arc<Shell> {
        let names = links.iter().map(|l| l.peer().name.clone()).collect();
        Arc::new(Shell {
            lease: OnceLock::new(),
            links,
            core: SharedCore::new(Core::new(names)),
            calls: (0..in_flight).map(|_| Mutex::new(None)).collect(),
            due: watch::Sender::new(None),
            idle: watch::Sender::new(true),
            broken: watch::Sender::new(false),
        })
    }

    fn lease(&self) -> Option<Arc<Lease>> {
        self.lease.get()?.upgrade()
    }

    fn call(&self, n: u64) -> MutexGuard<'_, Option<UnretiredCall>> {
        let entry = &self.calls[(n % self.calls.len() as u64) as usize];
        entry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_call<T>(&self, n: u64, f: impl FnOnce(&mut UnretiredCall) -> T) -> Option<T> {
        self.call(n).as_mut().filter(|c| c.n == n).map(f)
    }

    /// Records the call of a step that is about to begin.
    pub(super) fn enter(&self, call: UnretiredCall) {
        let mut entry = self.call(call.n);
        *entry = Some(call);
    }

    /// Stores a result, or the error that came in its place, which ends a step that is not partial: its sender takes
    /// the step for a partial one.
    pub(super) fn store(&self, n: u64, slot: u32, delivered: Delivery) {
        // A step that has failed meanwhile takes no more results.
        let event = self.with_call(n, |c| {
            let result = c.results.get_mut(slot as usize)?;
            if let (Err(error), false) = (&delivered, c.partial) {
                return Some(Event::Failed {
                    n,
                    // The sender of the error did not end the step.
                    from: Some(self.lease()?.me),
                    error: Error::clone(error),
                });
            }
            result.replace(delivered);
            Some(Event::Arrived { n })
        });
        if let Some(event) = event.flatten() {
            self.drive(event);
        }
    }

    /// Reports to the core that a link ended. The error gets the address of the participant.
    pub(super) fn lost(&self, peer: ParticipantIx, mut error: Error) {
        let lease = self.lease();
        let participant = lease
            .as_ref()
            .and_then(|l| l.participants.get(usize::from(peer)));
        if let (Some(p), Some(site)) = (participant, &mut error.site)
            && !p.address.is_empty()
        {
            site.host.get_or_insert_with(|| p.address.clone());
        }
        self.drive(Event::Lost { peer, error });
    }

    pub(super) fn drive(&self, event: Event) {
        self.advance(|core, now| core.apply(now, event));
    }

    /// Tells the core of an event. Its commands are carried out in order: a local link calls straight into its peer, which may
    /// call back.
    fn advance(&self, event: impl FnOnce(&mut Core, Instant)) {
        let event = |core: &mut Core| event(core, Instant::now());
        let perform = |command| self.execute(command);
        self.core.tell_in_order(event, perform, |core| {
            replace(&self.due, core.poll_timeout());
            replace(&self.idle, core.live_steps() == 0);
            replace(&self.broken, core.is_broken());
        });
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
                let key = StepKey { lease: lease.id, n };
                step_event!("abort", key, code = error.code.name());
                lease.table.abort(n);
                self.with_call(n, |c| c.cancel.cancel());
                for (ix, link) in self.links.iter().enumerate() {
                    let left_out = ix + 1 == self.links.len() && mutant!("abort-skips-worker");
                    if except != Some(ix as ParticipantIx) && !left_out {
                        link.send(Frame::Abort {
                            key: lease.key_at(ix as ParticipantIx, n),
                            error: Box::new(error.clone()),
                        });
                    }
                }
            }
            Command::Resolve { n, result } => {
                let key = StepKey { lease: lease.id, n };
                match &result {
                    Ok(()) => step_event!("outcome", key),
                    Err(error) => step_event!("outcome", key, code = error.code.name()),
                }
                self.with_call(n, |c| {
                    let results = std::mem::take(&mut c.results);
                    c.outcome.put(result.map(|()| results));
                });
            }
            Command::Attach { n, error } => {
                tracing::debug!(key = %StepKey { lease: lease.id, n }, %error, "failed as well");
                self.with_call(n, |c| c.outcome.attach(error));
            }
            Command::Retire { n } => {
                step_event!("retire", StepKey { lease: lease.id, n });
                lease.table.retire(n);
                let mut call = self.call(n);
                if call.as_ref().is_some_and(|c| c.n == n) {
                    // Dropping the permit frees the entry for step `n + K`.
                    *call = None;
                }
            }
        }
    }
}

/// Calls the core when its timeout is due. Ends when the shell is dropped.
pub(super) async fn keep_time(shell: Weak<Shell>, mut due: watch::Receiver<Option<Instant>>) {
    loop {
        let timeout = actor::due(*due.borrow_and_update());
        tokio::select! {
            biased;
            changed = due.changed() => if changed.is_err() { return },
            () = timeout => {
                let Some(shell) = shell.upgrade() else { return };
                shell.advance(Core::handle_timeout);
            }
        }
    }
}

impl StepHandler for Shell {
    fn start(&self, n: u64, _: Vec<i64>, _: TraceIds, _: bool) -> bool {
        tracing::warn!(n, "a driver was told to start a step");
        false
    }

    fn arrived(&self, n: u64, slot: u32) {
        let Some(lease) = self.lease() else { return };
        if let Ok(s) = lease.table.slot(n, slot)
            && let Some(delivered) = s.take(n)
        {
            if delivered.is_ok() {
                step_event!("taken", StepKey { lease: lease.id, n }, slot = slot);
            }
            self.store(n, slot, delivered);
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

    fn released(&self) {
        tracing::warn!("a driver was told that its driver is done");
    }

    fn peer_lost(&self, peer: ParticipantIx, error: &Error) {
        // The lost link may have been a second one to the same peer.
        let link = self.links.get(usize::from(peer));
        if link.is_some_and(|l| !l.is_closed()) {
            return;
        }
        let left = link.filter(|l| l.left());
        let error = left.map_or_else(|| error.clone(), |l| Error::leaving(&l.peer().name));
        self.lost(peer, error);
    }
}

impl Shell {
    /// Watches when the core's next timeout is due.
    pub(super) fn due(&self) -> watch::Receiver<Option<Instant>> {
        self.due.subscribe()
    }

    /// Watches whether no further step can succeed.
    pub(super) fn when_broken(&self) -> watch::Receiver<bool> {
        self.broken.subscribe()
    }

    /// Returns once every step that began has retired.
    pub(super) async fn idle(&self) {
        // Waiting cannot fail, since the shell owns the sender.
        let _ = self.idle.subscribe().wait_for(|idle| *idle).await;
    }
}

/// Replaces the watched value; watchers are woken only if it changed.
fn replace<T: PartialEq>(watched: &watch::Sender<T>, new: T) {
    watched.send_if_modified(|last| {
        let changed = *last != new;
        *last = new;
        changed
    });
}
