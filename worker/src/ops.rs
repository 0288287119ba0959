//! Kernels for ops of a user's own.
//!
//! A definition ([`OpDef`]) says what an op takes and gives; a kernel computes it. A process that registers both before
//! its workers start has workers that run the op, and tells so when they join.
//!
//! ```
//! use convoke_worker::ops::{self, Infer, Inferred, OpDef, OpError, operand};
//! use convoke_common::DType;
//!
//! fn same(i: &Infer<'_>) -> Result<Vec<Inferred>, OpError> {
//!     let x = i.required(0)?;
//!     Ok(vec![Inferred::of(x.ty.dtype, x.ty.shape.clone())])
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
//! Of a kernel the rest of the system expects:
//! 1. Equal operands and attributes give equal bits, whatever [`Call::threads`] is, unless its definition says that it
//!    is impure: steps run again elsewhere when a worker is lost.
//! 2. It looks at [`Call::check`] every few milliseconds. One that does not end 5 s after its step has ended wedges the
//!    worker, which ends itself.
//! 3. What it needs of memory it takes from [`Call::output`] and [`Call::scratch`], which fail where the worker has no more.
//!    Other allocations are not counted.
//!
//! One that fails or panics fails its step, and nothing else.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use convoke_common::graph::Attrs;
use convoke_common::ops as defs;
use convoke_common::{DType, Element, Result, Tensor};

pub use convoke_common::ops::def::{attr, operand, required};
pub use convoke_common::ops::{
    AttrDef, AttrKind, Cost, CustomOp, Infer, Inferred, Memory, OpDef, OpError, OperandDef,
};

use crate::cpu;
pub use crate::cpu::{KernelFailure, Outputs};

/// What a kernel is made for: once for each use of the op, not for each run.
pub struct Spec<'a> {
    inner: &'a cpu::Spec<'a>,
}

impl Spec<'_> {
    /// The attributes; their names and kinds were checked.
    pub fn attrs(&self) -> &Attrs {
        self.inner.attrs
    }

    /// The dtype of operand `i`; `None` where it is left out.
    pub fn dtype(&self, i: usize) -> Option<DType> {
        self.inner.operands.get(i).copied().flatten()
    }

    /// Number of operands, of those left out too.
    pub fn operands(&self) -> usize {
        self.inner.operands.len()
    }
}

/// A custom op made ready for attributes and dtypes. Any thread may run it, and several at once.
pub trait CustomKernel: Send + Sync {
    /// Computes the outputs, in their order. Those behind the last one that is asked for are dropped.
    fn run(&self, call: &mut Call<'_, '_>) -> Result<Outputs, KernelFailure>;
}

impl<F, R> CustomKernel for F
where
    F: Fn(&mut Call<'_, '_>) -> Result<R, KernelFailure> + Send + Sync,
    R: Into<Outputs>,
{
    fn run(&self, call: &mut Call<'_, '_>) -> Result<Outputs, KernelFailure> {
        self(call).map(Into::into)
    }
}

/// A closure as a kernel; it gives its outputs as an array or a vector of tensors.
pub fn kernel<F, R>(run: F) -> Box<dyn CustomKernel>
where
    F: Fn(&mut Call<'_, '_>) -> Result<R, KernelFailure> + Send + Sync + 'static,
    R: Into<Outputs>,
{
    Box::new(run)
}

/// One run of a kernel.
pub struct Call<'c, 'l> {
    inner: cpu::Call<'c, 'l>,
}

impl Call<'_, '_> {
    /// The attributes.
    pub fn attrs(&self) -> &Attrs {
        self.inner.attrs
    }

    /// Operand `i`; `None` where it is left out, or taken by [`Call::take`] or [`Call::reuse`].
    #[inline]
    pub fn operand(&self, i: usize) -> Option<&Tensor> {
        self.inner.optional(i)
    }

    /// Operand `i`, handed over; `None` where it is left out or was taken before.
    #[inline]
    pub fn take(&mut self, i: usize) -> Option<Tensor> {
        self.inner.launch.inputs.take(i)
    }

    /// The elements of operand `i`, which must be there.
    #[inline]
    pub fn slice<T: Element>(&self, i: usize) -> Result<&[T], KernelFailure> {
        self.inner.slice(i)
    }

    /// The dimensions of operand `i`, which must be there.
    #[inline]
    pub fn shape(&self, i: usize) -> Result<&[usize], KernelFailure> {
        self.inner.shape(i)
    }

    /// A tensor for output `o`, of the dtype and shape that the definition's rule gives; its elements are arbitrary.
    #[inline]
    pub fn output(&self, o: usize) -> Result<Tensor, KernelFailure> {
        self.inner.output(o)
    }

    /// Memory for `len` elements; they are arbitrary.
    pub fn scratch<T: Element>(&self, len: usize) -> Result<Tensor, KernelFailure> {
        self.inner.scratch::<T>(len)
    }

    /// Operand `i` itself, to be overwritten as output `o`: where nobody else reads it, and it is of the same size.
    #[inline]
    pub fn reuse(&mut self, i: usize, o: usize) -> Option<Tensor> {
        self.inner.reuse(i, o)
    }

    /// Fails when the step was cancelled.
    #[inline]
    pub fn check(&self) -> Result<(), KernelFailure> {
        Ok(self.inner.launch.exec.check()?)
    }

    /// Number of threads that [`Call::tiles`] may use.
    pub fn threads(&self) -> usize {
        self.inner.launch.exec.threads()
    }

    /// Takes `out` apart into units of `unit` elements and calls `tile(units, part)` for `grain` of them at a time, `part`
    /// being the elements of these units: in parallel where there are threads, and until the step is cancelled. `grain`
    /// must not depend on [`Call::threads`].
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
            // Each range is given once.
            if let Some(part) = part.unwrap_or_else(PoisonError::into_inner).take() {
                tile(range, part);
            }
        })?;
        Ok(())
    }
}

/// The elements of a tensor that [`Call::output`], [`Call::scratch`] or [`Call::reuse`] gave.
pub fn elements_mut<T: Element>(t: &mut Tensor) -> Result<&mut [T], KernelFailure> {
    cpu::write(t)
}

type Factory = Box<dyn Fn(&Spec<'_>) -> Result<Box<dyn CustomKernel>, OpError> + Send + Sync>;

struct Registered {
    def: &'static OpDef,
    make: Factory,
}

static KERNELS: RwLock<BTreeMap<&'static str, Arc<Registered>>> = RwLock::new(BTreeMap::new());

/// Registers an op and what makes its kernels. `make` is called for each use of the op, with the attributes and operand
/// dtypes, which fit the definition; it may refuse them. Registering the same definition again keeps the first kernel.
pub fn register(
    def: &'static OpDef,
    make: impl Fn(&Spec<'_>) -> Result<Box<dyn CustomKernel>, OpError> + Send + Sync + 'static,
) -> Result<()> {
    defs::register(def)?;
    let mut kernels = KERNELS.write().unwrap_or_else(PoisonError::into_inner);
    kernels.entry(def.name).or_insert_with(|| {
        let make = Box::new(make);
        Arc::new(Registered { def, make })
    });
    Ok(())
}

/// The ops that workers of this process have kernels for, by name.
pub(crate) fn registered() -> Vec<CustomOp> {
    let kernels = KERNELS.read().unwrap_or_else(PoisonError::into_inner);
    kernels.values().map(|k| CustomOp::of(k.def)).collect()
}

/// The implementation of a custom op.
pub(crate) fn find(spec: &cpu::Spec<'_>) -> cpu::Found {
    if !defs::is_custom(spec.op) {
        return Ok(None);
    }
    let registered = {
        let kernels = KERNELS.read().unwrap_or_else(PoisonError::into_inner);
        kernels.get(spec.op).cloned()
    };
    let Some(registered) = registered else {
        return Ok(None);
    };
    let op = registered.def.name;
    let made = catch_unwind(AssertUnwindSafe(|| {
        (registered.make)(&Spec { inner: spec })
    }));
    let panicked = |_| Err(OpError::shape(format!("preparing {op} panicked")));
    let kernel = made.unwrap_or_else(panicked)?;
    let custom = Custom { op, kernel };
    Ok(Some(cpu::Body::Custom(custom)))
}

/// A custom op's implementation.
pub(crate) struct Custom {
    op: &'static str,
    kernel: Box<dyn CustomKernel>,
}

impl Custom {
    /// Runs it, and looks at what it gives.
    pub(crate) fn run(&self, call: cpu::Call<'_, '_>) -> Result<Outputs, KernelFailure> {
        let rule = call.outputs;
        // Field by field: copied in one go, what was written a moment ago would be waited for.
        let inner = cpu::Call {
            attrs: call.attrs,
            outputs: rule,
            launch: call.launch,
        };
        let mut outputs = self.kernel.run(&mut Call { inner })?;
        // Of optional outputs only those that somebody asked for.
        outputs.truncate(rule.len());
        check(self.op, rule, &outputs)?;
        Ok(outputs)
    }
}

/// Others rely on what the rule says.
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
        t.check_bool()?;
    }
    Ok(())
}

impl KernelFailure {
    /// A failure in words, for [`CustomKernel::run`].
    pub fn new(message: impl Into<String>) -> KernelFailure {
        KernelFailure::values(message)
    }
}

#[cfg(test)]
mod tests;
