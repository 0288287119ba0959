//! `example.Faulty`, an op that fails in every way in which an op can fail. `tests/processes.rs` shows the
//! consequences.

use convoke::kernels::{self, KernelCall, KernelFailure};
use convoke::ops::{
    AttrDef, AttrKind, Infer, InferredOutput, OpDef, OpError, OperandDef, operand, required,
};
use convoke::{Attr, Attrs, DType, HostTensor, Result};

const OPERANDS: &[OperandDef] = &[operand("X", &[DType::F32])];
const ATTRS: &[AttrDef] = &[required("how", AttrKind::Str)];

/// The op returns X, unless its attribute `how` names a way to fail.
pub static FAULTY: OpDef = OpDef::new(
    "example.Faulty",
    "X, unless it goes wrong, any shape.",
    OPERANDS,
    rule,
)
.attrs(ATTRS);

/// A different op of the same name: its version differs, and therefore its fingerprint.
pub static OTHER: OpDef = OpDef::new(
    "example.Faulty",
    "X, unless it goes wrong, any shape.",
    OPERANDS,
    rule,
)
.attrs(ATTRS)
.version(2);

fn rule(i: &Infer<'_>) -> Result<Vec<InferredOutput>, OpError> {
    let x = i.required(0)?.ty;
    Ok(vec![InferredOutput::of(x.dtype, x.shape.clone())])
}

/// The attributes that make the op fail in the way `how`.
pub fn how(how: &str) -> Attrs {
    Attrs::default().with("how", Attr::Str(how.into()))
}

/// Registers one of the two definitions with its kernel, so that workers of this process can run it.
pub fn register(def: &'static OpDef) -> Result<()> {
    kernels::register(def, |spec| {
        let how = spec.attrs().str("how", "").to_owned();
        Ok(kernels::kernel(move |call| run(call, &how)))
    })
}

fn run(call: &mut KernelCall<'_, '_>, how: &str) -> Result<Vec<HostTensor>, KernelFailure> {
    match how {
        "fail" => Err(KernelFailure::new("this op fails")),
        "panic" => panic!("this op panics"),
        "abort" => std::process::abort(),
        // This kernel never calls `call.check()`, so it cannot be cancelled.
        "hang" => loop {
            std::thread::park();
        },
        "wait" => loop {
            call.check()?;
            std::thread::yield_now();
        },
        "allocate" => Ok(vec![call.scratch::<f32>(1 << 40)?]),
        "shape" => Ok(vec![call.scratch::<f32>(7)?]),
        _ => Ok(call.operand(0).cloned().into_iter().collect()),
    }
}
