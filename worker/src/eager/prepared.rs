//! An op made ready to run many times: its kernel, and a prediction of its time.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use convoke_graph::graph::{Attrs, TensorType};
use convoke_graph::ops::{self, ConcreteOperand, ConcreteOutputs, Memory, OpDef};
use convoke_graph::{DType, Tensor};
use convoke_rendezvous::eager::wire::Definition;
use smallvec::SmallVec;

use crate::cpu::{self, Kernel, SizeKey};

/// Least speed of one core, in operations and in bytes per nanosecond. It only decides which thread runs a kernel.
const FLOPS: f64 = 2.0;
const BYTES: f64 = 4.0;
/// Time of a kernel that does next to nothing.
const LEAST: Duration = Duration::from_nanos(200);

/// Most elements of an operand in host memory whose values are looked at, since they may decide sizes.
const MOST_HOST: usize = 1024;

/// A resolved op of a session. It has no state except what it has computed for its latest operands.
pub(super) struct PreparedOp {
    pub kernel: Arc<dyn Kernel>,
    pub op: &'static OpDef,
    attrs: Attrs,
    dtypes: Vec<Option<DType>>,
    pub outputs: usize,
    pub report: bool,
    pub origin: u32,
    /// Whether any operand is declared as one in host memory.
    has_host: bool,
    /// The facts for the operands that were seen first; most ops see no others.
    first: OnceLock<Arc<ShapeFacts>>,
    /// The facts for the latest operands that differ from the first ones.
    last: Mutex<Option<Arc<ShapeFacts>>>,
}

/// Facts that follow from the shapes of operands, and from the values of those in host memory.
pub(super) struct ShapeFacts {
    operands: SizeKey,
    /// Predicted time of the kernel on one thread; [`Duration::MAX`] where it cannot be predicted.
    pub predicted: Duration,
    /// Dtypes and shapes of the results, if they are known before the run.
    pub sizes: Option<ConcreteOutputs>,
}

impl PreparedOp {
    /// Resolves the kernel of a defined op.
    pub fn new(d: Definition) -> Result<PreparedOp, ops::OpError> {
        let unknown = || ops::OpError::Unknown { op: d.op.clone() };
        let op = ops::lookup(&d.op).ok_or_else(unknown)?;
        let outputs = usize::from(d.outputs);
        let (least, most) = op.outputs;
        if outputs < least.max(1) || outputs > most {
            let reason = format!("has {least} to {most} outputs, {outputs} asked for");
            return Err(ops::OpError::shape(reason));
        }
        Ok(PreparedOp {
            has_host: op.operands.iter().any(|o| o.memory == Memory::Host),
            kernel: cpu::resolve(op.name, &d.attrs, &d.operands, outputs)?,
            op,
            attrs: d.attrs,
            dtypes: d.operands,
            outputs,
            report: d.report,
            origin: d.origin,
            first: OnceLock::new(),
            last: Mutex::default(),
        })
    }

    /// Number of operands, including those that are left out.
    pub fn operands(&self) -> usize {
        self.dtypes.len()
    }

    /// The types of a run's operands, for its error.
    pub fn signatures(&self, seen: &ShapeFacts) -> Vec<String> {
        let all = self.dtypes.iter().zip(seen.operands.shapes());
        let given = all.filter_map(|(dtype, shape)| dtype.zip(shape));
        given.map(|(d, shape)| format!("{d}{shape:?}")).collect()
    }

    /// The predicted time and the sizes of a run with these operands.
    pub fn seen(&self, inputs: &[Option<&Tensor>]) -> Arc<ShapeFacts> {
        self.with_seen(inputs, Arc::clone)
    }

    /// Like [`PreparedOp::seen`], without a copy: `then` must be brief, since other runs may wait for it.
    pub fn with_seen<R>(
        &self,
        inputs: &[Option<&Tensor>],
        then: impl FnOnce(&Arc<ShapeFacts>) -> R,
    ) -> R {
        let first = self.first.get_or_init(|| Arc::new(self.look(inputs)));
        if self.same(first, inputs) {
            return then(first);
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let same = last.as_ref().filter(|seen| self.same(seen, inputs));
        if let Some(seen) = same {
            return then(seen);
        }
        then(last.insert(Arc::new(self.look(inputs))))
    }

    #[inline]
    fn same(&self, seen: &ShapeFacts, inputs: &[Option<&Tensor>]) -> bool {
        match self.has_host {
            true => seen.operands.matches(self.given(inputs)),
            false => seen.operands.has_shapes(inputs),
        }
    }

    fn look(&self, inputs: &[Option<&Tensor>]) -> ShapeFacts {
        // The time of a custom op is unknown.
        let known = !ops::is_custom(self.op.name);
        let predicted = known.then(|| self.predict(inputs)).flatten();
        ShapeFacts {
            operands: SizeKey::of(self.given(inputs)),
            predicted: predicted.unwrap_or(Duration::MAX),
            sizes: self.kernel.sizes(&self.concrete(inputs)),
        }
    }

    /// The operands, each with whether its value may decide sizes.
    fn given<'t>(
        &self,
        inputs: &[Option<&'t Tensor>],
    ) -> impl Iterator<Item = (Option<&'t Tensor>, bool)> {
        let all = inputs.iter().copied().enumerate();
        all.map(|(i, t)| (t, t.is_some_and(|t| self.decides(i, t))))
    }

    /// Whether an operand's value may decide sizes and is small enough to look at.
    fn decides(&self, operand: usize, t: &Tensor) -> bool {
        self.has_host && t.elements() <= MOST_HOST && self.in_host_memory(operand)
    }

    /// The operands as shape rules see them. Shape rules see only dtype and shape of large operands in host memory.
    fn concrete<'t>(
        &self,
        inputs: &[Option<&'t Tensor>],
    ) -> SmallVec<[Option<ConcreteOperand<'t>>; 8]> {
        let operand = |(i, t): (usize, Option<&'t Tensor>)| {
            let t = t?;
            Some(ConcreteOperand {
                dtype: t.dtype(),
                shape: t.shape(),
                host: self.decides(i, t).then_some(t),
            })
        };
        inputs.iter().copied().enumerate().map(operand).collect()
    }

    fn in_host_memory(&self, operand: usize) -> bool {
        let all = self.op.operands;
        let def = all.get(operand).or(all.last().filter(|o| o.variadic));
        def.is_some_and(|o| o.memory == Memory::Host)
    }

    fn predict(&self, inputs: &[Option<&Tensor>]) -> Option<Duration> {
        // The time of a loop depends on its data, and that of an op on strings on their lengths.
        let is_strings = |t: &Option<&Tensor>| t.is_some_and(|t| t.dtype() == DType::Str);
        if self.attrs.functions().next().is_some() || inputs.iter().any(is_strings) {
            return None;
        }
        let operands = self.concrete(inputs);
        let outputs = ops::infer_concrete(self.op, &self.attrs, &operands, self.outputs).ok()?;
        let fixed = |dtype, shape: &[usize]| TensorType::fixed(dtype, shape);
        let given: Vec<_> = inputs
            .iter()
            .map(|t| t.map(|t| fixed(t.dtype(), t.shape())))
            .collect();
        let made: Vec<_> = outputs.iter().map(|(d, s)| fixed(*d, s)).collect();
        let given: Vec<_> = given.iter().map(Option::as_ref).collect();
        let made: Vec<_> = made.iter().collect();
        let cost = (self.op.cost)(&self.attrs, &given, &made);
        let nanos = cost.flops / FLOPS + cost.bytes / BYTES;
        Some(LEAST + Duration::from_nanos(nanos.min(1e18) as u64))
    }
}
