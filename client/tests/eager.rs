//! Eager tensors on an embedded cluster.
#![cfg(feature = "embedded")]
#![allow(clippy::unwrap_used)]

use convoke::{Cluster, Code, DType, DeviceId, Embedded, Operand, Tensor, with_device};
use ndarray::{ArrayD, array};

/// The device of the workers: `eager_devices.rs` runs the same tests on one with memory of its own.
fn device() -> DeviceId {
    let with_memory = module_path!().starts_with("eager_devices");
    ["cpu", "simgpu"][usize::from(with_memory)].parse().unwrap()
}

async fn cluster(workers: usize) -> Cluster {
    let embedded = Embedded::new(workers).threads(1).devices([device()]);
    embedded.start().await.unwrap()
}

#[track_caller]
fn op(name: &str, operands: &[&Tensor]) -> convoke::Result<Tensor> {
    let operands: Vec<_> = operands.iter().map(|t| Operand::Tensor(t)).collect();
    convoke::issue(name, Default::default(), &operands, 1).map(|mut made| made.remove(0))
}

#[tokio::test]
async fn values_go_there_and_come_back() {
    let cluster = cluster(2).await;
    let (a, b) = (
        cluster.device("w0").unwrap(),
        cluster.device(&format!("w1/{}", device())).unwrap(),
    );
    let x = a.put(array![[1f32, 2.], [3., 4.]]).unwrap();
    assert_eq!((x.dtype(), x.shape()), (DType::F32, Some(&[2, 2][..])));
    let y = op("Add", &[&x, &x]).unwrap();
    let back: ArrayD<f32> = y.fetch().await.unwrap();
    assert_eq!(back, array![[2f32, 4.], [6., 8.]].into_dyn());
    // This tensor is large enough to have a stream of its own, to the worker and from worker to worker.
    let large: Vec<f32> = (0..100_000).map(|i| i as f32).collect();
    let x = a.put(&large).unwrap();
    let moved = x.to(&b).unwrap();
    assert_eq!(moved.device(), Some(b.clone()));
    let z = op("Neg", &[&moved]).unwrap();
    let z: Vec<f32> = z.fetch().await.unwrap();
    assert!(z.iter().zip(&large).all(|(z, x)| *z == -x));
    cluster.shutdown().await;
}

#[tokio::test]
async fn operands_elsewhere_come_to_where_most_bytes_are() {
    let cluster = cluster(2).await;
    let (a, b) = (cluster.device("w0").unwrap(), cluster.device("w1").unwrap());
    let (x, y) = (a.put([1f32, 2., 3.]).unwrap(), b.put(10f32).unwrap());
    let z = op("Mul", &[&y, &x]).unwrap();
    assert_eq!(z.device(), Some(a.clone()));
    assert!(
        z.explain().contains("12 of 16 operand bytes were there"),
        "{}",
        z.explain()
    );
    assert_eq!(z.fetch::<Vec<f32>>().await.unwrap(), [10., 20., 30.]);
    let z = with_device(&b, || op("Mul", &[&y, &x])).unwrap();
    assert_eq!(z.device(), Some(b.clone()));
    assert_eq!(z.fetch::<Vec<f32>>().await.unwrap(), [10., 20., 30.]);
    cluster.shutdown().await;
}

#[tokio::test]
async fn what_can_be_known_fails_at_the_call() {
    let cluster = cluster(1).await;
    let a = cluster.device(device().kind()).unwrap();
    let (x, y) = (a.put([1f32, 2.]).unwrap(), a.put([1f32, 2., 3.]).unwrap());
    let e = op("Add", &[&x, &y]).unwrap_err();
    let line = line!() - 1;
    assert_eq!(e.code, Code::InvalidInput);
    let site = e.site.clone().unwrap();
    assert_eq!(site.op.as_deref(), Some("Add"));
    assert_eq!(site.operands, ["f32[2]", "f32[3]"]);
    assert_eq!(site.origin, Some(format!("{}:{line}", file!())));
    assert_eq!(cluster.device("w9").unwrap_err().code, Code::NotFound);
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_failure_poisons_what_depends_on_it_and_nothing_else() {
    let cluster = cluster(2).await;
    let (a, b) = (cluster.device("w0").unwrap(), cluster.device("w1").unwrap());
    let (x, at) = (a.put([1f32, 2.]).unwrap(), a.put([5i64]).unwrap());
    let bad = op("Gather", &[&x, &at]).unwrap();
    let line = line!() - 1;
    let after = op("Neg", &[&op("Neg", &[&bad]).unwrap()]).unwrap();
    let elsewhere = op("Neg", &[&bad.to(&b).unwrap()]).unwrap();
    let fine = op("Neg", &[&x]).unwrap();
    for poisoned in [&bad, &after, &elsewhere] {
        let e = poisoned.fetch::<Vec<f32>>().await.unwrap_err();
        let site = e.site.clone().unwrap();
        assert_eq!(
            (e.code, site.worker.as_deref()),
            (Code::KernelFailed, Some("w0")),
            "{e}"
        );
        assert_eq!(site.origin, Some(format!("{}:{line}", file!())), "{e}");
        assert_eq!(site.op.as_deref(), Some("Gather"));
    }
    assert_eq!(fine.fetch::<Vec<f32>>().await.unwrap(), [-1., -2.]);
    assert_eq!(a.synchronize().await.unwrap_err().code, Code::KernelFailed);
    a.synchronize().await.unwrap();
    cluster.shutdown().await;
}

#[tokio::test]
async fn memory_is_known_by_line_and_freed_with_the_handle() {
    let cluster = cluster(1).await;
    let a = cluster.device("w0").unwrap();
    let x = a.put(vec![0f32; 1000]).unwrap();
    let line = line!() - 1;
    let y = op("Add", &[&x, &x]).unwrap();
    a.synchronize().await.unwrap();
    let held = cluster.memory().await.unwrap();
    assert_eq!(held.iter().map(|h| h.bytes).sum::<u64>(), 8000);
    let of_line = held
        .iter()
        .find(|h| h.origin == format!("{}:{line}", file!()));
    assert_eq!(
        of_line.map(|h| (h.handles, h.bytes)),
        Some((1, 4000)),
        "{held:?}"
    );
    drop((x, y));
    assert_eq!(cluster.memory().await.unwrap(), []);
    cluster.shutdown().await;
}

#[tokio::test]
async fn issuing_waits_for_room() {
    let cluster = cluster(2).await;
    let (a, b) = (cluster.device("w0").unwrap(), cluster.device("w1").unwrap());
    let one = a.put(1f32).unwrap();
    let mut x = a.put(0f32).unwrap();
    // A simulated GPU runs each op as a job.
    let count = [20_000, 200_000][usize::from(device().is_cpu())];
    for _ in 0..count {
        x = op("Add", &[&x, &one]).unwrap();
    }
    for _ in 0..3000 {
        x = x.to(&b).unwrap().to(&a).unwrap();
    }
    assert_eq!(x.fetch::<f32>().await.unwrap(), count as f32);
    let stats = a.cache();
    assert!(stats.hits > count - 1000 && stats.misses < 10, "{stats:?}");
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_late_failure_passes_through_many_moves() {
    let cluster = cluster(2).await;
    let (a, b) = (cluster.device("w0").unwrap(), cluster.device("w1").unwrap());
    let x = a.put(vec![0.5f32; 1 << 16]).unwrap();
    let mut slow = x.clone();
    for _ in 0..200 {
        slow = op("Tanh", &[&slow]).unwrap();
    }
    // The gather fails once all ops are issued.
    let at = a.put([1i64 << 40]).unwrap();
    let mut bad = op("Gather", &[&slow, &at]).unwrap();
    for _ in 0..4 {
        bad = bad.to(&b).unwrap().to(&a).unwrap();
    }
    let fetched = bad.fetch::<Vec<f32>>();
    let ended = tokio::time::timeout(std::time::Duration::from_secs(30), fetched).await;
    let e = ended.expect("it ends").unwrap_err();
    assert_eq!(e.code, Code::KernelFailed, "{e}");
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_prepared_op_is_issued_without_being_resolved_again() {
    let cluster = cluster(2).await;
    let (a, b) = (cluster.device("w0").unwrap(), cluster.device("w1").unwrap());
    let (x, y) = (a.put([1f32, 2.]).unwrap(), b.put([10f32, 20.]).unwrap());
    let held = b.put([100f32, 200.]).unwrap();
    // An operand on another device is moved, a tensor that the closure uses is bound, and a number is a part of the op.
    let add = a.prepare(&[&x, &y], |t| t[1].sub(&t[0])).unwrap();
    let bound = a.prepare(&[&x], |t| t[0].add(&held)).unwrap();
    let scaled = a.prepare(&[&x], |t| t[0].mul(3.0)).unwrap();
    drop(held);
    let z = add.issue(&[&x, &y]).unwrap();
    assert_eq!(z.device().as_ref(), Some(add.device()));
    assert_eq!(z.fetch::<Vec<f32>>().await.unwrap(), [9., 18.]);
    let z = bound.issue(&[&z]).unwrap();
    assert_eq!(z.fetch::<Vec<f32>>().await.unwrap(), [109., 218.]);
    let before = a.cache();
    let mut z = x.clone();
    for _ in 0..10 {
        z = scaled.issue(&[&z]).unwrap();
    }
    let after = a.cache();
    assert_eq!(after.misses - before.misses, 1, "{before:?} {after:?}");
    assert_eq!(z.fetch::<Vec<f32>>().await.unwrap()[0], 3f32.powi(10));
    // An op that others have evicted from the cache is defined again.
    for i in 0..5000u32 {
        let attrs = convoke::Attrs::default().with("alpha", convoke::Attr::Float(i as f32));
        convoke::issue("LeakyRelu", attrs, &[Operand::Tensor(&x)], 1).unwrap();
    }
    let z = scaled.issue(&[&x]).unwrap();
    assert_eq!(z.fetch::<Vec<f32>>().await.unwrap(), [3., 6.]);
    cluster.shutdown().await;
}

#[tokio::test]
async fn what_cannot_be_prepared_says_so() {
    let cluster = cluster(1).await;
    let a = cluster.device("w0").unwrap();
    let (x, n) = (a.put([1f32, 2.]).unwrap(), a.put([1i64, 2]).unwrap());
    let refused = |made: convoke::Result<convoke::PreparedOp>, why: &str| {
        let e = made.unwrap_err();
        assert!(e.message.contains(why), "{e}");
    };
    refused(a.prepare(&[&x], |t| t[0].add(&n)), "3: Cast, Cast, Add");
    refused(a.prepare(&[&x], |t| Ok(t[0].clone())), "issues no op");
    refused(
        a.prepare(&[&x], |t| Ok(t[0].top_k([1], None, None)?.0)),
        "has 2 results",
    );
    refused(a.prepare(&[&x], |t| t[0].nonzero()), "only data decides");
    refused(
        a.prepare(&[&x], |t| t[0].add(&a.put([1f32; 3])?)),
        "broadcast",
    );
    let neg = a.prepare(&[&x], |t| t[0].neg()).unwrap();
    let e = neg.issue(&[&n]).unwrap_err();
    let line = line!() - 1;
    assert_eq!(e.code, Code::InvalidInput);
    assert!(
        e.message.contains("prepared for f32[2], not for i64[2]"),
        "{e}"
    );
    assert_eq!(e.site.unwrap().origin, Some(format!("{}:{line}", file!())));
    // In a function's trace a prepared op is an op of the function.
    let twice = cluster.function(move |t| Ok(vec![neg.issue(&[&neg.issue(&[&t[0]])?])?]));
    let z = twice.call(&[x]).await.unwrap();
    assert_eq!(z[0].fetch::<Vec<f32>>().await.unwrap(), [1., 2.]);
    cluster.shutdown().await;
}

#[tokio::test]
async fn nothing_waits_for_a_cluster_that_was_shut_down() {
    let cluster = cluster(1).await;
    let a = cluster.device("w0").unwrap();
    let mut slow = a.put(vec![0.5f32; 1 << 20]).unwrap();
    for _ in 0..100 {
        slow = op("Tanh", &[&slow]).unwrap();
    }
    let waits = tokio::spawn({
        let a = a.clone();
        async move { a.synchronize().await }
    });
    cluster.shutdown().await;
    let bound = std::time::Duration::from_secs(30);
    let ended = tokio::time::timeout(bound, waits).await.expect("it ends");
    // The ops may have ended before the shutdown.
    drop(ended.unwrap());
    let asked = tokio::time::timeout(bound, a.memory())
        .await
        .expect("it ends");
    assert!(asked.is_err(), "{asked:?}");
}

/// The number of handles that the workers know of, or hold memory for, and what the program is told that it holds.
async fn held(cluster: &Cluster) -> (u64, Vec<(u64, u64)>) {
    let status = cluster.status().await.unwrap();
    let of = status.members.iter().filter_map(|m| m.status.as_ref());
    let held = cluster.memory().await.unwrap();
    let held = held.iter().map(|h| (h.handles, h.bytes)).collect();
    (of.map(|w| w.live_handles).sum(), held)
}

#[tokio::test]
async fn what_runs_on_the_callers_thread_is_as_any_other() {
    let cluster = cluster(2).await;
    let (a, b) = (cluster.device("w0").unwrap(), cluster.device("w1").unwrap());
    // After this fetch the link is there.
    a.put(0f32).unwrap().fetch::<f32>().await.unwrap();
    let x = a.put([1f32, 2.]).unwrap();
    let kept: Vec<Tensor> = (0..3).map(|_| op("Add", &[&x, &x]).unwrap()).collect();
    assert_eq!(held(&cluster).await, (4, vec![(3, 24), (1, 8)]));
    let hits = a.cache().hits;
    assert!(hits >= 2, "{hits}");
    // The worker is told of a value once, whatever needs the value, and counts it from then on.
    let moved = kept[0].to(&b).unwrap();
    assert_eq!(moved.fetch::<Vec<f32>>().await.unwrap(), [2., 4.]);
    let sum = cluster.function(|t| Ok(vec![op("Add", &[&t[0], &t[1]])?]));
    let sum = sum.call(&[kept[0].clone(), moved]).await.unwrap();
    assert_eq!(sum[0].fetch::<Vec<f32>>().await.unwrap(), [4., 8.]);
    drop(sum);
    assert_eq!(held(&cluster).await, (4, vec![(3, 24), (1, 8)]));
    // A brief op runs beside an op that takes longer, and after it.
    let large = a.put(vec![1f32; 1 << 20]).unwrap();
    let mean = large.relu().unwrap().mean(None).unwrap();
    let both = op("Mul", &[&mean, &kept[1]]).unwrap();
    assert_eq!(both.fetch::<Vec<f32>>().await.unwrap(), [2., 4.]);
    // An op that fails says so later, as on any worker, and harms no other op.
    let (at, line) = (a.put([9i64]).unwrap(), line!() + 1);
    let beyond = op("Gather", &[&x, &at]).unwrap();
    let e = beyond.fetch::<Vec<f32>>().await.unwrap_err();
    assert_eq!(e.site.unwrap().origin, Some(format!("{}:{line}", file!())));
    assert_eq!(kept[2].fetch::<Vec<f32>>().await.unwrap(), [2., 4.]);
    drop((x, kept, large, mean, both, at, beyond));
    assert_eq!(held(&cluster).await, (0, vec![]));
    // A tensor that is donated is gone, wherever it was made.
    let state = op("Neg", &[&a.put([1f32]).unwrap()]).unwrap();
    let next = cluster.function(|t| Ok(vec![op("Neg", &[&t[0]])?]));
    let next = next.donate(0).unwrap();
    let made = next.call(std::slice::from_ref(&state)).await.unwrap();
    assert_eq!(made[0].fetch::<Vec<f32>>().await.unwrap(), [1.]);
    assert_eq!(op("Neg", &[&state]).unwrap_err().code, Code::StateLost);
    assert_eq!(
        state.fetch::<Vec<f32>>().await.unwrap_err().code,
        Code::StateLost
    );
    let last = op("Neg", &[&made[0]]).unwrap();
    cluster.shutdown().await;
    assert!(last.fetch::<Vec<f32>>().await.is_err() && op("Neg", &[&last]).is_err());
}

#[tokio::test]
async fn numbers_alone_are_numpys() {
    let cluster = cluster(1).await;
    let a = cluster.device("w0").unwrap();
    let mask = |ones: &[f32]| a.put(ones.to_vec()).unwrap().greater(0.5).unwrap();
    let three = mask(&[1., 0., 1.]);
    let mask = mask(&[1., 0.]);
    assert_eq!(mask.where_(1, 0).unwrap().dtype(), DType::I64);
    assert_eq!(mask.where_(1, 0.5).unwrap().dtype(), DType::F64);
    assert_eq!(mask.where_(true, false).unwrap().dtype(), DType::Bool);
    let e = mask.i(&three).unwrap_err();
    assert!(
        e.message.contains("an index of 3 bools, of an axis of 2"),
        "{e}"
    );
    cluster.shutdown().await;
}

#[tokio::test]
async fn one_line_may_make_small_tensors_and_large_ones() {
    let cluster = cluster(1).await;
    let a = cluster.device("w0").unwrap();
    let one = a.put([1f32]).unwrap();
    // The same prepared op runs each time: its values decide how long it takes.
    for n in [8i64, 1 << 26, 16] {
        let many = one.expand([n]).unwrap();
        assert_eq!(
            many.sum(None).unwrap().fetch::<f32>().await.unwrap(),
            n as f32
        );
    }
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_set_of_devices_leaves_a_choice() {
    let cluster = cluster(3).await;
    let all = cluster.devices().await.unwrap();
    let set = cluster.device_set("w*").unwrap();
    assert_eq!(set.devices(), all);
    assert_eq!(cluster.device_set(device().kind()).unwrap().devices(), all);
    assert_eq!(
        cluster.device_set("w1").unwrap().devices(),
        [all[1].clone()]
    );
    let e = cluster.device("w*").unwrap_err();
    assert_eq!(e.code, Code::InvalidArgument);
    let d = device();
    assert!(
        e.message
            .contains(&format!("fits several devices: w0/{d}, w1/{d}, w2/{d}")),
        "{e}"
    );
    assert_eq!(cluster.device_set("x*").unwrap_err().code, Code::NotFound);
    assert_eq!(
        cluster.device_set("w1/gpu").unwrap_err().code,
        Code::NotFound
    );
    assert_eq!(
        cluster.device_set("w1/GPU").unwrap_err().code,
        Code::InvalidArgument
    );

    // An op runs where most bytes of its operands are; a tensor that is in the set already stays.
    let large = all[2].put(vec![1f32; 64]).unwrap();
    let small = all[1].put(1f32).unwrap();
    let sum = with_device(&set, || op("Add", &[&large, &small])).unwrap();
    assert_eq!(sum.device().as_ref(), Some(&all[2]));
    assert!(
        sum.explain().contains("256 of 260 operand bytes"),
        "{}",
        sum.explain()
    );
    assert_eq!(sum.on(&set).unwrap().device().as_ref(), Some(&all[2]));
    assert_eq!(sum.on(&all[0]).unwrap().device().as_ref(), Some(&all[0]));
    assert_eq!(sum.fetch::<Vec<f32>>().await.unwrap(), [2f32; 64]);

    // Operands outside the set are moved to its fastest device.
    let set = cluster.device_set("w1/*").unwrap();
    let sum = with_device(&set, || op("Add", &[&large, &small])).unwrap();
    assert_eq!(sum.device().as_ref(), Some(&all[1]));
    assert_eq!(sum.fetch::<Vec<f32>>().await.unwrap(), [2f32; 64]);

    // In a function the plan chooses among the devices, and says which one it took.
    let among = cluster.device_set("w*").unwrap();
    let double = cluster.function(move |t| Ok(vec![op("Add", &[&t[0], &t[0]])?.on(&among)?]));
    let plan = double.plan(std::slice::from_ref(&large)).await.unwrap();
    let pin = plan.pins.iter().find(|pin| pin.devices == "w*").unwrap();
    let part = (&*pin.parts[0].worker, pin.parts[0].nodes);
    assert_eq!((part, pin.parts.len()), (("w2", 1), 1), "{plan:?}");
    let doubled = double.call(&[large]).await.unwrap();
    assert_eq!(doubled[0].fetch::<Vec<f32>>().await.unwrap(), [2f32; 64]);
    cluster.shutdown().await;
}

#[tokio::test]
async fn what_outlives_a_shutdown_says_so() {
    let cluster = cluster(2).await;
    let (a, b) = (cluster.device("w0").unwrap(), cluster.device("w1").unwrap());
    let (here, there) = (a.put(1f32).unwrap(), a.put(vec![0f32; 100_000]).unwrap());
    let connection = cluster.clone();
    cluster.shutdown().await;
    let ended = |result: convoke::Result<f32>| {
        let e = result.unwrap_err();
        let wanted = (Code::Cancelled, "the cluster was shut down");
        assert_eq!((e.code, &*e.message), wanted);
    };
    ended(here.fetch().await);
    ended(there.fetch().await);
    ended(here.add(&there).map(|_| 0.));
    ended(there.to(&b).map(|_| 0.));
    ended(a.put(1f32).map(|_| 0.));
    ended(connection.device("w0").unwrap().put(1f32).map(|_| 0.));
}
