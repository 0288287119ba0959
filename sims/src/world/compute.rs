//! Compute threads in virtual time: each job waits for its turn and for a drawn duration, and then runs inline.
//!
//! One job runs at a time and each launches one kernel, so that time passes between kernels, and an abort or the loss
//! of a peer meets a step in the middle. The kernels themselves are the real ones.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use convoke_common::world::{Begin, Compute, FairQueue, Job, Refusal, RefusedJob, Share};

use convoke_graph::ids::FunctionId;

use super::gate::Gate;
use super::knobs::Knobs;
use super::panics::injected;
use super::turns::Turns;
use crate::draw::Draw;

/// The speed that a simulated worker reports: operations per second, and bytes copied per second.
const SPEED: (f64, f64) = (1e9, 1e10);

/// A job that waits for its turn, the share that pays for it, and what runs when its turn begins.
struct WaitingJob {
    share: Share,
    begin: Option<Begin>,
    job: Job,
}

struct ComputeState {
    waiting: FairQueue<WaitingJob>,
    active: bool,
    draw: Draw,
}

/// The compute pool of one process.
pub(super) struct SimCompute {
    gate: Arc<Gate>,
    knobs: Arc<Knobs>,
    turns: Arc<Turns>,
    state: Arc<Mutex<ComputeState>>,
}

fn lock(state: &Mutex<ComputeState>) -> MutexGuard<'_, ComputeState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SimCompute {
    pub(super) fn new(
        gate: Arc<Gate>,
        knobs: Arc<Knobs>,
        turns: Arc<Turns>,
        draw: Draw,
    ) -> SimCompute {
        turns.restart();
        SimCompute {
            gate,
            knobs,
            turns,
            state: Arc::new(Mutex::new(ComputeState {
                waiting: FairQueue::new(1),
                active: false,
                draw,
            })),
        }
    }

    fn queue(
        &self,
        share: &Share,
        priority: i64,
        begin: Option<Begin>,
        job: Job,
    ) -> Result<(), RefusedJob> {
        let mut s = lock(&self.state);
        let full = |job| RefusedJob {
            job,
            reason: Refusal::Full,
        };
        if self.knobs.refuses() {
            return Err(full(job));
        }
        let waiting = WaitingJob {
            share: share.clone(),
            begin,
            job,
        };
        let pushed = s.waiting.push(share, priority, waiting);
        pushed.map_err(|refused| full(refused.job))?;
        self.turns.waits(share);
        if !std::mem::replace(&mut s.active, true) {
            drop(s);
            let drain = drain(self.state.clone(), self.knobs.clone(), self.turns.clone());
            drop(self.gate.spawn(Box::pin(drain)));
        }
        Ok(())
    }
}

async fn drain(state: Arc<Mutex<ComputeState>>, knobs: Arc<Knobs>, turns: Arc<Turns>) {
    loop {
        let (least, most) = knobs.job_ms();
        let (share, next, took) = {
            let mut s = lock(&state);
            let Some((share, next)) = s.waiting.pop(true) else {
                s.active = false;
                return;
            };
            (share, next, s.draw.range(least, most))
        };
        let waited = turns.begins(&next.share);
        let runs = next.begin.is_none_or(|begin| begin());
        let took = Duration::from_millis(if runs { took } else { 0 });
        if !took.is_zero() {
            tokio::time::sleep(took).await;
        }
        if runs {
            knobs.while_hung().await;
            // A job catches and reports its own panics; one that escapes must not end this loop.
            let _ = catch_unwind(AssertUnwindSafe(next.job));
            if knobs.has_died() {
                std::future::pending::<()>().await;
            }
        }
        turns.ended(&next.share, took, waited);
        let mut s = lock(&state);
        s.waiting.charge(&share, took);
        s.waiting.ended(&share);
    }
}

impl Compute for SimCompute {
    fn threads(&self) -> usize {
        1
    }

    fn speed(&self) -> (f64, f64) {
        SPEED
    }

    fn submit(&self, share: &Share, priority: i64, job: Job) -> Result<(), RefusedJob> {
        self.queue(share, priority, None, job)
    }

    fn submit_begun(
        &self,
        share: &Share,
        priority: i64,
        begin: Begin,
        job: Job,
    ) -> Result<(), RefusedJob> {
        self.queue(share, priority, Some(begin), job)
    }

    fn brief(&self) -> Duration {
        // No kernel is brief enough to bypass the queue, where time passes and faults are injected.
        Duration::ZERO
    }

    fn slice(&self) -> usize {
        1
    }

    fn launching(&self, function: &FunctionId, node: &str) {
        if self.knobs.dies_in(function, node) {
            // What this kernel makes does not leave the process: from now on no task of it runs.
            return self.gate.close();
        }
        if self.knobs.panics(node) {
            injected(&format!("kernel of {node}"));
        }
    }

    fn hears_launches(&self) -> bool {
        true
    }
}
