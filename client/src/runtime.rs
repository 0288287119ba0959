//! The thread that a client's network I/O runs on.
//!
//! Futures of the public API can be awaited on any executor: their work runs here, and dropping one aborts it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use convoke_common::error::{Code, Error, Result};
use convoke_common::world::{Compute, Job, Refusal, RefusedJob};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A thread with a current-thread runtime, ended and joined when the last handle is dropped.
#[derive(Clone)]
pub(crate) struct NetThread(Arc<Inner>);

struct Inner {
    handle: Handle,
    stop: CancellationToken,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl NetThread {
    /// Starts the thread.
    // A library has no binary's thread to borrow: its calls come from any executor.
    #[allow(clippy::disallowed_methods)]
    pub(crate) fn start(name: &str) -> Result<NetThread> {
        let failed = |e: std::io::Error| {
            Error::new(Code::Io, format!("cannot start the network thread: {e}"))
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.map_err(failed)?;
        let (handle, stop) = (runtime.handle().clone(), CancellationToken::new());
        let stopped = stop.clone();
        let run = move || {
            runtime.block_on(stopped.cancelled());
            // A blocking read that hangs must not hold up the process.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(run)
            .map_err(failed)?;
        Ok(NetThread(Arc::new(Inner {
            handle,
            stop,
            thread: Some(thread),
        })))
    }

    /// Runs `work` on the thread.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Running<T> {
        Running {
            task: self.0.handle.spawn(work),
            _thread: self.clone(),
        }
    }

    /// Runs `work` on the thread, whoever forgets it.
    pub(crate) fn detach(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.0.handle.spawn(work));
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop.cancel();
        let Some(thread) = self.thread.take() else {
            return;
        };
        // The last handle may be dropped by a task of the thread itself.
        if thread.thread().id() != std::thread::current().id() {
            drop(thread.join());
        }
    }
}

/// Work on the network thread; dropping it cancels the work.
pub(crate) struct Running<T> {
    task: JoinHandle<Result<T>>,
    _thread: NetThread,
}

impl<T> Future for Running<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        Pin::new(&mut self.task).poll(cx).map(|r| {
            r.unwrap_or_else(|e| {
                Err(Error::new(
                    Code::Cancelled,
                    format!("the client ended: {e}"),
                ))
            })
        })
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A client computes nothing.
pub(crate) struct NoCompute;

impl Compute for NoCompute {
    fn threads(&self) -> usize {
        0
    }

    fn submit(&self, _: i64, job: Job) -> std::result::Result<(), RefusedJob> {
        Err(RefusedJob {
            job,
            reason: Refusal::Closed,
        })
    }
}
