use std::sync::atomic::AtomicBool;

use convoke_common::Code;
use convoke_common::memory::{Ledger, Pool, Purpose};
use convoke_graph::graph::Attr;
use convoke_kernels::Exec;

use super::*;
use crate::cpu::testing::{launch, one, vec1};
use crate::cpu::{Launch, Operands, resolve};

const X: &[OperandDef] = &[operand("X", &[DType::F32])];
const MODE: &[AttrDef] = &[required("mode", AttrKind::Str)];

fn same(i: &Infer<'_>) -> Result<Vec<InferredOutput>, OpError> {
    let x = i.required(0)?;
    Ok(vec![InferredOutput::of(x.ty.dtype, x.ty.shape.clone())])
}

static TRY: OpDef = OpDef::new("test.Try", "X, any shape.", X, same).attrs(MODE);

/// Makes a kernel for [`TRY`]; the attribute `mode` says what the kernel does.
fn make(spec: &Spec<'_>) -> Result<Box<dyn CustomKernel>, OpError> {
    let mode = spec.attrs().str("mode", "").to_owned();
    match &*mode {
        "refused" => return Err(OpError::shape("no such mode")),
        "unprepared" => panic!("on purpose"),
        _ => {}
    }
    Ok(kernel(move |call| match &*mode {
        "twice" => {
            let y = match call.reuse(0, 0) {
                Some(mut y) => {
                    elements_mut::<f32>(&mut y)?
                        .iter_mut()
                        .for_each(|y| *y *= 2.0);
                    y
                }
                None => {
                    let mut y = call.output(0)?;
                    let x = call.slice::<f32>(0)?;
                    let each = elements_mut::<f32>(&mut y)?.iter_mut().zip(x);
                    each.for_each(|(y, x)| *y = 2.0 * x);
                    y
                }
            };
            Ok(vec![y])
        }
        "none" => Ok(vec![]),
        "other" => Ok(vec![call.scratch::<f32>(call.shape(0)?[0] + 1)?]),
        "large" => Ok(vec![call.scratch::<f64>(1 << 20)?]),
        "cancelled" => call.check().map(|()| vec![]),
        _ => Err(KernelFailure::new("I will not")),
    }))
}

fn mode(mode: &str) -> Attrs {
    Attrs::default().with("mode", Attr::Str(mode.into()))
}

#[test]
fn a_kernel_computes_also_in_place() {
    register(&TRY, make).unwrap();
    let x = vec1(&[1f32, 2.0]);
    assert_eq!(
        one("test.Try", mode("twice"), &[&x]).unwrap(),
        vec1(&[2f32, 4.0])
    );
    let at = x.bytes().as_ptr();
    let y = launch("test.Try", mode("twice"), vec![Some(x)], 1).unwrap();
    assert_eq!((y[0].bytes().as_ptr(), &y[0]), (at, &vec1(&[2f32, 4.0])));
    assert!(registered().contains(&CustomOp::of(&TRY)));
}

#[test]
fn what_a_kernel_does_wrong_is_an_error() {
    register(&TRY, make).unwrap();
    let check = |how: &str, why: &str| {
        let e = one("test.Try", mode(how), &[&vec1(&[1f32])]).unwrap_err();
        assert!(e.message.contains(why), "{how}: {e}");
    };
    check("", "I will not");
    check("none", "gave 0 outputs of 1");
    check("other", "gave f32[2] as output 0, its rule says f32[1]");
    check("refused", "no such mode");
    check("unprepared", "preparing test.Try panicked");
    let e = one("test.Try", Attrs::default(), &[&vec1(&[1f32])]).unwrap_err();
    assert!(e.message.contains("'mode': is required"), "{e}");
}

#[test]
fn memory_is_the_pools_and_the_flag_the_steps() {
    register(&TRY, make).unwrap();
    let check = |how: &str, cancelled: bool| {
        let kernel = resolve("test.Try", &mode(how), &[Some(DType::F32)], 1).unwrap();
        let flag = AtomicBool::new(false);
        let pool = Pool::new(&Ledger::new("test", 1 << 20), Purpose::Handles, 0).unwrap();
        let mut inputs = [Some(vec1(&[1f32]))];
        let exec = Exec::single(&flag);
        flag.store(cancelled, std::sync::atomic::Ordering::Relaxed);
        kernel
            .launch(&mut Launch {
                inputs: Operands::given(&mut inputs),
                sizes: None,
                exec,
                pool: &pool,
            })
            .unwrap_err()
    };
    let KernelFailure::Error(e) = check("large", false) else {
        panic!("not an error");
    };
    assert_eq!(e.code, Code::OutOfMemory, "{e}");
    assert!(matches!(check("cancelled", true), KernelFailure::Cancelled));
}

#[test]
fn an_op_without_a_kernel_is_unknown() {
    static ONLY: OpDef = OpDef::new("test.Only", "X, any shape.", X, same);
    defs::register(&ONLY).unwrap();
    let e = resolve("test.Only", &Attrs::default(), &[Some(DType::F32)], 1).err();
    assert!(matches!(e, Some(OpError::Unknown { .. })), "{e:?}");
    assert!(registered().iter().all(|op| op.name != "test.Only"));
}
