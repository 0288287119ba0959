//! Kernels for custom ops.
//!
//! A definition ([`OpDef`]) states the operands and outputs of an op; a kernel computes it. Workers run the op where
//! their process registered both before it started them, and announce that when they register.
//!
//! ```
//! use convoke_worker::ops::{self, Infer, InferredOutput, OpDef, OpError, operand};
//! use convoke_graph::DType;
//!
//! fn same(i: &Infer<'_>) -> Result<Vec<InferredOutput>, OpError> {
//!     let x = i.required(0)?;
//!     Ok(vec![InferredOutput::of(x.ty.dtype, x.ty.shape.clone())])
//! }
//! const OPERANDS: &[ops::OperandDef] = &[operand("X", &[DType::F32])];
//! static TWICE: OpDef = OpDef::new("example.Twice", "2 X, any shape.", OPERANDS, same);
//!
//! # fn main() -> convoke_common::Result<()> {
//! ops::register(&TWICE, |_| {
//!     Ok(ops::kernel(|call| {
//!         let mut y = call.output(0)?;
//!         for (y, x) in ops::elements_mut::<f32>(&mut y)?.iter_mut().zip(call.slice::<f32>(0)?) {
//!             *y = 2.0 * x;
//!         }
//!         Ok(vec![y])
//!     }))
//! })
//! # }
//! ```
//!
//! The rest of the system expects of a kernel:
//! 1. Equal operands and attributes give equal bits, whatever [`KernelCall::threads`] is, unless the definition says that the
//!    op is impure: steps run again elsewhere when a worker is lost.
//! 2. The kernel calls [`KernelCall::check`] every few milliseconds. A kernel that does not end 5 s after its step has ended
//!    wedges the worker, which ends itself.
//! 3. The kernel takes memory from [`KernelCall::output`] and [`KernelCall::scratch`], which fail where the worker has no more.
//!    Other allocations are not counted.
//!
//! A kernel that fails or panics fails its step, and nothing else.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use convoke_common::Result;
use convoke_graph::graph::Attrs;
use convoke_graph::ops as defs;
use convoke_graph::{DType, Element, Tensor};

pub use convoke_graph::ops::def::{attr, operand, required};
pub use convoke_graph::ops::{
    AttrDef, AttrKind, Cost, CustomOp, Infer, InferredOutput, Memory, OpDef, OpError, OperandDef,
};

use crate::cpu;
pub use crate::cpu::{KernelFailure, Outputs};

/// The attributes and operand types that a kernel is made for. A kernel is made once for each use of the op, not for
/// each run.
pub struct Spec<'a> {
    inner: &'a cpu::Spec<'a>,
}

impl Spec<'_> {
    /// The attributes; their names and kinds are checked already.
    pub fn attrs(&self) -> &Attrs {
        self.inner.attrs
    }

    /// The dtype of operand `i`; `None` for an operand that is left out.
    pub fn dtype(&self, i: usize) -> Option<DType> {
        self.inner.operands.get(i).copied().flatten()
    }

    /// Number of operands, including those that are left out.
    pub fn operands(&self) -> usize {
        self.inner.operands.len()
    }
}

/// A custom op made ready for attributes and dtypes. Any thread may run it, and several threads at once.
pub trait CustomKernel: Send + Sync {
    /// Computes the outputs, in their order. Outputs beyond the number that the call asks for are dropped.
    fn run(&self, call: &mut KernelCall<'_, '_>) -> Result<Outputs, KernelFailure>;
}

impl<F, R> CustomKernel for F
where
    F: Fn(&mut KernelCall<'_, '_>) -> Result<R, KernelFailure> + Send + Sync,
    R: Into<Outputs>,
{
    fn run(&self, call: &mut KernelCall<'_, '_>) -> Result<Outputs, KernelFailure> {
        self(call).map(Into::into)
    }
}

/// Makes a kernel of a closure, which returns its outputs as an array or a vector of tensors.
pub fn kernel<F, R>(run: F) -> Box<dyn CustomKernel>
where
    F: Fn(&mut KernelCall<'_, '_>) -> Result<R, KernelFailure> + Send + Sync + 'static,
    R: Into<Outputs>,
{
    Box::new(run)
}

/// One run of a kernel.
pub struct KernelCall<'c, 'l> {
    inner: cpu::OpLaunch<'c, 'l>,
}

impl KernelCall<'_, '_> {
    /// The attributes of the op.
    pub fn attrs(&self) -> &Attrs {
        self.inner.attrs
    }

    /// Operand `i`; `None` where it is left out, or was taken by [`KernelCall::take`] or [`KernelCall::reuse`].
    #[inline]
    pub fn operand(&self, i: usize) -> Option<&Tensor> {
        self.inner.optional(i)
    }

    /// Moves operand `i` out of the call; `None` where it is left out or was taken before.
    #[inline]
    pub fn take(&mut self, i: usize) -> Option<Tensor> {
        self.inner.launch.inputs.take(i)
    }

    /// The elements of operand `i`; fails where it is left out.
    #[inline]
    pub fn slice<T: Element>(&self, i: usize) -> Result<&[T], KernelFailure> {
        self.inner.slice(i)
    }

    /// The dimensions of operand `i`; fails where it is left out.
    #[inline]
    pub fn shape(&self, i: usize) -> Result<&[usize], KernelFailure> {
        self.inner.shape(i)
    }

    /// Allocates output `o`, with the dtype and shape that the definition's rule gives; its elements are arbitrary.
    #[inline]
    pub fn output(&self, o: usize) -> Result<Tensor, KernelFailure> {
        self.inner.output(o)
    }

    /// Allocates memory for `len` elements, which are arbitrary; it is counted against the worker's memory.
    pub fn scratch<T: Element>(&self, len: usize) -> Result<Tensor, KernelFailure> {
        self.inner.scratch::<T>(len)
    }

    /// Operand `i` itself, to be overwritten as output `o`; `None` unless no one else reads it and it is of the same
    /// size.
    #[inline]
    pub fn reuse(&mut self, i: usize, o: usize) -> Option<Tensor> {
        self.inner.reuse(i, o)
    }

    /// Fails if the step was cancelled.
    #[inline]
    pub fn check(&self) -> Result<(), KernelFailure> {
        Ok(self.inner.launch.exec.check()?)
    }

    /// Number of threads that [`KernelCall::tiles`] may use.
    pub fn threads(&self) -> usize {
        self.inner.launch.exec.threads()
    }

    /// Splits `out` into units of `unit` elements and calls `tile(units, part)` for `grain` units at a time, where
    /// `part` has the elements of these units: in parallel if there are threads, and until the step is cancelled.
    /// `grain` must not depend on [`KernelCall::threads`].
    pub fn tiles<T: Send>(
        &self,
        out: &mut [T],
        unit: usize,
        grain: usize,
        tile: impl Fn(Range<usize>, &mut [T]) + Sync,
    ) -> Result<(), KernelFailure> {
        if unit == 0 || !out.len().is_multiple_of(unit) {
            let msg = format!("{} elements are not units of {unit}", out.len());
            return Err(KernelFailure::new(msg));
        }
        let (units, grain) = (out.len() / unit, grain.max(1));
        let size = unit.saturating_mul(grain);
        let parts: Vec<_> = out.chunks_mut(size).map(|p| Mutex::new(Some(p))).collect();
        self.inner.launch.exec.tiles(units, grain, |range| {
            let part = parts[range.start / grain].lock();
            // Each range is handed out once.
            if let Some(part) = part.unwrap_or_else(PoisonError::into_inner).take() {
                tile(range, part);
            }
        })?;
        Ok(())
    }
}

/// The elements of a tensor from [`KernelCall::output`], [`KernelCall::scratch`] or [`KernelCall::reuse`].
pub fn elements_mut<T: Element>(t: &mut Tensor) -> Result<&mut [T], KernelFailure> {
    cpu::write(t)
}

type Factory = Box<dyn Fn(&Spec<'_>) -> Result<Box<dyn CustomKernel>, OpError> + Send + Sync>;

struct OpRegistration {
    def: &'static OpDef,
    make: Factory,
}

static KERNELS: RwLock<BTreeMap<&'static str, Arc<OpRegistration>>> = RwLock::new(BTreeMap::new());

/// Registers an op and the function that makes its kernels. `make` is called for each use of the op, with attributes
/// and operand dtypes that fit the definition; it may refuse them. Registering the same definition again keeps the
/// first function.
pub fn register(
    def: &'static OpDef,
    make: impl Fn(&Spec<'_>) -> Result<Box<dyn CustomKernel>, OpError> + Send + Sync + 'static,
) -> Result<()> {
    defs::register(def)?;
    let mut kernels = KERNELS.write().unwrap_or_else(PoisonError::into_inner);
    kernels.entry(def.name).or_insert_with(|| {
        let make = Box::new(make);
        Arc::new(OpRegistration { def, make })
    });
    Ok(())
}

/// The ops that workers of this process have kernels for, by name.
pub(crate) fn registered() -> Vec<CustomOp> {
    let kernels = KERNELS.read().unwrap_or_else(PoisonError::into_inner);
    kernels.values().map(|k| CustomOp::of(k.def)).collect()
}

/// Makes the kernel of a custom op.
pub(crate) fn find(spec: &cpu::Spec<'_>) -> cpu::FamilyAnswer {
    let name = spec.def.name;
    let registered = {
        let kernels = KERNELS.read().unwrap_or_else(PoisonError::into_inner);
        kernels.get(name).cloned()
    };
    let registered = registered.ok_or_else(|| OpError::Unknown { op: name.into() })?;
    let op = registered.def.name;
    let made = catch_unwind(AssertUnwindSafe(|| {
        (registered.make)(&Spec { inner: spec })
    }));
    let panicked = |_| Err(OpError::shape(format!("preparing {op} panicked")));
    let kernel = made.unwrap_or_else(panicked)?;
    let custom = RegisteredKernel { op, kernel };
    Ok(cpu::KernelBody::Custom(custom))
}

/// The kernel of one use of a custom op.
pub(crate) struct RegisteredKernel {
    op: &'static str,
    kernel: Box<dyn CustomKernel>,
}

impl RegisteredKernel {
    /// Runs the kernel, and checks its outputs against the definition's rule.
    pub(crate) fn run(&self, call: cpu::OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
        let rule = call.outputs;
        // The fields are copied one by one: a copy in one go would wait for the stores that have just been made.
        let inner = cpu::OpLaunch {
            attrs: call.attrs,
            outputs: rule,
            launch: call.launch,
        };
        let mut outputs = self.kernel.run(&mut KernelCall { inner })?;
        // The kernel may give optional outputs that no one asked for.
        outputs.truncate(rule.len());
        check(self.op, rule, &outputs)?;
        Ok(outputs)
    }
}

/// Checks the outputs against the rule, which other nodes rely on.
fn check(op: &str, rule: &defs::ConcreteOutputs, outputs: &[Tensor]) -> Result<(), KernelFailure> {
    if outputs.len() != rule.len() {
        let msg = format!("{op} gave {} outputs of {}", outputs.len(), rule.len());
        return Err(KernelFailure::new(msg));
    }
    for (o, (t, (dtype, shape))) in outputs.iter().zip(rule).enumerate() {
        if t.dtype() != *dtype || !t.shape().iter().eq(shape) {
            let (is, dims) = (t.signature(), shape.as_slice());
            let msg = format!("{op} gave {is} as output {o}, its rule says {dtype}{dims:?}");
            return Err(KernelFailure::new(msg));
        }
        t.check_elements()?;
    }
    Ok(())
}

impl KernelFailure {
    /// A failure with this message, for [`CustomKernel::run`].
    pub fn new(message: impl Into<String>) -> KernelFailure {
        KernelFailure::values(message)
    }
}

#[cfg(test)]
mod tests;
