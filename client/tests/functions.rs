//! Traced functions on an embedded cluster.
#![cfg(feature = "embedded")]
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use convoke::{Attr, Attrs, Cluster, Code, Embedded, Function, HostTensor, Operand, Tensor};

async fn cluster(workers: usize) -> Cluster {
    Embedded::new(workers).threads(1).start().await.unwrap()
}

#[track_caller]
fn op(name: &str, operands: &[&Tensor]) -> convoke::Result<Tensor> {
    with(name, Attrs::default(), operands)
}

#[track_caller]
fn with(name: &str, attrs: Attrs, operands: &[&Tensor]) -> convoke::Result<Tensor> {
    let operands: Vec<_> = operands.iter().map(|t| Operand::Tensor(t)).collect();
    convoke::issue(name, attrs, &operands, 1).map(|mut made| made.remove(0))
}

/// The line of the product in [`layer`].
const PRODUCT: u32 = line!() + 3;

fn layer(t: &[Tensor]) -> convoke::Result<Vec<Tensor>> {
    let h = op("Relu", &[&op("MatMul", &[&t[0], &t[1]])?])?;
    let last = Attrs::default().with("axis", Attr::Int(-1));
    Ok(vec![with("Softmax", last, &[&h])?, h])
}

fn numbers(count: usize, step: f32) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * step).sin()).collect()
}

async fn operands(cluster: &Cluster, devices: [&str; 2]) -> [Tensor; 2] {
    let x = HostTensor::from_slice(&[4, 8], &numbers(32, 0.37)).unwrap();
    let w = HostTensor::from_slice(&[8, 16], &numbers(128, 0.71)).unwrap();
    let at = devices.map(|d| cluster.device(d).unwrap());
    [at[0].put(x).unwrap(), at[1].put(w).unwrap()]
}

#[tokio::test]
async fn a_function_has_the_bits_of_its_ops_one_by_one() {
    let cluster = cluster(3).await;
    let f = cluster.function(layer);
    for devices in [["w0", "w0"], ["w0", "w1"], ["w2", "w1"]] {
        let t = operands(&cluster, devices).await;
        let eager = layer(&t).unwrap();
        let called = f.call(&t).await.unwrap();
        for (e, c) in eager.iter().zip(&called) {
            let (e, c): (Vec<f32>, Vec<f32>) = (e.fetch().await.unwrap(), c.fetch().await.unwrap());
            assert_eq!(e, c, "{devices:?}");
        }
        // The handles that a call returns can be operands.
        let again = op("Neg", &[&called[1]]).unwrap();
        assert_eq!(again.fetch::<Vec<f32>>().await.unwrap().len(), 64);
    }
    assert_eq!(f.traces(), 3);
    cluster.shutdown().await;
}

/// Returns once the only worker has done `count` steps, the last of which may end after its call.
async fn await_steps(cluster: &Cluster, count: u64) {
    let start = tokio::time::Instant::now();
    loop {
        let status = cluster.status().await.unwrap();
        let known = status.members.iter().filter_map(|m| m.status.as_ref());
        let done: u64 = known.map(|s| s.steps_done).sum();
        if done == count {
            return;
        }
        assert!(start.elapsed().as_secs() < 10, "{done} steps, not {count}");
    }
}

#[tokio::test]
async fn a_call_on_the_callers_thread_is_as_any_other() {
    let cluster = cluster(1).await;
    let a = cluster.device("w0").unwrap();
    let one = a.put([1f32]).unwrap();
    let two = one.mul(2.0).unwrap();
    let body = move |t: &[Tensor]| {
        let sum = t[0].add(&t[1])?.add(&two)?;
        Ok(vec![sum.clone(), sum.mul(&t[0])?, t[1].neg()?])
    };
    let f = cluster.function(body.clone());
    for size in [1, 4, 40, 4000] {
        let mut x = a.put(numbers(size, 0.3)).unwrap();
        let mut y = a.put(numbers(size, 0.7)).unwrap();
        for _ in 0..5 {
            let t = [x.clone(), y.clone()];
            let (called, eager) = (f.call(&t).await.unwrap(), body(&t).unwrap());
            let called = convoke::fetch_all::<Vec<f32>>(&called).await.unwrap();
            let eager = convoke::fetch_all::<Vec<f32>>(&eager).await.unwrap();
            assert_eq!(called, eager, "{size}");
            // Results are operands, of this function and of other ops.
            let made = f.call(&t).await.unwrap();
            (x, y) = (made[1].clone(), made[2].add(&made[0]).unwrap());
        }
    }
    assert_eq!(f.traces(), 4);
    // Each call is a step, wherever it runs, and leaves nothing but the tensors that the program has.
    await_steps(&cluster, 4 * 5 * 2).await;
    for _ in 0..10 {
        f.call(&[one.clone(), one.clone()]).await.unwrap();
    }
    await_steps(&cluster, 4 * 5 * 2 + 10).await;
    let held = cluster.memory().await.unwrap();
    let handles: u64 = held.iter().map(|h| h.handles).sum();
    assert_eq!(handles, 2, "{held:?}");
    // A call that fails does so as a step does, and harms none that follow.
    let f = cluster.function(|t| Ok(vec![op("Div", &[&t[0], &t[1]])?]));
    let line = line!() - 1;
    let (x, zero) = (a.put([6i64]).unwrap(), a.put([0i64]).unwrap());
    for _ in 0..3 {
        let made = f.call(&[x.clone(), x.clone()]).await.unwrap();
        assert_eq!(made[0].fetch::<Vec<i64>>().await.unwrap(), [1]);
        let e = f.call(&[x.clone(), zero.clone()]).await.unwrap_err();
        let node = e.site.clone().and_then(|s| s.node);
        assert_eq!(e.code, Code::KernelFailed, "{e}");
        assert_eq!(node, Some(format!("Div at {}:{line}", file!())));
    }
    cluster.shutdown().await;
    let e = f.call(&[x.clone(), x]).await.unwrap_err();
    assert_ne!(e.code, Code::Internal, "{e}");
}

#[tokio::test]
async fn placement_inside_is_kept() {
    let cluster = cluster(2).await;
    let b = cluster.device("w1").unwrap();
    let on = b.clone();
    let f = cluster.function(move |t| {
        let h = op("MatMul", &[&t[0], &t[1]])?.on(&on)?;
        Ok(vec![op("Relu", &[&h])?])
    });
    let t = operands(&cluster, ["w0", "w0"]).await;
    let plan = f.plan(&t).await.unwrap();
    assert_eq!(plan.parts.len(), 2, "{plan:?}");
    let out = f.call(&t).await.unwrap();
    let (eager, got) = (layer(&t).unwrap(), &out[0]);
    assert_eq!(
        eager[1].fetch::<Vec<f32>>().await.unwrap(),
        got.fetch::<Vec<f32>>().await.unwrap()
    );
    cluster.shutdown().await;
}

/// Because of that, a function that is called with its own results is traced once.
#[tokio::test]
async fn results_are_where_they_are_computed() {
    let cluster = cluster(2).await;
    let [a, b] = ["w0", "w1"].map(|d| cluster.device(d).unwrap());
    let f = {
        let (a, b) = (a.clone(), b.clone());
        cluster.function(move |t| {
            let half = convoke::with_device(&b, || t[1].tanh())?;
            let x = convoke::with_device(&a, || &t[0] + &half)?;
            // This value is known before the step, and its nodes run nowhere.
            let known = convoke::with_device(&b, || {
                b.ones([3], convoke::DType::F32)?.cast(convoke::DType::F64)
            })?;
            let last = convoke::with_device(&b, || &x * 0.5f32)?;
            Ok(vec![x, last, known])
        })
    };
    let x =
        |d: &convoke::Device| d.put(HostTensor::from_slice(&[4, 8], &numbers(32, 0.37)).unwrap());
    let mut state = vec![
        x(&a).unwrap(),
        x(&b).unwrap(),
        b.ones([3], convoke::DType::F64).unwrap(),
    ];
    for _ in 0..4 {
        state = f.call(&state).await.unwrap();
        let at: Vec<String> = state
            .iter()
            .map(|t| t.device().unwrap().name().to_string())
            .collect();
        assert_eq!(at, ["w0/cpu:0", "w1/cpu:0", "w1/cpu:0"]);
    }
    assert_eq!(f.traces(), 1);
    cluster.shutdown().await;
}

#[tokio::test]
async fn what_the_closure_uses_is_an_operand_and_errors_have_lines() {
    let cluster = cluster(2).await;
    let [x, w] = operands(&cluster, ["w0", "w1"]).await;
    let used = w.clone();
    let f = cluster.function(move |t| Ok(vec![op("MatMul", &[&t[0], &used])?]));
    let out = f.call(std::slice::from_ref(&x)).await.unwrap();
    let eager = op("MatMul", &[&x, &w]).unwrap();
    assert_eq!(
        out[0].fetch::<Vec<f32>>().await.unwrap(),
        eager.fetch::<Vec<f32>>().await.unwrap()
    );
    let f = cluster.function(|t| Ok(vec![op("MatMul", &[&t[0], &t[0]])?]));
    let line = line!() - 1;
    let e = f.call(std::slice::from_ref(&x)).await.unwrap_err();
    let origin = e.site.clone().and_then(|s| s.origin);
    assert_eq!(
        (e.code, origin),
        (Code::InvalidInput, Some(format!("{}:{line}", file!()))),
        "{e}"
    );
    // A kernel's error names the line by its node.
    let at = cluster.device("w0").unwrap().put([5i64]).unwrap();
    let f = cluster.function(|t| Ok(vec![op("Neg", &[&op("Gather", &[&t[0], &t[1]])?])?]));
    let line = line!() - 1;
    let e = f.call(&[x.clone(), at]).await.unwrap_err();
    let node = e.site.clone().and_then(|s| s.node).unwrap_or_default();
    assert_eq!(e.code, Code::KernelFailed, "{e}");
    assert_eq!(node, format!("Gather at {}:{line}", file!()));
    // A failed operand is the call's error.
    let bad = op(
        "Gather",
        &[&x, &cluster.device("w0").unwrap().put([9i64]).unwrap()],
    )
    .unwrap();
    let f = cluster.function(|t| Ok(vec![op("Neg", &[&t[0]])?]));
    let e = f.call(&[bad]).await.unwrap_err();
    assert_eq!(
        (e.code, e.site.unwrap().op.as_deref()),
        (Code::KernelFailed, Some("Gather"))
    );
    cluster.shutdown().await;
}

#[tokio::test]
async fn donated_operands_are_gone_and_memory_stays_flat() {
    let cluster = cluster(1).await;
    let a = cluster.device("w0").unwrap();
    let f = cluster.function(|t| Ok(vec![op("Add", &[&t[0], &t[1]])?]));
    let f = f.donate(0).unwrap();
    let one = a.put(vec![1f32; 1 << 16]).unwrap();
    let mut state = a.put(vec![0f32; 1 << 16]).unwrap();
    let mut held = Vec::new();
    for _ in 0..20 {
        let next = f
            .call(&[state.clone(), one.clone()])
            .await
            .unwrap()
            .remove(0);
        let e = op("Neg", &[&state]).unwrap_err();
        assert_eq!(e.code, Code::StateLost);
        let e = f.call(&[state.clone(), one.clone()]).await.unwrap_err();
        assert_eq!(e.code, Code::StateLost);
        state = next;
        held.push(
            cluster
                .memory()
                .await
                .unwrap()
                .iter()
                .map(|h| h.bytes)
                .sum::<u64>(),
        );
    }
    assert!(held.iter().all(|h| *h == held[0]), "{held:?}");
    let v: Vec<f32> = state.fetch().await.unwrap();
    assert!(v.iter().all(|v| *v == 20.));
    let e = f.call(&[one.clone(), one.clone()]).await.unwrap_err();
    assert_eq!(e.code, Code::InvalidArgument, "{e}");
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_function_within_a_function_is_a_part_of_it() {
    let cluster = cluster(2).await;
    let inner = cluster.function(layer);
    let nested = inner.clone();
    let outer = cluster.function(move |t| {
        let made = nested.apply(t)?;
        Ok(vec![op("Add", &[&made[0], &made[1]])?])
    });
    let t = operands(&cluster, ["w0", "w1"]).await;
    let text = outer.graph(&t).unwrap();
    assert_eq!(text.matches("HandleIn").count(), 2, "{text}");
    let product = format!("MatMul at {}:{PRODUCT}", file!());
    assert!(text.contains(&product), "{text}");
    let eager = inner.apply(&t).unwrap();
    assert_eq!(eager[0].device(), Some(cluster.device("w1").unwrap()));
    let eager = op("Add", &[&eager[0], &eager[1]]).unwrap();
    let traced = outer.call(&t).await.unwrap();
    assert_eq!(
        traced[0].fetch::<Vec<f32>>().await.unwrap(),
        eager.fetch::<Vec<f32>>().await.unwrap()
    );
    assert_eq!((inner.traces(), outer.traces()), (0, 1));
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_function_within_itself_ends_or_is_an_error() {
    let cluster = cluster(1).await;
    let a = cluster.device("w0").unwrap();
    let x = [a.put(vec![1f32; 8]).unwrap()];
    // This function calls itself for halves of its operand, and the shape ends that.
    let me = Arc::<OnceLock<Function>>::default();
    let again = me.clone();
    let f = cluster.function(move |t| {
        let n = t[0].shape().map_or(0, |s| s[0]) as i64;
        if n == 1 {
            return Ok(t.to_vec());
        }
        let half = (&t[0].i(..n / 2)? + &t[0].i(n / 2..)?)?;
        again.get().unwrap().apply(&[half])
    });
    assert!(me.set(f.clone()).is_ok());
    for sums in [f.call(&x).await.unwrap(), f.apply(&x).unwrap()] {
        assert_eq!(sums[0].fetch::<Vec<f32>>().await.unwrap(), [8.]);
    }
    // Nothing ends this recursion.
    let me = Arc::<OnceLock<Function>>::default();
    let again = me.clone();
    let f = cluster.function(move |t| again.get().unwrap().apply(t));
    assert!(me.set(f.clone()).is_ok());
    for e in [f.call(&x).await.unwrap_err(), f.apply(&x).unwrap_err()] {
        assert_eq!(e.code, Code::InvalidArgument, "{e}");
        assert!(e.message.contains("is within 64 other calls"), "{e}");
    }
    cluster.shutdown().await;
}

async fn values(t: &Tensor) -> Vec<f32> {
    t.fetch().await.unwrap()
}

fn leases(cluster: &Cluster) -> Vec<String> {
    let leases = cluster.hub().leases();
    leases.iter().map(|l| format!("{:?}", l.id)).collect()
}

fn rows(cluster: &Cluster, count: usize) -> Tensor {
    let x = HostTensor::from_slice(&[count, 8], &numbers(count * 8, 0.37)).unwrap();
    cluster.device("w0").unwrap().put(x).unwrap()
}

#[tokio::test]
async fn a_dynamic_axis_needs_no_other_trace_and_within_its_bound_no_other_plan() {
    let cluster = cluster(2).await;
    let [_, w] = operands(&cluster, ["w0", "w1"]).await;
    let f = cluster.function(layer).dynamic(0, -2, "rows").unwrap();
    let mut plans = Vec::new();
    for count in [4, 1, 8, 9, 18, 100, 3] {
        let t = [rows(&cluster, count), w.clone()];
        let called = f.call(&t).await.unwrap();
        assert_eq!(called[0].shape(), Some(&[count, 16][..]));
        let eager = layer(&t).unwrap();
        for (e, c) in eager.iter().zip(&called) {
            assert_eq!(values(e).await, values(c).await, "{count}");
        }
        plans.push(leases(&cluster));
    }
    assert_eq!(f.traces(), 1);
    // The plans have the bounds 8, 18 and 200.
    let changed: Vec<bool> = plans.windows(2).map(|p| p[0] != p[1]).collect();
    assert_eq!(changed, [false, false, true, false, true, false]);
    // The dynamic size is a size like any other in a function that is applied within.
    let outer = cluster.function(move |t| Ok(vec![layer(t)?[1].i((.., 0))?.sum(None)?]));
    let outer = outer.dynamic(0, 0, "n").unwrap();
    for count in [3, 5] {
        let t = [rows(&cluster, count), w.clone()];
        let (eager, called) = (outer.apply(&t).unwrap(), outer.call(&t).await.unwrap());
        assert_eq!(values(&eager[0]).await, values(&called[0]).await);
    }
    assert_eq!(outer.traces(), 1);
    cluster.shutdown().await;
}

#[tokio::test]
async fn dynamic_axes_that_do_not_fit_are_errors() {
    let cluster = cluster(1).await;
    let a = cluster.device("w0").unwrap();
    let sum = |t: &[Tensor]| Ok(vec![(&t[0] + &t[1])?]);
    let f = cluster.function(sum).dynamic(0, 0, "n").unwrap();
    let f = f.dynamic(1, 0, "n").unwrap();
    let put = |count: usize| a.put(vec![1f32; count]).unwrap();
    for count in [3, 4] {
        let out = f.call(&[put(count), put(count)]).await.unwrap();
        assert_eq!(values(&out[0]).await, vec![2.; count]);
    }
    let e = f.call(&[put(4), put(5)]).await.unwrap_err();
    let want = "axis 'n' is 4 by axis 0 of operand 0, but 5 by axis 0 of operand 1";
    assert_eq!((e.code, &*e.message), (Code::InvalidInput, want));
    let e = f.call(&[a.put(1f32).unwrap(), put(5)]).await.unwrap_err();
    assert!(e.message.contains("it is f32[]"), "{e}");
    let e = f.call(&[put(4)]).await.unwrap_err();
    assert!(e.message.contains("of operand 1, of 1 operands"), "{e}");
    assert_eq!(f.traces(), 1);
    let e = f.clone().dynamic(0, 1, "m").err().unwrap();
    assert_eq!(e.code, Code::InvalidArgument, "it has been cloned: {e}");
    for name in ["", "4", "n#1", "a b"] {
        let e = cluster.function(sum).dynamic(0, 0, name).err().unwrap();
        assert_eq!(e.code, Code::InvalidArgument, "{name}: {e}");
    }
    let f = cluster.function(sum).dynamic(0, 0, "n").unwrap();
    let e = f.dynamic(0, -1, "m").unwrap();
    let e = e.call(&[put(4), put(4)]).await.unwrap_err();
    assert_eq!(e.message, "axis -1 of operand 0 is 'n', and 'm'");
    // Each call checks what the trace has assumed.
    let of_four = a.put(vec![1f32; 4]).unwrap();
    let f = cluster.function(move |t| Ok(vec![(&t[0] + &of_four)?]));
    let f = f.dynamic(0, 0, "n").unwrap();
    for (count, fits) in [(4, true), (1, true), (3, false)] {
        let called = f.call(&[put(count)]).await;
        assert_eq!(called.is_ok(), fits, "{count}: {called:?}");
    }
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_retained_operand_is_gone_after_success_only() {
    let cluster = cluster(1).await;
    let a = cluster.device("w0").unwrap();
    let take = |t: &[Tensor]| Ok(vec![(&t[0] + &t[1].gather(&t[2], 0)?)?]);
    let f = cluster.function(take);
    let f = f.donate_retain(0).unwrap().donate_retain(1).unwrap();
    let [bad, good] = [9i64, 0].map(|i| a.put(i).unwrap());
    let held = async || {
        let held = cluster.memory().await.unwrap();
        held.iter().map(|h| h.bytes).sum::<u64>()
    };
    let mut state = a.put(vec![1f32; 1 << 10]).unwrap();
    let mut flat = Vec::new();
    for round in 0..3 {
        let other = a.put([1f32, 2.]).unwrap();
        let failed = f.call(&[state.clone(), other.clone(), bad.clone()]).await;
        assert_eq!(failed.unwrap_err().code, Code::KernelFailed);
        assert_eq!(values(&state).await, vec![1. + round as f32; 1 << 10]);
        assert_eq!(values(&other).await, [1., 2.]);
        // A call that is dropped before it is over has not succeeded.
        drop(f.call(&[state.clone(), other.clone(), good.clone()]));
        let next = f.call(&[state.clone(), other.clone(), good.clone()]);
        let next = next.await.unwrap().remove(0);
        for gone in [&state, &other] {
            assert_eq!(gone.abs().unwrap_err().code, Code::StateLost);
            let again = [gone.clone(), next.clone(), good.clone()];
            let e = f.call(&again).await.unwrap_err();
            assert_eq!(e.code, Code::StateLost);
        }
        // The tensors `state` and `other` are still there, and hold nothing.
        flat.push(held().await);
        state = next;
    }
    assert_eq!(flat, [(1 << 12) + 16; 3]);
    let e = f.call(&[state.clone(), state.clone(), good.clone()]).await;
    assert_eq!(e.unwrap_err().code, Code::InvalidArgument);
    // A tensor that is promised to one call is refused to another.
    let one = a.put([1f32]).unwrap();
    let calls = [(); 2].map(|()| f.call(&[state.clone(), one.clone(), good.clone()]));
    let [first, second] = calls;
    let (first, second) = tokio::join!(first, second);
    let (first, second) = (first.err(), second.err());
    assert!(first.is_none() != second.is_none(), "{first:?} {second:?}");
    let f = cluster.function(take).donate(0).unwrap();
    let e = f.donate_retain(0).err().unwrap();
    assert_eq!(e.code, Code::InvalidArgument);
    cluster.shutdown().await;
}

#[tokio::test]
async fn values_are_fetched_at_once() {
    let cluster = cluster(2).await;
    let (a, b) = (cluster.device("w0").unwrap(), cluster.device("w1").unwrap());
    let mut all: Vec<Tensor> = (0..9)
        .map(|i| [&a, &b][i % 2].put(vec![i as f32; i]).unwrap())
        .collect();
    let late = a.put([0f32, 2., 3.]).unwrap();
    all.push(late.compress(&late.greater(1).unwrap(), 0).unwrap());
    let values: Vec<Vec<f32>> = convoke::fetch_all(&all).await.unwrap();
    for (i, v) in values.iter().take(9).enumerate() {
        assert_eq!(*v, vec![i as f32; i]);
    }
    assert_eq!(values[9], [2., 3.]);
    assert_eq!(all[9].shape(), Some(&[2][..]));
    all.insert(4, late.gather(&a.put([9i64]).unwrap(), 0).unwrap());
    let e = convoke::fetch_all::<Vec<f32>>(&all).await.unwrap_err();
    assert_eq!(e.site.unwrap().op.as_deref(), Some("Gather"));
    let e = convoke::fetch_all::<f32>(&[late]).await.unwrap_err();
    assert_eq!(e.code, Code::InvalidArgument);
    assert_eq!(convoke::fetch_all::<f32>(&[]).await.unwrap(), [0f32; 0]);
    cluster.shutdown().await;
}

#[tokio::test]
async fn an_operand_stays_where_it_is() {
    let cluster = cluster(2).await;
    let [x, _] = operands(&cluster, ["w0", "w1"]).await;
    let b = cluster.device("w1").unwrap();
    let f = cluster.function(move |t| Ok(vec![op("Relu", &[&t[0].on(&b)?])?]));
    let e = f.call(&[x]).await.unwrap_err();
    assert_eq!(e.code, Code::InvalidArgument);
    assert!(e.message.contains("is where it was put"), "{e}");
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_closure_that_panics_says_so() {
    let cluster = cluster(1).await;
    let [x, _] = operands(&cluster, ["w0", "w0"]).await;
    let f = cluster.function(|t| Ok(vec![op("Add", &[&t[0], &t[1]])?]));
    let e = f.call(std::slice::from_ref(&x)).await.unwrap_err();
    assert_eq!(e.code, Code::InvalidArgument);
    assert!(e.message.contains("panicked: index out of bounds"), "{e}");
    // The client lives on after the panic.
    assert_eq!(f.call(&[x.clone(), x]).await.unwrap().len(), 1);
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_call_that_took_nothing_leaves_what_is_donated() {
    let cluster = Embedded::new(1).threads(1).memory(256 << 20);
    let cluster = cluster.start().await.unwrap();
    let a = cluster.device("w0").unwrap();
    let x = a.put([1f32, 2.]).unwrap();
    let f = cluster.function(|t| {
        let large = t[0].reshape([2, 1])?.expand([2i64, 1 << 30])?;
        Ok(vec![large.exp()?])
    });
    let f = f.donate(0).unwrap();
    let e = f.call(std::slice::from_ref(&x)).await.unwrap_err();
    assert_eq!(e.code, Code::ClusterTooSmall, "{e}");
    assert_eq!(x.fetch::<Vec<f32>>().await.unwrap(), [1., 2.]);
    cluster.shutdown().await;
}

#[tokio::test]
async fn tensors_of_another_connection_are_refused() {
    let (own, other) = (cluster(1).await, cluster(1).await);
    let put = |c: &Cluster| c.device("w0").unwrap().put([1f32, 2.]).unwrap();
    let (x, y) = (put(&own), put(&other));
    let f = own.function(|t| Ok(vec![op("Relu", &[&t[0]])?]));
    for _ in 0..2 {
        f.call(std::slice::from_ref(&x)).await.unwrap();
    }
    for e in [
        op("Add", &[&x, &y]).unwrap_err(),
        y.to(&x.device().unwrap()).unwrap_err(),
        f.call(&[y]).await.unwrap_err(),
    ] {
        assert_eq!(e.code, Code::InvalidArgument);
        assert!(e.message.contains("different connections"), "{e}");
    }
    own.shutdown().await;
    other.shutdown().await;
}

#[tokio::test]
async fn a_scope_does_not_hold_where_it_is_not_meant() {
    let cluster = cluster(2).await;
    let (a, b) = (cluster.device("w0").unwrap(), cluster.device("w1").unwrap());
    let x = a.put(vec![1f32; 1000]).unwrap();
    // Waiting for a tensor does not move it.
    b.scope(x.ready()).await.unwrap();
    assert_eq!(b.memory().await.unwrap(), []);
    // A trace serves all calls, whatever scope the first call is made in.
    let f = cluster.function(|t| Ok(vec![op("Relu", &[&t[0]])?]));
    let operands = std::slice::from_ref(&x);
    convoke::with_device(&b, || f.graph(operands)).unwrap();
    let plan = f.plan(operands).await.unwrap();
    assert_eq!(plan.parts.len(), 1, "{plan:?}");
    let made = f.call(operands).await.unwrap();
    assert_eq!(made[0].device(), Some(a));
    cluster.shutdown().await;
}

/// Workers of one host lend each other tensors for the time of a step, and a handle lives longer than that.
#[tokio::test]
async fn handles_keep_what_came_from_another_worker_beyond_the_step() {
    const CALLS: usize = 16;
    let cluster = cluster(2).await;
    let [a, b] = ["w0", "w1"].map(|d| cluster.device(d).unwrap());
    let f = {
        let (a, b) = (a.clone(), b.clone());
        cluster.function(move |t| {
            let made = convoke::with_device(&a, || op("Neg", &[&t[0]]))?;
            let came = convoke::with_device(&b, || op("Identity", &[&made]))?;
            Ok(vec![came])
        })
    };
    // Larger than what travels within a frame.
    let x = |call: usize| {
        let values = numbers(64 * 1024, 0.1 + call as f32);
        HostTensor::from_slice(&[64, 1024], &values).unwrap()
    };
    let mut held = vec![];
    for call in 0..CALLS {
        let given = [a.put(x(call)).unwrap()];
        let made = tokio::time::timeout(Duration::from_secs(60), f.call(&given));
        held.extend(
            made.await
                .expect("the call before returns its loan")
                .unwrap(),
        );
    }
    for (call, held) in held.iter().enumerate() {
        assert_eq!(held.device(), Some(b.clone()));
        let want: Vec<f32> = numbers(64 * 1024, 0.1 + call as f32);
        let want: Vec<f32> = want.into_iter().map(|v| -v).collect();
        assert!(held.fetch::<Vec<f32>>().await.unwrap() == want, "{call}");
    }
    cluster.shutdown().await;
}
