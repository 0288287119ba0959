//! Plans of a function: what the coordinator is asked for, and how long a load waits for memory.

use std::time::Duration;

use convoke_common::error::{Code, Result};
use convoke_common::rpc::transport::call_context;
use convoke_common::rpc::{self, Intent, PlanAnswer};
use convoke_graph::dim::Bindings;
use convoke_graph::program::Axes;
use tokio::time::Instant;

use crate::calls::function::{Growth, Inner};
use crate::calls::worker_process::WorkerProcess;
use crate::model::phase::Phase;

impl Inner {
    /// Plans for axes of these sizes, with as much room to grow as fits, and where it fits with the `former` bounds of
    /// axes: calls whose axes are long in turns need not be planned in turns. Nothing is installed.
    pub(crate) async fn planned(
        &self,
        bindings: &Bindings,
        former: &Axes,
        avoid: Vec<WorkerProcess>,
        deadline: Option<Instant>,
        intent: Intent,
    ) -> Result<PlanAnswer> {
        self.progress.note(Phase::Planning);
        let mut options = self.options.clone();
        options.intent = intent;
        let mut bounds: Vec<Axes> = Vec::with_capacity(Growth::ALL.len() + 1);
        let none = Axes::default();
        let first = [(Growth::ALL[0], former)];
        for (growth, former) in first.into_iter().chain(Growth::ALL.map(|g| (g, &none))) {
            let own = self.bounds_for(bindings, growth, former).into_iter();
            let bounds_of = own.map(|(s, b)| (s.into(), b)).collect();
            let axes = Axes { bounds: bounds_of };
            if !bounds.contains(&axes) {
                bounds.push(axes);
            }
        }
        options.tighter = bounds.split_off(1);
        options.axes = bounds.pop().unwrap_or_default();
        let expected = bindings.iter().map(|(s, size)| (s.to_string(), *size));
        options.expected = expected.collect();
        options.avoid = avoid;
        options.profiles = self.profiles();
        let me = self.session.hub.me.incarnation;
        let ask = self.session.coordinator.ask_apart(deadline, |client| {
            let (function, options) = (self.function.clone(), options.clone());
            async move {
                let wait = match intent {
                    Intent::InstallInTurn { wait_ms } => Duration::from_millis(wait_ms),
                    Intent::Explain | Intent::Install => Duration::ZERO,
                };
                let context = call_context(rpc::PLAN_BOUND + wait);
                let answer = client.plan(context, function, options, me);
                rpc::answer(None, answer.await)
            }
        });
        ask.await
    }

    /// Plans for an install. Where the function does not fit the memory that is free, waits until memory is released,
    /// as long as the load may.
    pub(crate) async fn planned_in_turn(
        &self,
        bindings: &Bindings,
        former: &Axes,
        avoid: Vec<WorkerProcess>,
        deadline: Option<Instant>,
    ) -> Result<PlanAnswer> {
        let Some(most) = self.wait else {
            return self
                .planned(bindings, former, avoid, deadline, Intent::Install)
                .await;
        };
        let in_turn = |wait_ms| Intent::InstallInTurn { wait_ms };
        let at_once = self.planned(bindings, former, avoid.clone(), deadline, in_turn(0));
        let cause = match at_once.await {
            Err(e) if e.code == Code::OutOfMemory => e,
            planned => return planned,
        };
        let most = most.min(rpc::QUEUE_BOUND);
        self.progress.note(Phase::Waiting { cause, most });
        let wait_ms = u64::try_from(most.as_millis()).unwrap_or(u64::MAX).max(1);
        let waited = self.planned(bindings, former, avoid, deadline, in_turn(wait_ms));
        waited.await.map_err(|mut e| {
            if e.code == Code::OutOfMemory {
                e.message = format!("waited {most:?} for memory: {}", e.message);
            }
            e
        })
    }
}
