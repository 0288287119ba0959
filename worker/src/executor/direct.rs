//! Steps on the caller's own thread: of brief functions over handles, where the caller is in this process. No frame, no
//! number of a step and no handle at the worker comes of them.
//!
//! Nothing here is needed for a call to be right. Whatever cannot be done so is a step as any other, which also says why it
//! fails.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, Weak};

use convoke_common::memory::Pool;
use convoke_common::{Outputs, Tensor};
use convoke_kernels::Exec;
use convoke_rendezvous::eager::direct::{DirectFunction, Number};
use smallvec::SmallVec;

use super::Executor;
use super::handles::{HandleOp, filled, kept, number};
use super::pace::Stopwatch;
use super::run::After;
use crate::code::InstrKind;
use crate::cpu::Operands;
use crate::eager::Session;

/// A lease of a client in this process.
struct Here {
    executor: Weak<Executor>,
    session: Weak<Session>,
}

impl DirectFunction for Here {
    fn run(&self, numbers: &[Number], operands: &[&Tensor], results: usize) -> Option<Outputs> {
        let (executor, session) = (self.executor.upgrade()?, self.session.upgrade()?);
        executor.run_here(numbers, operands, results, session.pool())
    }
}

impl Executor {
    /// Runs its steps on the threads of a client of this process.
    pub(crate) fn direct(&self, session: &Arc<Session>) -> Arc<dyn DirectFunction> {
        Arc::new(Here {
            executor: self.me.clone(),
            session: Arc::downgrade(session),
        })
    }

    /// A step whose handles are these operands and results, in the order of their numbers; `None` where it has to be a step
    /// as any other, for which this had no effect.
    fn run_here(
        &self,
        numbers: &[Number],
        operands: &[&Tensor],
        results: usize,
        pool: &Pool,
    ) -> Option<Outputs> {
        let (engine, x) = (&*self.engine, &*self.installed);
        let alone = numbers.len() == x.program.recvs.len() && x.constant_sends.is_empty();
        // One whose lease has ended has no memory. Spans are of steps that others see too.
        if !alone
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
        // What it sends its driver only says that it has ended.
        let mut after = After::default();
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
                // A step may not overwrite what it does not own.
                HandleOp::Lend { donate: true } => return None,
                HandleOp::Lend { donate: false } => {
                    let at = usize::try_from(number(given.get(0)).ok()?).ok()?;
                    let (tensor, value) = (*operands.get(at)?, *node.outputs.first()?);
                    if !self.is_as_declared(None, value, tensor) {
                        return None;
                    }
                    flow.arrive(code, Some(value), tensor.clone(), &mut after);
                }
                HandleOp::Fill => {
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
