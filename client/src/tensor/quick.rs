//! Ops whose result is there as soon as they are issued: brief ops on a worker of this process that has all operands.

use std::panic::Location;

use convoke_graph::DType;
use convoke_graph::Tensor as HostTensor;
use convoke_graph::graph::Attrs;
use convoke_graph::ops::OpDef;
use smallvec::SmallVec;

use super::operand::{OpResults, Operand};
use super::{LocalTensor, PlacedBy, Tensor};
use crate::device::DeviceSet;
use crate::device::scope::scope;
use crate::eager::direct::OpQuery;

/// The most bytes of a value among the operands. A result may be a view of the value, whose bytes would not be counted.
const MOST_VALUE: usize = 1 << 10;

/// Runs an op on this thread. Returns `None` where the op has to be issued, which also tells what is wrong with it.
pub(super) fn run(
    op: &'static OpDef,
    attrs: &Attrs,
    operands: &[Operand<'_>],
    outputs: usize,
    origin: &'static Location<'static>,
) -> Option<OpResults> {
    let scope = scope();
    let first = || {
        operands.iter().find_map(|o| match o {
            Operand::Tensor(t) => t.worker(),
            _ => None,
        })
    };
    let only = scope.as_ref().and_then(DeviceSet::only);
    let worker = only.map(|device| &device.0).or_else(first)?;
    if let Some(devices) = &scope {
        devices.at(worker)?;
    }
    let line = worker.line()?;
    let mut bytes = 0;
    let mut near: SmallVec<[Option<LocalTensor<'_>>; 2]> = SmallVec::new();
    for operand in operands {
        near.push(match operand {
            Operand::Tensor(t) => {
                let value = t.here_on(worker)?;
                bytes += value.tensor().byte_len() as u64;
                Some(value)
            }
            Operand::Value(t) if t.byte_len() <= MOST_VALUE => Some(LocalTensor::Here(t)),
            Operand::None => None,
            _ => return None,
        });
    }
    let mut dtypes: SmallVec<[Option<DType>; 4]> = SmallVec::new();
    let mut inputs: SmallVec<[Option<&HostTensor>; 4]> = SmallVec::new();
    for input in &near {
        let input = input.as_ref().map(LocalTensor::tensor);
        dtypes.push(input.map(HostTensor::dtype));
        inputs.push(input);
    }
    let issued = OpQuery {
        op,
        attrs,
        outputs,
        origin,
    };
    let known = line.find(&issued, &dtypes)?;
    let made = line.run(&known, &inputs)?;
    let placed = match (&scope, only) {
        (None, _) => PlacedBy::Operands(bytes, bytes),
        (_, Some(_)) => PlacedBy::Scope,
        (_, None) => PlacedBy::ScopeOperands(bytes, bytes),
    };
    // Pushed one by one, since collecting so few takes longer than making them.
    let mut results = OpResults::new();
    for t in made.into_iter().take(outputs) {
        results.push(Tensor::made_here(
            worker,
            line.keep(&known, t),
            placed,
            origin,
        ));
    }
    Some(results)
}
