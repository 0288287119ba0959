//! The operands of an op at a worker that has a device: where each of them lies.

use std::sync::Arc;

use convoke_graph::Tensor;
use smallvec::SmallVec;

use crate::eager::core::{Failure, Run};
use crate::eager::value::DeviceValue;

impl Run {
    /// The value of an operand that is a handle's.
    pub(super) fn value(&self, operand: usize) -> Option<&Arc<DeviceValue>> {
        self.values.get(operand)?.as_ref()
    }

    /// The tensor of an operand in the host's memory, if it is there.
    pub(super) fn on_host(&self, operand: usize) -> Option<Tensor> {
        let given = self.inputs[operand].clone();
        given.or_else(|| self.value(operand)?.host())
    }

    /// Whether an operand is given, and not in the host's memory.
    pub(super) fn is_elsewhere(&self, operand: usize) -> bool {
        self.inputs[operand].is_none() && self.value(operand).is_some_and(|v| v.host().is_none())
    }

    /// Takes these operands from the host's memory; returns those that are not there. Each is looked at once, since a copy to
    /// the device that ends meanwhile may end that of the host.
    pub(super) fn take_to_host(
        &mut self,
        operands: impl Iterator<Item = usize>,
    ) -> SmallVec<[usize; 4]> {
        let mut missing = SmallVec::new();
        for operand in operands {
            self.inputs[operand] = self.on_host(operand);
            if self.inputs[operand].is_none() && self.value(operand).is_some() {
                missing.push(operand);
            }
        }
        missing
    }

    pub(super) fn shape(&self, operand: usize) -> Option<&[usize]> {
        let given = self.inputs[operand].as_ref().map(Tensor::shape);
        given.or_else(|| self.value(operand).map(|v| &v.shape[..]))
    }

    /// Why an operand has no value.
    pub(super) fn failure(&self) -> Option<Arc<Failure>> {
        let mut values = self.values.iter().flatten();
        values.find_map(|value| value.failure())
    }
}
