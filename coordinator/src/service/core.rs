//! The task that owns the membership core, and the handle through which other tasks give it inputs.

use std::sync::Arc;

use convoke_common::actor::{self, Core as _};
use convoke_common::{Error, Result};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::Service;
use crate::membership::{Input, Membership, Moment, events};

/// How many inputs and queries may wait. Each takes microseconds, and its sender waits for the answer.
const MAILBOX: usize = 256;

/// An input or a query, which sends its own answer.
type Call = Box<dyn FnOnce(&mut Membership, Moment) + Send>;

/// The handle of the core's task; clones share it.
#[derive(Clone)]
pub struct Core {
    calls: mpsc::Sender<Call>,
    clock: Clock,
}

/// The receiving end of [`Core`].
pub struct Mailbox {
    calls: mpsc::Receiver<Call>,
    clock: Clock,
}

/// Converts between the runtime's time and the core's.
#[derive(Clone, Copy)]
struct Clock {
    /// [`Moment::START`].
    start: Instant,
}

impl Clock {
    fn moment(self, at: Instant) -> Moment {
        Moment::START + at.duration_since(self.start)
    }

    fn instant(self, at: Moment) -> Instant {
        self.start + at.since(Moment::START)
    }

    fn now(self) -> Moment {
        self.moment(Instant::now())
    }
}

impl Core {
    /// Returns a mailbox and its handle. The core's time begins now.
    pub fn new() -> (Core, Mailbox) {
        let (tx, rx) = mpsc::channel(MAILBOX);
        let start = Instant::now();
        let clock = Clock { start };
        (Core { calls: tx, clock }, Mailbox { calls: rx, clock })
    }

    /// Applies an input to the core and returns the core's answer. The commands that the core then gives are begun
    /// before the next input or query.
    pub async fn apply<I: Input>(&self, input: I) -> Result<I::Answer> {
        self.call(move |core, now| core.apply(now, input)).await
    }

    /// Reads from the core, once all earlier inputs were applied and their commands were begun.
    pub async fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Membership, Moment) -> T + Send + 'static,
    ) -> Result<T> {
        self.call(move |core, now| query(core, now)).await
    }

    /// Returns the core's time at an instant; the core's start if the instant is before it.
    pub fn moment(&self, at: Instant) -> Moment {
        self.clock.moment(at)
    }

    /// Returns the instant of the core's time; the core's start if the time is before it.
    pub fn instant(&self, at: Moment) -> Instant {
        self.clock.instant(at)
    }

    async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Membership, Moment) -> T + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let call: Call = Box::new(move |core, now| {
            // The caller may have stopped waiting; an input takes effect nevertheless.
            let _ = answer.send(call(core, now));
        });
        let stopping = || Error::unreachable(None, "the coordinator is stopping");
        self.calls.send(call).await.map_err(|_| stopping())?;
        answered.await.map_err(|_| stopping())
    }
}

/// Runs the core until its task is stopped.
pub async fn run(service: Arc<Service>, mut core: Membership, mailbox: Mailbox) {
    let Mailbox { mut calls, clock } = mailbox;
    loop {
        let due = core.poll_timeout().map(|at| clock.instant(at));
        tokio::select! {
            biased;
            call = calls.recv() => match call {
                Some(call) => call(&mut core, clock.now()),
                None => return,
            },
            () = actor::due(due) => core.apply(clock.now(), events::Timeout {}),
        }
        while let Some(command) = core.next_command() {
            service.perform(command).await;
        }
        service.freed.send_if_modified(|known| {
            let freed = core.freed();
            std::mem::replace(known, freed) != freed
        });
    }
}
