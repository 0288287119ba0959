//! An op made ready to run many times: its kernel, and a prediction of its time.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use convoke_graph::graph::{Attrs, TensorType};
use convoke_graph::ops::{self, ConcreteOperand, ConcreteOutputs, Cost, Memory, OpDef};
use convoke_graph::{DType, Tensor};
use convoke_rendezvous::eager::wire::Definition;
use smallvec::SmallVec;

use crate::cpu::{self, Kernel, SizeKey, is_host};
use crate::device::{Device, DeviceKernel, DeviceOp};

/// Least speed of one core, in operations and in bytes per nanosecond. It only decides which thread runs a kernel.
pub(super) const CORE: (f64, f64) = (2.0, 4.0);
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
    /// The kernel of the worker's device, where it has one for the op.
    pub device: Option<DeviceKernel>,
    /// The facts for the operands that were seen first; most ops see no others.
    first: OnceLock<Arc<ShapeFacts>>,
    /// The facts for the latest operands that differ from the first ones.
    last: Mutex<Option<Arc<ShapeFacts>>>,
}

/// Facts that follow from the shapes of operands, and from the values of those in host memory.
pub(super) struct ShapeFacts {
    pub operands: SizeKey,
    /// Predicted time of the kernel on one thread; [`Duration::MAX`] where it cannot be predicted.
    pub predicted: Duration,
    /// Dtypes and shapes of the results, if they are known before the run.
    pub sizes: Option<ConcreteOutputs>,
}

impl PreparedOp {
    /// Resolves the kernels of a defined op, at the host and at the worker's device.
    pub fn new(d: Definition, device: Option<&dyn Device>) -> Result<PreparedOp, ops::OpError> {
        let unknown = || ops::OpError::Unknown { op: d.op.clone() };
        let op = ops::lookup(&d.op).ok_or_else(unknown)?;
        let outputs = usize::from(d.outputs);
        let (least, most) = op.outputs;
        if outputs < least.max(1) || outputs > most {
            let reason = format!("has {least} to {most} outputs, {outputs} asked for");
            return Err(ops::OpError::shape(reason));
        }
        let device = device.and_then(|device| {
            device.resolve(&DeviceOp {
                def: op,
                attrs: &d.attrs,
                operands: &d.operands,
                outputs,
            })
        });
        Ok(PreparedOp {
            device,
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
    pub fn signatures<'s>(&self, shapes: impl Iterator<Item = Option<&'s [usize]>>) -> Vec<String> {
        let all = self.dtypes.iter().zip(shapes);
        let given = all.filter_map(|(dtype, shape)| dtype.zip(shape));
        given.map(|(d, shape)| format!("{d}{shape:?}")).collect()
    }

    /// Whether an operand has strings.
    pub fn has_text(&self) -> bool {
        self.dtypes.contains(&Some(DType::Str))
    }

    /// The attributes.
    pub fn attrs(&self) -> &Attrs {
        &self.attrs
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
        let concrete = self.concrete(inputs);
        ShapeFacts {
            operands: SizeKey::of(self.given(inputs)),
            predicted: self.predicted(&concrete, CORE),
            sizes: self.kernel.sizes(&concrete),
        }
    }

    /// The predicted time of a kernel of this many operations and bytes per nanosecond; [`Duration::MAX`] where it cannot be
    /// predicted.
    pub fn predicted(
        &self,
        operands: &[Option<ConcreteOperand<'_>>],
        (flops, bytes): (f64, f64),
    ) -> Duration {
        // The time of a custom op is unknown.
        let known = !ops::is_custom(self.op.name);
        let Some(cost) = known.then(|| self.cost(operands)).flatten() else {
            return Duration::MAX;
        };
        let nanos = cost.flops / flops + cost.bytes / bytes;
        LEAST + Duration::from_nanos(nanos.min(1e18) as u64)
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
    pub fn decides(&self, operand: usize, t: &Tensor) -> bool {
        self.has_host && t.elements() <= MOST_HOST && is_host(self.op, operand)
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

    fn cost(&self, operands: &[Option<ConcreteOperand<'_>>]) -> Option<Cost> {
        // The time of a loop depends on its data, and that of an op on strings on their lengths.
        if self.attrs.functions().next().is_some() || self.has_text() {
            return None;
        }
        let outputs = ops::infer_concrete(self.op, &self.attrs, operands, self.outputs).ok()?;
        let fixed = |dtype, shape: &[usize]| TensorType::fixed(dtype, shape);
        let given = operands.iter();
        let given: Vec<_> = given
            .map(|t| t.as_ref().map(|t| fixed(t.dtype, t.shape)))
            .collect();
        let made: Vec<_> = outputs.iter().map(|(d, s)| fixed(*d, s)).collect();
        let given: Vec<_> = given.iter().map(Option::as_ref).collect();
        let made: Vec<_> = made.iter().collect();
        Some((self.op.cost)(&self.attrs, &given, &made))
    }
}
