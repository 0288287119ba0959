//! Running ready ops: brief ones on the thread that delivers commands or a tensor, others as one job of compute.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use convoke_common::error::{Code, Error, Result, Site};
use convoke_graph::ids::FunctionId;
use convoke_kernels::Exec;

use super::super::core::Run;
use super::super::prepared::ShapeFacts;
use super::Session;
use super::state::{Runner, SessionState};
use crate::compute::Crew;
use crate::cpu::{Launch, Operands, Outputs};

/// Most kernels that the session's job runs before it queues up again, so that other jobs get their turn.
const TURN: usize = 256;

impl Session {
    /// Runs ready ops on this thread, as long as they are brief.
    pub(super) fn run_brief(&self, state: &mut SessionState, left: &mut Duration) {
        // A device may call back at once, which must not happen under the session's lock.
        if self.device.is_some() {
            return;
        }
        let longest = self.engine.compute.brief();
        while let Some(run) = state.core.peek_ready() {
            let seen = run.seen();
            let predicted = seen.predicted;
            let brief = predicted <= longest && predicted <= *left;
            if !brief || !self.engine.compute.admits(&self.share, predicted) {
                return;
            }
            *left -= predicted;
            let Some(run) = state.core.next_ready() else {
                return;
            };
            let (first, prepared) = (run.first, run.prepared.clone());
            let origin = state.origin(prepared.origin);
            let Some(result) = self.launch(run, origin, None, &seen) else {
                return;
            };
            state.core.finished(first, &prepared, result);
        }
    }

    /// Submits the session's job to compute.
    pub(super) fn start(&self) {
        let Some(me) = self.me.upgrade() else { return };
        self.engine.gate.started();
        let begun = me.clone();
        let begin = Box::new(move || {
            begun.state().runner = Runner::Active;
            true
        });
        let job = Box::new(move || me.work());
        if let Err(refused) = self.engine.compute.submit_begun(&self.share, 0, begin, job) {
            self.engine.gate.quiesced();
            let why = format!(
                "the compute threads take no further work ({:?})",
                refused.reason
            );
            let error = Error::new(Code::Busy, why).at(self.engine.place());
            let mut state = self.state();
            state.runner = Runner::None;
            while let Some(run) = state.core.next_ready() {
                state
                    .core
                    .finished(run.first, &run.prepared, Err(error.clone()));
            }
            self.settle(state);
        }
    }

    /// The session's job: runs ready ops until there are none, or its turn is over.
    fn work(&self) {
        let crew = Crew::current();
        for _ in 0..self.engine.compute.slice().min(TURN) {
            let mut state = self.state();
            if state.work.is_full() {
                break;
            }
            let Some(run) = state.core.next_ready() else {
                break;
            };
            if let Some(device) = &self.device {
                drop(state);
                match self.advance(device, run, crew.as_deref()) {
                    true => continue,
                    false => break,
                }
            }
            let (first, prepared) = (run.first, run.prepared.clone());
            let seen = run.seen();
            let origin = state.origin(prepared.origin);
            drop(state);
            let Some(result) = self.launch(run, origin, crew.as_deref(), &seen) else {
                break;
            };
            let mut state = self.state();
            state.core.finished(first, &prepared, result);
            self.settle(state);
        }
        if let Some(device) = &self.device {
            self.mark(device);
        }
        let mut state = self.state();
        state.runner = Runner::None;
        if self.ended.load(Ordering::Relaxed) {
            self.rests(&state);
        }
        self.settle(state);
        self.engine.gate.quiesced();
    }

    /// Runs an op; `None` where the session ended meanwhile. Then nothing may be told of the op: a worker that awaits its
    /// result would pass on to the client that the session ended, before the client knows why.
    pub(super) fn launch(
        &self,
        mut run: Run,
        origin: Option<Arc<str>>,
        crew: Option<&Crew>,
        seen: &ShapeFacts,
    ) -> Option<Result<Outputs>> {
        if let Some(refusal) = self.engine.gate.refusal() {
            return Some(Err(self.engine.refused(refusal)));
        }
        let brief = seen.predicted <= self.engine.compute.brief();
        let exec = match crew {
            Some(crew) if brief => Exec::single(&self.ended).in_turns(crew),
            Some(crew) => crew.exec(&self.ended),
            None => Exec::single(&self.ended),
        };
        // Other jobs may take their turn between kernels that have no check points. The kernel itself notices the
        // session's end.
        let _ = exec.check();
        let op = run.prepared.op.name;
        let place = origin.as_deref().unwrap_or(op);
        let _noted = self.engine.note(&FunctionId::default(), place);
        let mut launch = Launch {
            inputs: Operands::given(&mut run.inputs),
            sizes: seen.sizes.as_ref(),
            exec,
            pool: &self.pool,
        };
        let site = || Site {
            op: Some(op.to_owned()),
            origin: origin.as_deref().map(str::to_owned),
            operands: run.prepared.signatures(seen.operands.shapes()),
            ..Site::default()
        };
        let (kernel, outputs) = (&*run.prepared.kernel, run.prepared.outputs);
        let result = self.engine.launch(kernel, op, outputs, &mut launch, site);
        match result {
            Ok(outputs) => Some(Ok(outputs)),
            Err(error) => error
                .or_else(|| {
                    let refusal = self.engine.gate.refusal();
                    refusal.map(|refusal| self.engine.refused(refusal))
                })
                .map(Err),
        }
    }
}
