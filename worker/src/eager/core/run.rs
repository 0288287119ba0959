//! An op that was issued, with its operands.

use std::sync::Arc;

use convoke_graph::Tensor;
use smallvec::SmallVec;

use super::super::prepared::{PreparedOp, ShapeFacts};
use super::super::value::{DeviceValue, Value};
use super::state::Id;
use crate::cpu::Inputs;

/// An op whose operands are there, or will be.
pub(in crate::eager) struct Run {
    pub prepared: Arc<PreparedOp>,
    pub inputs: Inputs,
    /// Where the worker has a device, the operands that are values of handles; each of the others, and each that was copied
    /// to the host for this op, is in `inputs`. It may be shorter than those.
    pub values: Vec<Option<Arc<DeviceValue>>>,
    /// The number of the op's first output.
    pub first: Id,
    /// Bytes that the op takes until it is handed out.
    pub(super) kept: u64,
}

impl Run {
    /// Bytes that the op takes until it is handed out.
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// Sets an operand to a handle's value.
    pub(super) fn set(&mut self, operand: usize, value: &Value) {
        match value {
            Value::Host(tensor) => self.inputs[operand] = Some(tensor.clone()),
            Value::Device(value) => {
                self.values.resize(self.inputs.len(), None);
                self.values[operand] = Some(value.clone());
            }
        }
    }

    /// The predicted time and the sizes of the op with these operands, which all are in `inputs`.
    pub fn seen(&self) -> Arc<ShapeFacts> {
        let inputs: SmallVec<[Option<&Tensor>; 4]> =
            self.inputs.iter().map(Option::as_ref).collect();
        self.prepared.seen(&inputs)
    }
}

impl PartialEq for Run {
    fn eq(&self, other: &Run) -> bool {
        self.first == other.first
    }
}
impl Eq for Run {}
impl PartialOrd for Run {
    fn partial_cmp(&self, other: &Run) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Run {
    fn cmp(&self, other: &Run) -> std::cmp::Ordering {
        self.first.cmp(&other.first)
    }
}

/// An op that waits for operands.
pub(super) struct WaitingRun {
    pub(super) run: Run,
    pub(super) missing: usize,
}
