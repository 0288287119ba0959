//! Tests of what a queue promises when something fails: a launch, the driver, a callback or another queue.

use convoke_graph::Shape;
use convoke_worker::device::DeviceTensor;

use super::*;

/// Waits until all that was enqueued has ended.
fn finish(queue: &dyn DeviceQueue) {
    let (told, ended) = channel();
    queue.event(Box::new(move || told.send(()).unwrap()));
    ended.recv_timeout(Duration::from_secs(60)).unwrap();
}

/// Copies a tensor to the host.
fn copied(queue: &dyn DeviceQueue, step: &Arc<DeviceStep>, tensor: DeviceTensor) -> Copied {
    let pool = Pool::new(&Ledger::new("host", 1 << 30), Purpose::Leases, 0).unwrap();
    let (told, copied) = channel();
    let then = move |copy| drop(told.send(copy));
    queue.copy_out(step, 4, tensor, &pool, Box::new(then));
    copied.recv_timeout(Duration::from_secs(60)).unwrap()
}

/// Launches an op with one result of the first operand's dtype, as node 3.
fn launched(
    device: &CudaDevice,
    queue: &dyn DeviceQueue,
    step: &Arc<DeviceStep>,
    op: &str,
    operands: &[&DeviceTensor],
    shape: &[usize],
) -> DeviceTensor {
    let dtypes: Vec<Option<DType>> = operands.iter().map(|t| Some(t.dtype)).collect();
    let kernel = device.resolve(&DeviceOp {
        def: ops::lookup(op).unwrap(),
        attrs: &Attrs::default(),
        operands: &dtypes,
        outputs: 1,
    });
    let outputs: ConcreteOutputs = [(operands[0].dtype, Shape::from_slice(shape))]
        .into_iter()
        .collect();
    let given = operands.iter().map(|t| DeviceOperand::Device((*t).clone()));
    let mut made = queue.launch(DeviceLaunch {
        kernel: &kernel.unwrap(),
        step,
        node: 3,
        operands: given.collect(),
        outputs: &outputs,
    });
    made.remove(0)
}

#[test]
fn a_failure_leaves_what_does_not_depend_on_it() {
    let device = device("partial");
    let (share, ledger) = (
        Share::new(AccountId::named("test"), LeaseId(1)),
        Ledger::new("device", 4096),
    );
    let queue = device.open(&share, &ledger, Purpose::Leases, 0).unwrap();
    let step = step();
    let small = queue.copy_in(&step, 0, floats(DType::F32, &[8], 20));
    let large = queue.copy_in(&step, 1, floats(DType::F32, &[8192], 21));
    let failure = copied(&*queue, &step, large).unwrap_err();
    assert_eq!(failure.node, 1);
    assert!(step.failure().is_some());
    copied(&*queue, &step, small).unwrap();
}

#[test]
fn more_checked_launches_than_a_block_has_words() {
    let device = device("words");
    let (queue, of_all, of_one) = (queue(&device), step(), step());
    let x = queue.copy_in(&of_all, 0, floats(DType::F32, &[3, 2], 18));
    let within = queue.copy_in(&of_all, 0, ints(&[0, 2]));
    let beyond = queue.copy_in(&of_all, 0, ints(&[0, 3]));
    let gather = |step, at| launched(&device, &*queue, step, "Gather", &[&x, at], &[2, 2]);
    let mut last = None;
    for _ in 0..600 {
        last = Some(gather(&of_all, &within));
    }
    let wrong = gather(&of_one, &beyond);
    copied(&*queue, &of_all, last.unwrap()).unwrap();
    let failure = copied(&*queue, &of_one, wrong.clone()).unwrap_err();
    assert_eq!(
        failure.error.as_ref().unwrap().code,
        Code::KernelFailed,
        "{failure:?}"
    );
    // In another step what depends on it fails as well, and in its own step what does not is there.
    let read = launched(&device, &*queue, &of_all, "Neg", &[&wrong], &[2, 2]);
    let of_reader = copied(&*queue, &of_all, read).unwrap_err();
    assert!(Arc::ptr_eq(&of_reader, &failure), "{of_reader:?}");
    copied(&*queue, &of_one, x.clone()).unwrap();
}

#[test]
fn a_kernel_that_hangs_is_at_work() {
    let driver = Arc::new(Emulated::new("hangs"));
    let device = CudaDevice::new(driver.clone());
    let (queue, step) = (queue(&device), step());
    let x = queue.copy_in(&step, 0, floats(DType::F32, &[8], 22));
    finish(&*queue);
    assert_eq!(step.at_work(), None);
    driver.hold();
    launched(&device, &*queue, &step, "Neg", &[&x], &[8]);
    let (told, ended) = channel();
    queue.event(Box::new(move || told.send(()).unwrap()));
    driver.held();
    assert_eq!(step.at_work(), Some(3));
    driver.release();
    ended.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(step.at_work(), None);
}

#[test]
fn a_driver_that_records_no_event_has_lost_the_gpu() {
    let driver = Arc::new(Emulated::new("no-event"));
    let device = CudaDevice::new(driver.clone());
    let (queue, step) = (queue(&device), step());
    let x = queue.copy_in(&step, 0, floats(DType::F32, &[8], 23));
    driver.refuse_events();
    let failure = copied(&*queue, &step, x).unwrap_err();
    assert_eq!(failure.error.as_ref().unwrap().code, Code::Wedged);
    assert!(is_wedged(&device));
    finish(&*queue);
}

#[test]
fn a_callback_that_panics_loses_the_gpu_and_no_other_callback() {
    let device = device("panics");
    let queue = queue(&device);
    queue.event(Box::new(|| panic!("a callback of the test")));
    finish(&*queue);
    assert!(is_wedged(&device));
}

#[test]
fn memory_outlives_the_queues_that_read_it() {
    let driver = Arc::new(Emulated::new("readers"));
    let device = CudaDevice::new(driver.clone());
    let (owner, step) = (queue(&device), step());
    let given = floats(DType::F32, &[8], 24);
    let x = owner.copy_in(&step, 0, given.clone());
    finish(&*owner);
    for _ in 0..8 {
        let reader = queue(&device);
        let made = launched(&device, &*reader, &step, "Identity", &[&x], &[8]);
        assert_eq!(
            copied(&*reader, &step, made).unwrap().bytes(),
            given.bytes()
        );
    }
    let made = launched(&device, &*owner, &step, "Neg", &[&x], &[8]);
    drop(x);
    copied(&*owner, &step, made).unwrap();
}

#[test]
fn freed_memory_is_kept_as_far_as_it_is_reserved() {
    let driver = Arc::new(Emulated::new("kept"));
    let device = CudaDevice::new(driver.clone());
    let (share, ledger) = (
        Share::new(AccountId::named("test"), LeaseId(1)),
        Ledger::new("device", 1 << 20),
    );
    let queue = device.open(&share, &ledger, Purpose::Leases, 8192).unwrap();
    let step = step();
    // Takes memory for an operand, a value between, and a result, and returns how much of it came from the driver.
    let check = |len: usize, want: usize| {
        let before = driver.taken();
        let x = queue.copy_in(&step, 0, floats(DType::F32, &[len], 45));
        let y = launched(&device, &*queue, &step, "Neg", &[&x], &[len]);
        let z = launched(&device, &*queue, &step, "Neg", &[&y], &[len]);
        drop((x, y));
        copied(&*queue, &step, z).unwrap();
        finish(&*queue);
        assert_eq!(driver.taken() - before, want, "{len}");
    };
    check(256, 3 * 1024);
    // The value between has the memory of the last one. Memory of copies goes back to the driver.
    check(250, 2 * 1024);
    // All that is reserved is in use, so that nothing may be kept beside it.
    check(2048, 3 * 8192);
    check(256, 3 * 1024);
}
