//! Work on the calling thread, for a client whose workers are in its own process.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use convoke_common::Result;
use tracing::Instrument;

use super::NetThread;

/// How often work is polled on the calling thread before it moves to the network thread.
const MOST_TURNS: usize = 8;

/// A waker that records whether the work was woken.
struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

impl NetThread {
    /// Like [`NetThread::run`], but polls the work on the calling thread as long as it need not wait: where everything
    /// is in this process, waking another thread may take longer than the work itself.
    pub(crate) async fn run_here<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let mut work = Box::pin(work.in_current_span());
        let woken = Arc::new(WakeFlag(AtomicBool::new(true)));
        let waker = Waker::from(woken.clone());
        let mut turns = MOST_TURNS;
        // Work that was woken during its poll can go on at once.
        while turns > 0 && woken.0.swap(false, Ordering::Acquire) {
            turns -= 1;
            let _runtime = self.0.handle.enter();
            if let Poll::Ready(done) = work.as_mut().poll(&mut Context::from_waker(&waker)) {
                return done;
            }
        }
        self.run(work).await
    }
}
