//! Steps on the caller's own thread: brief functions over handles, called in this process. Such a step has no frame, no
//! step number and no handle at the worker.
//!
//! No call depends on this path. Where a call cannot take it, it becomes an ordinary step, which also reports why it
//! fails.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, Weak};

use convoke_common::memory::Pool;
use convoke_graph::{Outputs, Tensor};
use convoke_kernels::Exec;
use convoke_rendezvous::eager::direct::{DirectFunction, Number};
use smallvec::SmallVec;

use super::Executor;
use super::handles::{filled, kept, number};
use super::pace::Stopwatch;
use super::run::FollowUp;
use crate::cpu::Operands;
use crate::eager::Session;
use crate::program::code::{HandleAccess, InstrKind};

/// A lease of a client in this process, whose steps may run on the client's threads.
struct LocalLease {
    executor: Weak<Executor>,
    session: Weak<Session>,
}

impl DirectFunction for LocalLease {
    fn run(&self, numbers: &[Number], operands: &[&Tensor], results: usize) -> Option<Outputs> {
        let (executor, session) = (self.executor.upgrade()?, self.session.upgrade()?);
        executor.run_here(numbers, operands, results, session.pool())
    }
}

impl Executor {
    /// The lease's function, for a client of this process that runs steps on its own threads.
    pub(crate) fn direct(&self, session: &Arc<Session>) -> Arc<dyn DirectFunction> {
        Arc::new(LocalLease {
            executor: self.me.clone(),
            session: Arc::downgrade(session),
        })
    }

    /// Runs a step whose handles are these operands and results, in the order of their numbers. `None` where the call
    /// must become an ordinary step; this one had no effect then.
    fn run_here(
        &self,
        numbers: &[Number],
        operands: &[&Tensor],
        results: usize,
        pool: &Pool,
    ) -> Option<Outputs> {
        let (engine, x) = (&*self.engine, &*self.installed);
        let alone = numbers.len() == x.program.recvs.len() && x.constant_sends.is_empty();
        // An executor whose lease has ended has no memory left. A traced step needs a span, which only an ordinary step
        // has.
        if !alone
            || x.code.uses_device()
            || !self.runs_here()
            || engine.gate.refusal().is_some()
            || self.lease().is_none()
            || tracing::enabled!(tracing::Level::DEBUG)
        {
            return None;
        }
        let done = engine.steps_done.load(Ordering::Relaxed);
        let time = self.pace.listens(done).then(Stopwatch::start);
        let spare = self
            .spare
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let mut flow = spare.unwrap_or_default();
        let code = &x.code;
        // The sends of such a step only tell the driver that it has ended; they are dropped.
        let mut after = FollowUp::default();
        flow.start(code);
        for (slot, number) in numbers {
            let recv = x.program.recvs.get(*slot as usize)?;
            flow.arrive(code, Some(recv.value), number.clone(), &mut after);
        }
        let flag = AtomicBool::new(false);
        let mut made: SmallVec<[Option<Tensor>; 4]> = SmallVec::new();
        made.resize(results, None);
        while let Some(i) = flow.next(code) {
            let InstrKind::Handle(op) = code.instr(i).kind else {
                let outputs = self.launch(0, i, &mut flow.registers, Exec::single(&flag));
                flow.ended(code, i, outputs.ok()?, &mut after);
                continue;
            };
            let node = &x.nodes()[code.instr(i).node as usize];
            let given = Operands::at(code.operands(i), &mut flow.registers, &code.constants);
            let mut outputs = Outputs::new();
            match op {
                // A step may not overwrite an operand that it does not own.
                HandleAccess::Lend { donate: true } => return None,
                HandleAccess::Lend { donate: false } => {
                    let at = usize::try_from(number(given.get(0)).ok()?).ok()?;
                    let (tensor, value) = (*operands.get(at)?, *node.outputs.first()?);
                    if !self.is_as_declared(None, value, tensor) {
                        return None;
                    }
                    flow.arrive(code, Some(value), tensor.clone(), &mut after);
                }
                HandleAccess::Fill => {
                    let (tensor, value) = (given.get(0)?, *node.inputs.first()?);
                    if !self.is_as_declared(None, value, tensor) {
                        return None;
                    }
                    let at = usize::try_from(number(given.get(1)).ok()?).ok()?;
                    let at = at.checked_sub(operands.len())?;
                    *made.get_mut(at)? = Some(kept(tensor, pool).ok()?);
                    outputs.push(filled().ok()?);
                }
            }
            flow.ended(code, i, outputs, &mut after);
        }
        let over = flow.is_over();
        flow.clear();
        *self.spare.lock().unwrap_or_else(PoisonError::into_inner) = Some(flow);
        if !over {
            return None;
        }
        time.iter().for_each(|t| self.pace.took(t.read()));
        engine.steps_done.fetch_add(1, Ordering::Relaxed);
        made.into_iter().collect()
    }
}
