//! The runtime of a client's work: a network thread of its own, or the runtime of a caller that brings its own world.
//!
//! Futures of the public API can be awaited on any executor: their work runs here, and dropping one aborts it.

#[cfg(feature = "embedded")]
mod calling_thread;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use convoke_common::error::{Code, Error, Result};
use convoke_common::world::{Endpoint, World};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

/// How long closed connections may take to tell their peers before the network thread ends.
const GOODBYE: Duration = Duration::from_millis(100);

/// A world and the runtime that its tasks run on. A network thread of its own, where it has one, is ended and joined
/// when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct NetThread(Arc<Inner>);

struct Inner {
    world: World,
    handle: Handle,
    own: Option<OwnRuntime>,
}

struct OwnRuntime {
    /// The endpoint whose connections tell their peers of the end before the thread ends.
    endpoint: Arc<OnceLock<Endpoint>>,
    stop: CancellationToken,
    thread: std::thread::JoinHandle<()>,
}

impl NetThread {
    /// Starts a network thread with a runtime of its own.
    // A library cannot borrow a thread of the binary: its calls come from any executor.
    #[allow(clippy::disallowed_methods)]
    pub(crate) fn start(name: &str, world: World) -> Result<NetThread> {
        let failed = |e: std::io::Error| {
            Error::new(Code::Io, format!("cannot start the network thread: {e}"))
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.map_err(failed)?;
        let (handle, stop) = (runtime.handle().clone(), CancellationToken::new());
        let (stopped, endpoint) = (stop.clone(), Arc::<OnceLock<Endpoint>>::default());
        let leaving = endpoint.clone();
        let run = move || {
            runtime.block_on(async {
                stopped.cancelled().await;
                if let Some(endpoint) = leaving.get() {
                    // A peer that misses the goodbye notices the end by its idle timeout.
                    let _ = tokio::time::timeout(GOODBYE, endpoint.wait_idle()).await;
                }
            });
            // A blocking read that hangs must not hold up the process.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(run)
            .map_err(failed)?;
        let own = Some(OwnRuntime {
            endpoint,
            stop,
            thread,
        });
        Ok(NetThread(Arc::new(Inner { world, handle, own })))
    }

    /// Uses the runtime that this is called in, and starts no thread.
    pub(crate) fn current(world: World) -> NetThread {
        NetThread(Arc::new(Inner {
            world,
            handle: Handle::current(),
            own: None,
        }))
    }

    /// Whether the calling thread may block on this runtime's work, because it does not itself run that runtime.
    pub(crate) fn is_elsewhere(&self) -> bool {
        match &self.0.own {
            Some(own) => own.thread.thread().id() != std::thread::current().id(),
            None => Handle::try_current().map_or(true, |here| here.id() != self.0.handle.id()),
        }
    }

    /// Lets the connections of this endpoint say goodbye before the network thread ends. Without a thread of its own it
    /// has no effect.
    pub(crate) fn serves(&self, endpoint: &Endpoint) {
        if let Some(own) = &self.0.own {
            // A network thread serves one session, so the endpoint is set once.
            let _ = own.endpoint.set(endpoint.clone());
        }
    }

    pub(crate) fn world(&self) -> &World {
        &self.0.world
    }

    /// Runs `work` on this runtime, within the caller's tracing span.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> RunningWork<T> {
        let (tell, answer) = oneshot::channel();
        let work = work.in_current_span();
        let task = self.spawn(async move {
            // The caller may have dropped the future; then nobody wants the answer.
            drop(tell.send(work.await));
        });
        RunningWork {
            task,
            answer,
            _thread: self.clone(),
        }
    }

    /// Runs `work` on this runtime until it ends or the returned handle is dropped.
    pub(crate) fn spawn_while(
        &self,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> AbortOnDropHandle<()> {
        AbortOnDropHandle::new(self.spawn(work))
    }

    /// Runs `work` on this runtime to its end, without anybody waiting for it.
    pub(crate) fn detach(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.spawn(work));
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        let _runtime = self.0.handle.enter();
        self.0.world.spawn(work)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(OwnRuntime { stop, thread, .. }) = self.own.take() else {
            return;
        };
        stop.cancel();
        // The last handle may be dropped by a task of the thread itself.
        if thread.thread().id() != std::thread::current().id() {
            drop(thread.join());
        }
    }
}

/// Work that was given to a [`NetThread`]; dropping it cancels the work.
pub(crate) struct RunningWork<T> {
    task: JoinHandle<()>,
    answer: oneshot::Receiver<Result<T>>,
    _thread: NetThread,
}

impl<T> Future for RunningWork<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let answer = ready!(Pin::new(&mut self.answer).poll(cx));
        Poll::Ready(answer.unwrap_or_else(|_| {
            // The task panicked, or its runtime is gone.
            Err(Error::new(Code::Cancelled, "the client ended"))
        }))
    }
}

impl<T> Drop for RunningWork<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use convoke_common::world::NoCompute;

    use super::*;

    fn world() -> World {
        World::real(Arc::new(NoCompute))
    }

    #[tokio::test]
    async fn only_its_own_thread_may_not_wait_for_it() {
        let net = NetThread::start("test-net", world()).unwrap();
        assert!(net.is_elsewhere());
        let same = net.clone();
        let there = net.run(async move { Ok(same.is_elsewhere()) });
        assert_eq!(there.await, Ok(false));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_thread_of_a_runtime_that_a_caller_brings_may_wait_for_it() {
        let net = NetThread::current(world());
        assert!(!net.is_elsewhere());
        let same = net.clone();
        // The test itself is on a thread of its own, and this on one of the two.
        let there = net.run(async move { Ok(same.is_elsewhere()) });
        assert_eq!(there.await, Ok(false));
        let other = NetThread::start("test-net", world()).unwrap();
        let there = other.run(async move { Ok(net.is_elsewhere()) });
        assert_eq!(there.await, Ok(true));
    }
}
