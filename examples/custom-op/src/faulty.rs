//! `example.Faulty`, an op that does wrong whatever an op can: `tests/processes.rs` shows what comes of it.

use convoke::kernels::{self, Call, KernelFailure};
use convoke::ops::{
    AttrDef, AttrKind, Infer, Inferred, OpDef, OpError, OperandDef, operand, required,
};
use convoke::{Attr, Attrs, DType, HostTensor, Result};

const OPERANDS: &[OperandDef] = &[operand("X", &[DType::F32])];
const ATTRS: &[AttrDef] = &[required("how", AttrKind::Str)];

/// X, unless it goes wrong.
pub static FAULTY: OpDef = OpDef::new(
    "example.Faulty",
    "X, unless it goes wrong, any shape.",
    OPERANDS,
    rule,
)
.attrs(ATTRS);

/// The same by name, and another op.
pub static OTHER: OpDef = OpDef::new(
    "example.Faulty",
    "X, unless it goes wrong, any shape.",
    OPERANDS,
    rule,
)
.attrs(ATTRS)
.version(2);

fn rule(i: &Infer<'_>) -> Result<Vec<Inferred>, OpError> {
    let x = i.required(0)?.ty;
    Ok(vec![Inferred::of(x.dtype, x.shape.clone())])
}

/// The attributes of a way to go wrong.
pub fn how(how: &str) -> Attrs {
    Attrs::default().with("how", Attr::Str(how.into()))
}

/// What a worker of this process needs to run either.
pub fn register(def: &'static OpDef) -> Result<()> {
    kernels::register(def, |spec| {
        let how = spec.attrs().str("how", "").to_owned();
        Ok(kernels::kernel(move |call| run(call, &how)))
    })
}

fn run(call: &mut Call<'_, '_>, how: &str) -> Result<Vec<HostTensor>, KernelFailure> {
    match how {
        "fail" => Err(KernelFailure::new("this op fails")),
        "panic" => panic!("this op panics"),
        "abort" => std::process::abort(),
        // Without a look at `call.check()`.
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
