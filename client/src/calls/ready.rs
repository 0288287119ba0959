//! How a call or a load gets a lease that serves it, in as many attempts as it may make.

use convoke_common::detection::timer::{Timer, TimerKind};
use convoke_common::error::{Code, Error, Result};
use convoke_graph::dim::Bindings;

use crate::calls::attempts::Attempts;
use crate::calls::function::Inner;
use crate::calls::holder::{CallPermit, Request};
use crate::model::phase::Phase;

impl Inner {
    /// Returns a lease for these sizes with a permit to call it. Plans again where a worker is lost meanwhile, as often
    /// as `attempts` allows.
    pub(crate) async fn ready(
        &self,
        bindings: &Bindings,
        attempts: &mut Attempts,
    ) -> Result<CallPermit<'_>> {
        let held = match self.holder.enter(bindings) {
            Some(held) => held,
            // Boxed, since the future is large, and every call would carry it.
            None => Box::pin(self.await_lease(bindings, attempts)).await?,
        };
        if let Some(rerun) = attempts.rerun(|| held.lease.workers()) {
            tracing::warn!(target: "convoke::rerun", "{rerun}");
            self.progress.note(Phase::Rerun(rerun));
        }
        Ok(held)
    }

    async fn await_lease(
        &self,
        bindings: &Bindings,
        attempts: &mut Attempts,
    ) -> Result<CallPermit<'_>> {
        let deadline = attempts.deadline();
        let _timer = deadline.map(|at| Timer::arm(TimerKind::Deadline, at));
        loop {
            let request = Request {
                sizes: bindings.clone(),
                avoid: attempts.avoid().to_vec(),
                deadline,
            };
            let plan = |predecessor| self.new_lease(&request, predecessor);
            let leased = self.holder.leased(&request, plan);
            let leased = match deadline {
                None => leased.await,
                Some(at) => tokio::time::timeout_at(at, leased).await.unwrap_or_else(|_| {
                    let msg = "the call did not end by its deadline: the model was still planned and loaded";
                    Err(Error::new(Code::DeadlineExceeded, msg).into())
                }),
            };
            match leased {
                Ok(held) => return Ok(held),
                Err(failed) => attempts.failed(failed)?,
            }
        }
    }
}
