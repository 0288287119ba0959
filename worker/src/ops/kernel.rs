//! The kernel of a custom op: what a user implements, what it gets at each run, and the checks of what it gives.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use convoke_graph::graph::Attrs;
use convoke_graph::ops::ConcreteOutputs;
use convoke_graph::{Element, Tensor};

use crate::cpu::{KernelFailure, OpLaunch, Outputs, write};

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
    inner: OpLaunch<'c, 'l>,
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
    write(t)
}

/// The kernel of one use of a custom op.
pub(crate) struct RegisteredKernel {
    op: &'static str,
    kernel: Box<dyn CustomKernel>,
}

impl RegisteredKernel {
    /// The kernel of a use of the custom op of this name.
    pub(crate) fn new(op: &'static str, kernel: Box<dyn CustomKernel>) -> RegisteredKernel {
        RegisteredKernel { op, kernel }
    }

    /// Runs the kernel, and checks its outputs against the definition's rule.
    pub(crate) fn run(&self, call: OpLaunch<'_, '_>) -> Result<Outputs, KernelFailure> {
        let rule = call.outputs;
        // The fields are copied one by one: a copy in one go would wait for the stores that have just been made.
        let inner = OpLaunch {
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
fn check(op: &str, rule: &ConcreteOutputs, outputs: &[Tensor]) -> Result<(), KernelFailure> {
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
