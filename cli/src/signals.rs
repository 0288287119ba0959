//! Ctrl-C and SIGTERM.

use std::future::Future;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// Hears SIGINT and SIGTERM from the time it is made.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Instead of ending the process, the signals are heard from now on.
    pub fn hear() -> Result<Signals, Failure> {
        let failed = |e: std::io::Error| Failure::io("cannot wait for signals", &e);
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
        })
    }

    /// Waits for one of them.
    pub async fn wait(&mut self) {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Does `work` unless a signal comes first, which drops it.
    pub async fn or<T>(
        &mut self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            () = self.wait() => Err(Failure::Interrupted),
            done = work => done,
        }
    }

    /// Does `work`; a signal ends the process at once, for those who ask twice.
    pub async fn or_exit<T>(&mut self, work: impl Future<Output = T>) -> T {
        tokio::select! {
            biased;
            () = self.wait() => std::process::exit(130),
            done = work => done,
        }
    }
}
