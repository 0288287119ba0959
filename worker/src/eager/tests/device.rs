//! Ops whose results are on a device: they are handed on before they are there.

use super::*;
use crate::device::DeviceTensor;

/// A bench of a worker that has a device, and a value there.
fn bench() -> Bench {
    Bench {
        core: Core::new(true),
        ..Bench::new()
    }
}

fn on_device() -> Arc<DeviceValue> {
    Arc::new(DeviceValue::of_device(DeviceTensor {
        dtype: DType::F32,
        shape: [1].as_slice().into(),
        buffer: Arc::new(()),
    }))
}

/// Issues an op and takes it, as if the device launched it.
fn launch(b: &mut Bench, id: Id) -> (Id, Arc<DeviceValue>) {
    let neg = b.neg.clone();
    b.core
        .run(neg.clone(), [Operand::Handle(id)].into_iter().collect());
    let run = b.core.next_ready().unwrap();
    let value = on_device();
    b.core
        .launched(run.first, &neg, std::slice::from_ref(&value));
    (run.first, value)
}

#[test]
fn what_is_launched_is_resolved_once_it_has_ended() {
    let mut b = bench();
    let x = b.literal(1.);
    b.core.reports();
    let (first, _) = launch(&mut b, x);
    // Its readers may run already.
    let (second, _) = launch(&mut b, first);
    assert!(!b.core.has_reports());
    b.core.launch_ended();
    assert!(matches!(b.core.reports()[..], [Report::Resolved(1)]));
    let failure = b.core.failure(boom());
    b.core.launch_failed(second, 1, &failure, true);
    let told = b.core.reports();
    assert!(matches!(&told[0], Report::Failed { handle, .. } if *handle == second));
    assert!(matches!(told[1..], [Report::Resolved(1)]));
    b.check_code(second, Code::KernelFailed);
}

#[test]
fn a_consequence_fails_and_is_not_told() {
    let mut b = bench();
    let x = b.literal(1.);
    let (first, _) = launch(&mut b, x);
    let (second, _) = launch(&mut b, first);
    b.core.reports();
    let failure = b.core.failure(boom());
    for (id, is_root) in [(first, true), (second, false)] {
        b.core.launch_failed(id, 1, &failure, is_root);
    }
    let told = b.core.reports();
    let failed = |r: &&Report| matches!(r, Report::Failed { .. });
    assert_eq!(told.iter().filter(failed).count(), 1);
    b.check_code(second, Code::KernelFailed);
    // What is issued later fails like its operand.
    let third = b.core.next();
    let neg = b.neg.clone();
    b.core
        .run(neg, [Operand::Handle(second)].into_iter().collect());
    assert!(b.core.next_ready().is_none());
    b.check_code(third, Code::KernelFailed);
}

#[test]
fn an_op_waits_for_copies_of_its_operands() {
    let mut b = bench();
    let x = b.literal(1.);
    let (first, _) = launch(&mut b, x);
    let issue = |b: &mut Bench| {
        let add = b.add.clone();
        let operands = [Operand::Handle(first), Operand::Handle(first)];
        b.core.run(add, operands.into_iter().collect());
        let run = b.core.next_ready().unwrap();
        assert!(b.core.next_ready().is_none());
        (run.first, b.core.await_copies(run, 2))
    };
    let before = b.core.footprint();
    let (id, op) = issue(&mut b);
    assert!(b.core.footprint() > before);
    b.core.copied(op, id, 1, Ok(tensor(2.)));
    assert!(b.core.next_ready().is_none());
    // That of another op, which had the entry before.
    b.core.copied(op, id + 1, 0, Ok(tensor(9.)));
    b.core.copied(op, id, 0, Ok(tensor(1.)));
    let run = b.core.next_ready().unwrap();
    let got: Vec<_> = run.inputs.iter().flatten().collect();
    assert_eq!(got[0].as_slice::<f32>().unwrap(), [1.]);
    assert_eq!(got[1].as_slice::<f32>().unwrap(), [2.]);
    // One that a failed copy leaves without its operand.
    let (id, op) = issue(&mut b);
    let failure = b.core.failure(boom());
    b.core.copied(op, id, 0, Err(failure));
    b.core.copied(op, id, 1, Ok(tensor(1.)));
    assert!(b.core.next_ready().is_none());
    b.check_code(id, Code::KernelFailed);
}
