//! Ops: they are issued, wait for their operands, are handed out, and end.

use std::cmp::Reverse;
use std::sync::Arc;

use convoke_common::error::Error;
use convoke_rendezvous::eager::wire::{Operand, Report};
use smallvec::SmallVec;

use super::super::prepared::PreparedOp;
use super::super::value::Value;
use super::failure::Failure;
use super::handles::unknown;
use super::run::{Run, WaitingRun};
use super::state::{Core, HandleResult, HandleState, Id, Waiter};
use crate::cpu::{Inputs, Outputs};

/// Bytes of an op that is issued and not handed out.
const OP: u64 = 256;
/// Bytes of an operand besides its value.
const OPERAND: u64 = 160;

impl Core {
    /// Issues an op. [`Core::next_ready`] hands it out once its operands are there.
    pub fn run(&mut self, prepared: Arc<PreparedOp>, operands: SmallVec<[Operand<'static>; 4]>) {
        let first = self.make(prepared.origin, prepared.outputs);
        let failed = operands.iter().find_map(|o| match o {
            Operand::Handle(id) => match self.handles.get(id).map(|h| &h.state) {
                Some(HandleState::Failed(e)) => Some(e.clone()),
                Some(_) if *id < first => None,
                _ => Some(self.failure(unknown(*id))),
            },
            _ => None,
        });
        if let Some(error) = failed {
            return self.fail_outputs(first, prepared.outputs, error);
        }
        let op = self.waiting.vacant_key();
        let value = |o: &Operand| match o {
            Operand::Value(t) => OPERAND + t.byte_len() as u64,
            _ => OPERAND,
        };
        let kept = OP + operands.iter().map(value).sum::<u64>();
        let (mut inputs, mut missing) = (Inputs::new(), 0);
        let mut values = Vec::new();
        let count = operands.len();
        for (operand, given) in operands.into_iter().enumerate() {
            inputs.push(match given {
                Operand::Absent => None,
                Operand::Value(t) => Some(t),
                Operand::Borrowed(t) => Some(t.clone()),
                Operand::Handle(id) => match self.handles.get_mut(&id).map(|h| &mut h.state) {
                    Some(HandleState::Ready(Value::Host(t))) => Some(t.clone()),
                    Some(HandleState::Ready(Value::Device(v))) => {
                        values.resize(count, None);
                        values[operand] = Some(v.clone());
                        None
                    }
                    Some(HandleState::Pending { waiters, .. }) => {
                        waiters.push(Waiter::Run { op, first, operand });
                        missing += 1;
                        None
                    }
                    _ => None,
                },
            });
        }
        let run = Run {
            prepared,
            inputs,
            values,
            first,
            kept,
        };
        self.kept += kept;
        if missing == 0 {
            self.ready.push(Reverse(run));
        } else {
            self.waiting.insert(WaitingRun { run, missing });
        }
    }

    /// Takes the op to launch next: of the ready ops, the one that was issued first.
    pub fn next_ready(&mut self) -> Option<Run> {
        let run = self.ready.pop()?.0;
        self.kept -= run.kept;
        Some(run)
    }

    /// The op to launch next, which stays queued.
    pub fn peek_ready(&self) -> Option<&Run> {
        self.ready.peek().map(|r| &r.0)
    }

    /// Resolves the outputs of an op that has ended.
    pub fn finished(&mut self, first: Id, prepared: &PreparedOp, result: Result<Outputs, Error>) {
        match result {
            Ok(outputs) => {
                self.resolved += 1;
                for (i, t) in outputs.into_iter().take(prepared.outputs).enumerate() {
                    let handle = first + i as u64;
                    if prepared.report {
                        let shape = t.shape().into();
                        self.report(Report::Shape { handle, shape });
                    }
                    let value = self.value_of(t);
                    self.settle(handle, Ok(value));
                }
            }
            Err(error) => self.failed(first, prepared.outputs, self.failure(error)),
        }
    }

    /// Issues an op that cannot be run: its outputs fail.
    pub fn refuse(&mut self, origin: u32, outputs: usize, error: Arc<Failure>) {
        let first = self.make(origin, outputs);
        self.failed(first, outputs, error);
    }

    /// Fails the outputs of an op that has failed by itself, and reports that.
    fn failed(&mut self, first: Id, outputs: usize, error: Arc<Failure>) {
        self.tell_failure(first, &error);
        self.fail_outputs(first, outputs, error);
    }

    /// Fails the outputs of an op whose operand has failed.
    pub fn fail_outputs(&mut self, first: Id, outputs: usize, error: Arc<Failure>) {
        self.resolved += 1;
        for id in first..first + outputs as u64 {
            self.settle(id, Err(error.clone()));
        }
    }

    /// Gives an op that waits a resolved operand. Where that has failed, the op fails with it: `todo` takes its outputs.
    pub(super) fn operand(
        &mut self,
        op: usize,
        operand: usize,
        settled: &HandleResult,
        todo: &mut Vec<(Id, HandleResult)>,
    ) {
        match settled {
            Ok(value) => {
                let waiting = &mut self.waiting[op];
                waiting.run.set(operand, value);
                waiting.missing -= 1;
                if waiting.missing == 0 {
                    self.ready.push(Reverse(self.waiting.remove(op).run));
                }
            }
            Err(error) => {
                let run = self.waiting.remove(op).run;
                self.kept -= run.kept;
                self.resolved += 1;
                let outputs = run.first..run.first + run.prepared.outputs as u64;
                todo.extend(outputs.map(|id| (id, Err(error.clone()))));
            }
        }
    }
}
