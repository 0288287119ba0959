//! An op made ready to run many times: its kernel, and how long that is likely to take.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use convoke_common::Tensor;
use convoke_common::graph::{Attrs, TensorType};
use convoke_common::ops::{self, ConcreteOperand, ConcreteOutputs, Memory, OpDef};
use convoke_rendezvous::eager::wire::Definition;
use smallvec::SmallVec;

use crate::cpu::{self, Inputs, Kernel, SizeKey};

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
    /// Whether any operand is one of host memory.
    has_host: bool,
    /// For the operands last seen: in the steady state they do not change.
    last: Mutex<Option<Arc<Seen>>>,
}

/// What follows from operands' shapes, and the values of those in host memory.
pub(super) struct Seen {
    operands: SizeKey,
    /// What the kernel is predicted to take on one thread; a long time where that cannot be said.
    pub predicted: Duration,
    /// Dtypes and shapes of the results, where they are known before.
    pub sizes: Option<ConcreteOutputs>,
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
            has_host: op.operands.iter().any(|o| o.memory == Memory::Host),
            kernel: cpu::resolve(op.name, &d.attrs, &d.operands, outputs)?,
            op,
            attrs: d.attrs,
            operands: d.operands.len(),
            outputs,
            report: d.report,
            origin: d.origin,
            last: Mutex::default(),
        })
    }

    /// What is known of a run with these operands.
    pub fn seen(&self, inputs: &Inputs) -> Arc<Seen> {
        let given = || {
            let all = inputs.iter().map(Option::as_ref).enumerate();
            all.map(|(i, t)| (t, t.is_some_and(|t| self.decides(i, t))))
        };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) = &*last
            && seen.operands.matches(given())
        {
            return seen.clone();
        }
        // Nobody can say of a custom op how long it takes.
        let known = !ops::is_custom(self.op.name);
        let predicted = known.then(|| self.predict(inputs)).flatten();
        let new = Arc::new(Seen {
            operands: SizeKey::of(given()),
            predicted: predicted.unwrap_or(Duration::MAX),
            sizes: self.kernel.sizes(&self.concrete(inputs)),
        });
        *last = Some(new.clone());
        new
    }

    /// Whether an operand's value may decide sizes, and is looked at.
    fn decides(&self, operand: usize, t: &Tensor) -> bool {
        self.has_host && t.elements() <= MOST_HOST && self.in_host_memory(operand)
    }

    /// The operands as rules look at them. Of large ones in host memory nothing but the shape is known.
    fn concrete<'t>(&self, inputs: &'t Inputs) -> SmallVec<[Option<ConcreteOperand<'t>>; 8]> {
        let operand = |(i, t): (usize, &'t Option<Tensor>)| {
            let t = t.as_ref()?;
            Some(ConcreteOperand {
                dtype: t.dtype(),
                shape: t.shape(),
                host: self.decides(i, t).then_some(t),
            })
        };
        inputs.iter().enumerate().map(operand).collect()
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
        let operands = self.concrete(inputs);
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
