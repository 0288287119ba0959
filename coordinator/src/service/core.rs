//! The task that owns the membership core, and the handle through which other tasks give it inputs.

use std::sync::Arc;

use convoke_common::{Error, Result};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::Service;
use crate::membership::Membership;

/// How many inputs may wait. Each takes microseconds, and its sender waits for the answer.
const MAILBOX: usize = 256;

type Input = Box<dyn FnOnce(&mut Membership, Instant) + Send>;

/// The handle of the core's task; clones share it.
#[derive(Clone)]
pub struct Core(mpsc::Sender<Input>);

/// The receiving end of [`Core`].
pub struct Mailbox(mpsc::Receiver<Input>);

impl Core {
    /// Returns a mailbox and its handle.
    pub fn new() -> (Core, Mailbox) {
        let (tx, rx) = mpsc::channel(MAILBOX);
        (Core(tx), Mailbox(rx))
    }

    /// Runs `input` on the core and returns its result. The commands that the core then gives are begun before the next
    /// input.
    pub async fn call<T: Send + 'static>(
        &self,
        input: impl FnOnce(&mut Membership, Instant) -> T + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let input: Input = Box::new(move |core, now| {
            // The caller may have stopped waiting; the input takes effect nevertheless.
            let _ = answer.send(input(core, now));
        });
        let stopping = || Error::unreachable(None, "the coordinator is stopping");
        self.0.send(input).await.map_err(|_| stopping())?;
        answered.await.map_err(|_| stopping())
    }
}

/// Runs the core until its task is stopped.
pub async fn run(service: Arc<Service>, mut core: Membership, mut mailbox: Mailbox) {
    loop {
        let due = core.poll_timeout();
        let timeout = async {
            match due {
                Some(due) => sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            input = mailbox.0.recv() => match input {
                Some(input) => input(&mut core, Instant::now()),
                None => return,
            },
            () = timeout => core.handle_timeout(Instant::now()),
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
