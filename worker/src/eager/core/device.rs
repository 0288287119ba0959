//! Ops of a session whose worker has a device with memory of its own: their results are handed on before they are there,
//! and operands are copied to the host where it reads them.

use std::sync::Arc;

use convoke_graph::Tensor;
use convoke_rendezvous::eager::wire::Report;

use super::super::prepared::PreparedOp;
use super::super::value::{DeviceValue, Value};
use super::failure::Failure;
use super::run::{Run, WaitingRun};
use super::state::{Core, HandleState, Id};

impl Core {
    /// The results of an op that was launched on the device. Ops that read them may be launched as well; the op has not
    /// ended before [`Core::launch_ended`] or [`Core::launch_failed`].
    pub fn launched(&mut self, first: Id, prepared: &PreparedOp, made: &[Arc<DeviceValue>]) {
        for (handle, value) in (first..).zip(made.iter().take(prepared.outputs)) {
            if prepared.report {
                let shape = value.shape.clone();
                self.report(Report::Shape { handle, shape });
            }
            self.settle(handle, Ok(Value::Device(value.clone())));
        }
    }

    /// A launched op has ended.
    pub fn launch_ended(&mut self) {
        self.resolved += 1;
    }

    /// A launched op has failed: by itself where `is_root`, and otherwise as a consequence of what failed before it.
    pub fn launch_failed(
        &mut self,
        first: Id,
        outputs: usize,
        failure: &Arc<Failure>,
        is_root: bool,
    ) {
        self.resolved += 1;
        if is_root {
            self.tell_failure(first, failure);
        }
        for id in first..first + outputs as u64 {
            if let Some(handle) = self.handles.get_mut(&id)
                && let HandleState::Ready(_) = &handle.state
            {
                handle.state = HandleState::Failed(failure.clone());
            }
        }
    }

    /// Counts bytes that an op takes while the device has it.
    pub fn keep(&mut self, bytes: u64) {
        self.kept += bytes;
    }

    /// Ends the count of bytes that an op took.
    pub fn release(&mut self, bytes: u64) {
        self.kept -= bytes;
    }

    /// Lets an op wait for copies of this many of its operands, each of which [`Core::copied`] brings. Returns the entry of
    /// the op.
    pub fn await_copies(&mut self, run: Run, missing: usize) -> usize {
        self.kept += run.kept;
        self.waiting.insert(WaitingRun { run, missing })
    }

    /// The host's copy of an operand that an op waits for has come, or does not come.
    pub fn copied(
        &mut self,
        op: usize,
        first: Id,
        operand: usize,
        copied: Result<Tensor, Arc<Failure>>,
    ) {
        // An op that has failed by another operand is gone from its entry.
        if self.waiting.get(op).is_none_or(|w| w.run.first != first) {
            return;
        }
        let mut failed = Vec::new();
        self.operand(op, operand, &copied.map(Value::Host), &mut failed);
        for (id, settled) in failed {
            self.settle(id, settled);
        }
    }
}
