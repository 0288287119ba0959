//! Closures of the program, and where they run: always on the thread that calls or awaits this client, never on a
//! network thread or a loading thread. So a closure that takes long holds up its own program and nobody else.
//!
//! ```text
//! network thread ──note──> Reports ──awaiting──> closure, on the thread that awaits
//! ```

use std::any::Any;
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use convoke_common::error::{Code, Error, Result};
use futures::FutureExt;
use tokio::sync::Notify;

use crate::cluster::runtime::NetThread;
use crate::model::phase::Phase;

/// A closure that runs for longer than this causes a warning in the log.
const LONG: Duration = Duration::from_secs(1);
/// How many reports may wait for their closure; beyond that the oldest is dropped.
const MOST_REPORTS: usize = 64;

/// Runs a closure of the program on the calling thread. `what` names the closure and its line. A panic becomes an
/// error.
pub(crate) fn run<T>(net: &NetThread, what: &str, closure: impl FnOnce() -> T) -> Result<T> {
    let name = what.to_owned();
    let _warning = net.spawn_while(async move {
        tokio::time::sleep(LONG).await;
        tracing::warn!("{name} has run for {LONG:?}, and holds up the thread that called it");
    });
    let done = unbudgeted(|| catch_unwind(AssertUnwindSafe(closure)))?;
    done.map_err(|payload| panicked(what, &*payload))
}

/// Runs `work` outside of tokio's cooperative budget. A task that has done much is told to wait until it has paused,
/// which it cannot while an executor of another kind waits in `work`.
fn unbudgeted<T>(work: impl FnOnce() -> T) -> Result<T> {
    let done = tokio::task::unconstrained(async { work() }).now_or_never();
    done.ok_or_else(|| Error::internal("work without a pause has paused"))
}

fn panicked(what: &str, payload: &(dyn Any + Send)) -> Error {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("without a message");
    Error::new(Code::InvalidArgument, format!("{what} panicked: {text}"))
}

/// Reports that wait until the program's closure is called with them.
pub(crate) struct Reports<T> {
    waiting: Mutex<VecDeque<T>>,
    more: Notify,
}

impl<T> Default for Reports<T> {
    fn default() -> Self {
        Reports {
            waiting: Mutex::default(),
            more: Notify::new(),
        }
    }
}

impl<T> Reports<T> {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a report, on any thread. It replaces the latest waiting report where `replaces` returns true for that one.
    pub(crate) fn note(&self, report: T, replaces: impl FnOnce(&T) -> bool) {
        let mut waiting = self.waiting();
        if waiting.back().is_some_and(replaces) {
            waiting.pop_back();
        }
        if waiting.len() == MOST_REPORTS {
            waiting.pop_front();
        }
        waiting.push_back(report);
        drop(waiting);
        self.more.notify_one();
    }

    /// Awaits `work`, and calls `tell` on this thread with every report that is noted meanwhile. An error of `tell`
    /// ends the work.
    pub(crate) async fn awaiting<R>(
        &self,
        work: impl Future<Output = Result<R>>,
        mut tell: impl FnMut(T) -> Result<()>,
    ) -> Result<R> {
        let mut work = pin!(work);
        loop {
            let done = tokio::select! {
                biased;
                () = self.more.notified() => None,
                done = &mut work => Some(done),
            };
            loop {
                // The lock is not held for `tell`: the closure may cause reports.
                let report = self.waiting().pop_front();
                let Some(report) = report else { break };
                tell(report)?;
            }
            if let Some(done) = done {
                return done;
            }
        }
    }
}

/// Passes a model's progress to the program's closure, if the program has set one.
#[derive(Clone, Default)]
pub(crate) struct Progress(Option<Arc<Listener>>);

struct Listener {
    /// The closure's name and line, for messages.
    what: String,
    closure: Box<dyn Fn(Phase) + Send + Sync>,
    reports: Reports<Phase>,
}

impl Progress {
    /// Progress that is passed to this closure.
    pub(crate) fn told(what: String, closure: impl Fn(Phase) + Send + Sync + 'static) -> Progress {
        Progress(Some(Arc::new(Listener {
            what,
            closure: Box::new(closure),
            reports: Reports::default(),
        })))
    }

    /// Notes a phase, on any thread. It replaces the latest waiting phase where both are of one kind, and neither
    /// reruns nor remarks.
    pub(crate) fn note(&self, phase: Phase) {
        if let Some(listener) = &self.0 {
            let kind = std::mem::discriminant(&phase);
            let stays = matches!(phase, Phase::Rerun(_) | Phase::Remark(_));
            let replaces = |former: &Phase| !stays && std::mem::discriminant(former) == kind;
            listener.reports.note(phase, replaces);
        }
    }

    /// Awaits `work`; the closure is called on the thread that awaits this.
    pub(crate) async fn awaiting<R>(
        &self,
        net: &NetThread,
        work: impl Future<Output = Result<R>>,
    ) -> Result<R> {
        let Some(listener) = &self.0 else {
            return work.await;
        };
        let tell = |phase| run(net, &listener.what, || (listener.closure)(phase));
        listener.reports.awaiting(work, tell).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reports_are_told_in_order_before_the_work_is_over() {
        let reports = Arc::new(Reports::<(char, u32)>::default());
        let noting = reports.clone();
        let work = async move {
            for report in [('a', 1), ('a', 2), ('b', 1), ('b', 2), ('c', 1)] {
                noting.note(report, |former| former.0 == 'a' && report.0 == 'a');
            }
            Ok(7)
        };
        let mut told = vec![];
        let tell = |report| {
            told.push(report);
            Ok(())
        };
        let result = reports.awaiting(work, tell).await;
        assert_eq!(result, Ok(7));
        assert_eq!(told, [('a', 2), ('b', 1), ('b', 2), ('c', 1)]);
    }

    #[tokio::test]
    async fn reports_that_nobody_hears_are_bounded() {
        let reports = Reports::<usize>::default();
        (0..1000).for_each(|i| reports.note(i, |_| false));
        let mut told = vec![];
        let tell = |report| {
            told.push(report);
            Ok(())
        };
        reports.awaiting(async { Ok(()) }, tell).await.unwrap();
        let last: Vec<usize> = (1000 - MOST_REPORTS..1000).collect();
        assert_eq!(told, last);
    }
}
