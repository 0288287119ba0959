//! Placement on workers whose devices have memory, speed and kernels of their own.

use super::*;

/// A cluster whose devices have memory of their own, of this many bytes; `None` is a worker whose device is its host.
fn with_devices(host: u64, devices: &[Option<u64>]) -> ClusterModel {
    let mut all = cluster(devices.len(), host);
    for (worker, own) in all.workers.iter_mut().zip(devices) {
        let Some(bytes) = own else { continue };
        worker.device = "simgpu:0".parse().unwrap();
        worker.device_memory = Some(MemoryModel::idle(*bytes));
    }
    all
}

#[test]
fn what_fits_the_host_and_not_the_device_is_split() {
    // The chain has twelve weights of 1 MiB.
    let f = chain(12, 512);
    let auto = options(&f, WorkerCount::Auto);
    let check = |device: u64, want: usize| {
        let all = with_devices(100 * MIB, &[Some(device * MIB); 6]);
        let placed = check(&f, &all, &auto);
        assert_eq!(placed.team.size(), want, "{device} MiB");
        for usage in &placed.usage {
            // Nothing is loaded on a device, which has only what stays.
            assert_eq!(usage.device.needed, usage.weights + usage.activations);
            assert!(usage.needed >= usage.device.needed, "{usage:?}");
        }
    };
    check(100, 1);
    check(9, 2);
    check(6, 3);
    check(4, 4);
}

#[test]
fn a_small_device_gets_less_and_a_small_host_as_well() {
    let f = chain(12, 512);
    let three = options(&f, WorkerCount::Exactly(3));
    let weights = |c: &ClusterModel| -> Vec<u64> {
        let usage = check(&f, c, &three).usage;
        usage.iter().map(|u| u.weights / MIB).collect()
    };
    let mut c = with_devices(9 * MIB, &[Some(9 * MIB), Some(3 * MIB), None]);
    assert!(weights(&c)[1] <= 2, "{:?}", weights(&c));
    c.workers[1].device_memory = Some(MemoryModel::idle(100 * MIB));
    c.workers[1].host = MemoryModel::idle(3 * MIB);
    assert!(weights(&c)[1] <= 2, "{:?}", weights(&c));
}

/// Devices without a kernel for products.
fn without_products(mut all: ClusterModel) -> ClusterModel {
    let kernels = WorkerKernels {
        host: KernelSet::all(),
        device: KernelSet::only([("Relu", [DType::F32].into_iter().collect())]),
    };
    let own = all.workers.iter_mut().filter(|w| w.device_memory.is_some());
    own.for_each(|w| w.kernels = Arc::new(kernels.clone()));
    all
}

#[test]
fn what_a_device_has_no_kernel_for_takes_none_of_its_memory() {
    let f = chain(12, 512);
    let auto = options(&f, WorkerCount::Auto);
    let small = with_devices(100 * MIB, &[Some(5 * MIB); 6]);
    assert!(check(&f, &small, &auto).team.size() > 1);
    let placed = check(&f, &without_products(small), &auto);
    assert_eq!(placed.team.size(), 1);
    // Nothing runs there, so that nothing is reserved for steps either.
    assert_eq!(placed.usage[0].device.needed, 0);
    let constants = placed.device_constants();
    assert!(constants[0].is_empty() && !placed.constants()[0].is_empty());
    // Devices that are too small for anything are in nobody's way.
    let tiny = without_products(with_devices(7 * MIB, &[Some(4096); 2]));
    let placed = check(&f, &tiny, &options(&f, WorkerCount::Exactly(2)));
    assert_eq!(placed.team.size(), 2);
}

#[test]
fn results_that_no_step_makes_are_kept_where_hosts_have_room() {
    let text = "param x0: f32[4, 128]\nweight w: f32[128, 128]\nweight kept: f32[2048, 1024]\n\
                x1 = MatMul(x0, w)\nx2 = MatMul(x1, w)\nresult x2\nresult kept";
    let f = parse(text);
    let mut all = cluster(2, 100 * MIB);
    all.workers[0].device_memory = Some(MemoryModel::idle(MIB));
    all.workers[1].host = MemoryModel::idle(5 * MIB);
    // The host of the small device has room for the result; the other host has not.
    let placed = check(&f, &all, &options(&f, WorkerCount::Exactly(2)));
    assert_eq!(placed.team.size(), 2);
}

#[test]
fn a_faster_device_gets_more_of_what_it_has_kernels_for() {
    let f = chain(30, 256);
    let two = options(&f, WorkerCount::Exactly(2));
    let of_slow = |mut all: ClusterModel| {
        let fast = &mut all.workers[0].device_speed;
        fast.flops *= 4.0;
        fast.memory_bandwidth *= 4.0;
        let placed = check(&f, &all, &two);
        let slow = placed.team.workers.iter().position(|w| w.name == "w1");
        let at = placed.participant.iter();
        at.filter(|m| Some(usize::from(**m)) == slow).count()
    };
    let all = || with_devices(100 * MIB, &[Some(100 * MIB); 2]);
    let share = of_slow(all());
    assert!((1..=9).contains(&share), "{share} of 30 on the slow device");
    // Their hosts, which compute what the devices cannot, are equally fast.
    let share = of_slow(without_products(all()));
    assert!((13..=17).contains(&share), "{share} of 30 on one host");
}

/// A cluster of two workers, the hosts of which lack the kernel of an op for f32.
fn lacking(op: &'static str, lack: [bool; 2]) -> ClusterModel {
    let mut all = cluster(2, 100 * MIB);
    for (worker, lacks) in all.workers.iter_mut().zip(lack) {
        let floats: DTypeSet = [DType::F32].into_iter().collect();
        let kernels = KernelSet::all_except(lacks.then_some((op, floats)));
        worker.kernels = Arc::new(WorkerKernels {
            host: kernels.clone(),
            device: kernels,
        });
    }
    all
}

#[test]
fn a_node_runs_where_there_is_a_kernel_for_its_dtype() {
    let f = parse(
        "param x: f32[64, 64]
         weight w: f32[64, 64]
         a = MatMul(x, w)
         y = Erf(a)
         result y",
    );
    let auto = options(&f, WorkerCount::Auto);
    let at = |c: &ClusterModel| check(&f, c, &auto).team.workers[0].name.clone();
    assert_eq!(at(&lacking("Erf", [false, false])), "w0");
    assert_eq!(at(&lacking("Erf", [true, false])), "w1");
    assert_eq!(at(&lacking("Sin", [true, true])), "w0");
    let e = failure(&f, &lacking("Erf", [true, true]), &auto);
    assert_eq!(e.code, Code::UnsupportedOp);
    let want =
        "no worker has a kernel of the op 'Erf' for f32, which 'y' need; these lack it: w0, w1";
    assert_eq!(e.message, want);
}

#[test]
fn a_node_needs_the_kernels_of_what_it_runs_as_well() {
    let branch = |op: &str| parse(&format!("param x: f32[4]\n y = {op}(x)\n result y"));
    let f = parse_with(
        "param c: bool[]
         param x: f32[4]
         z = If(c, x) {then_branch=&yes; else_branch=&no}
         result z",
        &[("yes", &branch("Erf")), ("no", &branch("Neg"))],
    );
    let auto = options(&f, WorkerCount::Auto);
    let placed = check(&f, &lacking("Erf", [true, false]), &auto);
    assert_eq!(placed.team.workers[0].name, "w1");
    let e = failure(&f, &lacking("Erf", [true, true]), &auto);
    assert!(e.message.contains("op 'Erf' for f32, which 'z'"), "{e}");
}

#[test]
fn errors_say_which_memory_is_short() {
    let f = chain(12, 512);
    let check = |host: u64, device: u64, message: &str, advice: &str| {
        let all = with_devices(host * MIB, &[Some(device * MIB); 2]);
        let e = failure(&f, &all, &options(&f, WorkerCount::Auto));
        assert_eq!(e.code, Code::ClusterTooSmall);
        assert!(e.message.contains(message), "{e}");
        assert!(e.advice.contains(advice), "{e}");
    };
    let of_device = "w0 offers 100 MiB, and 5.0 MiB on its device simgpu:0";
    check(100, 5, of_device, "(raise --device-memory)");
    let of_host = "w0 offers 5.0 MiB, and 100 MiB on its device simgpu:0";
    check(5, 100, of_host, "(raise --memory");
}
