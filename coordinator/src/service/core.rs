//! The handle of the membership core, through which other tasks give it inputs and queries.

use convoke_common::{Error, Result};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::membership::{Input, Membership, Moment};

/// How many inputs and queries may wait. Each takes microseconds, and its sender waits for the answer.
const MAILBOX: usize = 256;

/// An input or a query, which sends its own answer.
pub type Call = Box<dyn FnOnce(&mut Membership, Moment) + Send>;

/// The handle of the core's task; clones share it.
#[derive(Clone)]
pub struct Core {
    calls: mpsc::Sender<Call>,
    clock: Clock,
}

/// The receiving end of [`Core`].
pub struct Mailbox {
    pub calls: mpsc::Receiver<Call>,
    pub clock: Clock,
}

/// Converts between the runtime's time and the core's.
#[derive(Clone, Copy)]
pub struct Clock {
    /// [`Moment::START`].
    start: Instant,
}

impl Clock {
    /// Returns the core's time at an instant; the core's start if the instant is before it.
    pub fn moment(self, at: Instant) -> Moment {
        Moment::START + at.duration_since(self.start)
    }

    /// Returns the instant of the core's time; the core's start if the time is before it.
    pub fn instant(self, at: Moment) -> Instant {
        self.start + at.since(Moment::START)
    }

    /// Returns the core's time now.
    pub fn now(self) -> Moment {
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
