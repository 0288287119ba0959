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

mod kernel;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, RwLock};

use convoke_common::Result;
use convoke_graph::DType;
use convoke_graph::graph::Attrs;
use convoke_graph::ops as defs;

pub use convoke_graph::Outputs;
pub use convoke_graph::ops::def::{attr, operand, required};
pub use convoke_graph::ops::{
    AttrDef, AttrKind, Cost, CustomOp, Infer, InferredOutput, Memory, OpDef, OpError, OperandDef,
};

pub(crate) use self::kernel::RegisteredKernel;
pub use self::kernel::{CustomKernel, KernelCall, elements_mut, kernel};
use crate::cpu;
pub use crate::cpu::KernelFailure;

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
    Ok(cpu::KernelBody::Custom(RegisteredKernel::new(op, kernel)))
}

#[cfg(test)]
mod tests;
