//! The task that owns the membership core, and the handle that others have.

use std::sync::Arc;

use convoke_common::{Code, Error, Result};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::Service;
use crate::membership::Membership;

/// Inputs that wait; each takes microseconds, and whoever sends one waits for its answer.
const MAILBOX: usize = 256;

type Input = Box<dyn FnOnce(&mut Membership, Instant) + Send>;

/// Where inputs go.
#[derive(Clone)]
pub struct Core(mpsc::Sender<Input>);

/// Where they arrive.
pub struct Mailbox(mpsc::Receiver<Input>);

impl Core {
    /// A mailbox and its handle.
    pub fn new() -> (Core, Mailbox) {
        let (tx, rx) = mpsc::channel(MAILBOX);
        (Core(tx), Mailbox(rx))
    }

    /// Gives the core an input, or reads it, and answers what that yields. What the core asks for in turn is begun
    /// before the next input.
    pub async fn call<T: Send + 'static>(
        &self,
        input: impl FnOnce(&mut Membership, Instant) -> T + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let input: Input = Box::new(move |core, now| {
            // The caller may have stopped waiting; the input counts all the same.
            let _ = answer.send(input(core, now));
        });
        let stopping = || Error::new(Code::Unreachable, "the coordinator is stopping");
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
        service.changed.notify_waiters();
    }
}
