//! An op made ready to run many times: its kernel, and how long that is likely to take.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use convoke_common::Tensor;
use convoke_common::graph::{Attrs, TensorType};
use convoke_common::ops::{self, ConcreteOperand, Memory, OpDef};
use convoke_rendezvous::eager::wire::Definition;
use smallvec::SmallVec;

use crate::cpu::{self, Inputs, Kernel};

/// What one core does at least, in operations and in bytes per nanosecond: it is only decided by it where a kernel runs.
const FLOPS: f64 = 2.0;
const BYTES: f64 = 4.0;
/// What a kernel takes that does next to nothing.
const LEAST: Duration = Duration::from_nanos(200);

/// Elements of an operand that may be one of host memory, whose values decide sizes.
const MOST_HOST: usize = 1024;

/// See the module. It holds no state but what it has computed.
pub(super) struct Prepared {
    pub kernel: Arc<dyn Kernel>,
    pub op: &'static OpDef,
    attrs: Attrs,
    pub operands: usize,
    pub outputs: usize,
    pub report: bool,
    pub origin: u32,
    /// Shapes of operands last seen, with the values of those in host memory, and what they take.
    last: Mutex<(u64, Duration)>,
}

impl Prepared {
    /// Resolves the kernel.
    pub fn new(d: Definition) -> Result<Prepared, ops::OpError> {
        let unknown = || ops::OpError::Unknown { op: d.op.clone() };
        let op = ops::lookup(&d.op).ok_or_else(unknown)?;
        let outputs = usize::from(d.outputs);
        let (least, most) = op.outputs;
        if outputs < least.max(1) || outputs > most {
            let reason = format!("has {least} to {most} outputs, {outputs} asked for");
            return Err(ops::OpError::shape(reason));
        }
        Ok(Prepared {
            kernel: cpu::resolve(op.name, &d.attrs, &d.operands, outputs)?,
            op,
            attrs: d.attrs,
            operands: d.operands.len(),
            outputs,
            report: d.report,
            origin: d.origin,
            last: Mutex::new((0, Duration::ZERO)),
        })
    }

    /// What the kernel is predicted to take on one thread; a long time where that cannot be said.
    pub fn predicted(&self, inputs: &Inputs) -> Duration {
        let mut shapes = 0xcbf2_9ce4_8422_2325u64;
        let mut mix = |n: u64| shapes = (shapes ^ n).wrapping_mul(0x0100_0000_01b3);
        for (i, t) in inputs.iter().enumerate() {
            let Some(t) = t else { continue };
            t.shape().iter().for_each(|d| mix(*d as u64));
            mix(t.shape().len() as u64 + (1 << 32));
            // They may decide sizes.
            if self.in_host_memory(i) && t.elements() <= MOST_HOST {
                t.bytes().chunks(8).for_each(|c| {
                    let mut word = [0; 8];
                    word[..c.len()].copy_from_slice(c);
                    mix(u64::from_le_bytes(word));
                });
            }
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0 != shapes {
            // Nobody can say of a custom op how long it takes.
            let known = !ops::is_custom(self.op.name);
            let predicted = known.then(|| self.predict(inputs)).flatten();
            *last = (shapes, predicted.unwrap_or(Duration::MAX));
        }
        last.1
    }

    fn in_host_memory(&self, operand: usize) -> bool {
        let all = self.op.operands;
        let def = all.get(operand).or(all.last().filter(|o| o.variadic));
        def.is_some_and(|o| o.memory == Memory::Host)
    }

    fn predict(&self, inputs: &Inputs) -> Option<Duration> {
        // A loop takes as long as its data says.
        if self.attrs.functions().next().is_some() {
            return None;
        }
        let host = |t: &Tensor| t.elements() <= MOST_HOST;
        let operands: SmallVec<[Option<ConcreteOperand<'_>>; 8]> = inputs
            .iter()
            .map(|t| {
                t.as_ref().map(|t| ConcreteOperand {
                    dtype: t.dtype(),
                    shape: t.shape(),
                    host: host(t).then_some(t),
                })
            })
            .collect();
        let outputs = ops::infer_concrete(self.op, &self.attrs, &operands, self.outputs).ok()?;
        let fixed = |dtype, shape: &[usize]| TensorType::fixed(dtype, shape);
        let given: Vec<_> = inputs
            .iter()
            .map(|t| t.as_ref().map(|t| fixed(t.dtype(), t.shape())))
            .collect();
        let made: Vec<_> = outputs.iter().map(|(d, s)| fixed(*d, s)).collect();
        let given: Vec<_> = given.iter().map(Option::as_ref).collect();
        let made: Vec<_> = made.iter().collect();
        let cost = (self.op.cost)(&self.attrs, &given, &made);
        let nanos = cost.flops / FLOPS + cost.bytes / BYTES;
        Some(LEAST + Duration::from_nanos(nanos.min(1e18) as u64))
    }
}
