//! The product on an embedded cluster: a committed model, whole and split.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use convoke::graph::{Function, Literal, Node, RunsAt, ValueId};
use convoke::{
    Attrs, Cluster, Code, DType, Dim, Embedded, HostTensor as Tensor, Model, Outputs, Phase,
    Result, TensorType,
};
use convoke_common::memory::Purpose;

type Call = tokio::task::JoinHandle<Result<Outputs>>;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../fixtures")
        .join(name)
}

/// Images that differ in every pixel.
fn images(count: usize) -> Tensor {
    let pixels: Vec<f32> = (0..count * 64)
        .map(|i| (i * 37 % 101) as f32 / 101.0)
        .collect();
    Tensor::from_slice(&[count, 1, 8, 8], &pixels).unwrap()
}

async fn digits(workers: u32, threads: usize, count: usize) -> Outputs {
    let cluster = Embedded::new(workers as usize)
        .threads(threads)
        .start()
        .await
        .unwrap();
    let model = cluster
        .load(fixture("digits/model.onnx"))
        .workers(workers)
        .await
        .unwrap();
    let out = model.call([("image", images(count))]).await.unwrap();
    let plan = model.plan().await.unwrap();
    assert_eq!(plan.parts.len(), workers as usize);
    assert!(plan.parts.iter().all(|p| p.nodes > 0));
    model.unload().await.unwrap();
    cluster.shutdown().await;
    out
}

#[tokio::test]
async fn every_split_gives_the_same_bits() {
    let whole = digits(1, 1, 5).await;
    assert_eq!(whole["logits"].shape(), [5, 10]);
    for (workers, threads) in [(1, 2), (2, 1), (3, 2), (5, 1)] {
        assert_eq!(
            digits(workers, threads, 5).await,
            whole,
            "{workers} workers"
        );
    }
}

#[tokio::test]
async fn wrong_inputs_are_all_named() {
    let cluster = Embedded::new(1).start().await.unwrap();
    let model = cluster.load(fixture("digits/model.onnx")).await.unwrap();
    let wrong = Tensor::zeros(DType::F64, &[1, 1, 8, 9]).unwrap();
    let e = model
        .call([("image", wrong), ("mask", images(1))])
        .await
        .unwrap_err();
    assert_eq!(e.code, Code::InvalidInput);
    assert_eq!(
        e.to_string(),
        "input 'image' is f64[1, 1, 8, 9], expected f32[batch, 1, 8, 8]; \
         the model has no input 'mask'\n  the model's inputs are: image"
    );
    let twice = [("image", images(1)), ("image", images(2))];
    let e = model.call(twice).await.unwrap_err();
    assert_eq!(e.code, Code::InvalidInput);
    assert_eq!(e.message, "input 'image' is given twice");
    cluster.shutdown().await;
}

#[tokio::test]
async fn workers_are_awaited_for_as_long_as_asked() {
    let cluster = Embedded::new(1).start().await.unwrap();
    let joined = cluster.await_workers(1, std::time::Duration::MAX, |_| {});
    assert_eq!(joined.await.unwrap(), 1);
    cluster.shutdown().await;
}

#[tokio::test]
async fn only_inputs_beyond_the_bound_plan_anew() {
    let cluster = Embedded::new(2).start().await.unwrap();
    let (plans, on_progress) = counted_plans();
    let model = cluster
        .load(fixture("digits/model.onnx"))
        .workers(2)
        .dim("batch", 3)
        .on_progress(on_progress)
        .await
        .unwrap();
    for (count, want) in [(1, 1), (3, 1), (2, 1), (7, 2), (3, 2), (7, 2)] {
        let out = model.call([("image", images(count))]).await.unwrap();
        assert_eq!(out["logits"].shape(), [count, 10]);
        assert_eq!(plans.load(Relaxed), want, "{count}");
    }
    cluster.shutdown().await;
}

/// The number of plans that a model has been given, and what counts them.
fn counted_plans() -> (Arc<AtomicUsize>, impl Fn(Phase) + Send + Sync + 'static) {
    let plans = Arc::new(AtomicUsize::new(0));
    let counted = plans.clone();
    let count = move |phase: Phase| {
        counted.fetch_add((phase == Phase::Planning).into(), Relaxed);
    };
    (plans, count)
}

/// A part of the tokens of a sequence, of `columns` numbers each.
fn tokens(range: std::ops::Range<usize>, columns: usize, seed: usize) -> Tensor {
    let number = |i: usize| ((i * 37 + seed * 11) % 101) as f32 / 50.0 - 1.0;
    let numbers: Vec<f32> = (range.start * columns..range.end * columns)
        .map(number)
        .collect();
    Tensor::from_slice(&[1, range.len(), columns], &numbers).unwrap()
}

/// One call of the model with a cache, for some tokens of a sequence.
async fn attended(
    model: &Model,
    range: std::ops::Range<usize>,
    past: (Tensor, Tensor),
) -> (Tensor, (Tensor, Tensor)) {
    let inputs = [
        ("q", tokens(range.clone(), 48, 1)),
        ("k", tokens(range.clone(), 16, 2)),
        ("v", tokens(range, 16, 3)),
        ("past_key", past.0),
        ("past_value", past.1),
    ];
    let out = model.call(inputs).await.unwrap();
    let cache = (out["present_key"].clone(), out["present_value"].clone());
    (out["y"].clone(), cache)
}

#[tokio::test]
async fn decoding_with_a_growing_cache_plans_once() {
    const LENGTH: usize = 40;
    let cluster = Embedded::new(2).start().await.unwrap();
    let (plans, on_progress) = counted_plans();
    let model = cluster
        .load(fixture("decoding/model.onnx"))
        .workers(2)
        .dim("batch", 1)
        .dim("tokens", LENGTH as i64)
        .dim("past", LENGTH as i64)
        .on_progress(on_progress)
        .await
        .unwrap();
    let nothing = || Tensor::zeros(DType::F32, &[1, 2, 0, 8]).unwrap();
    let (whole, _) = attended(&model, 0..LENGTH, (nothing(), nothing())).await;
    let whole = whole.as_slice::<f32>().unwrap();
    let mut cache = (nothing(), nothing());
    let mut from = 0;
    // The first tokens come together, the others one by one.
    for to in 7..=LENGTH {
        let (y, next) = attended(&model, from..to, cache).await;
        assert_eq!(next.0.shape(), [1, 2, to, 8]);
        assert_eq!(
            y.as_slice::<f32>().unwrap(),
            &whole[from * 48..to * 48],
            "{from}..{to}"
        );
        (cache, from) = (next, to);
    }
    assert_eq!(plans.load(Relaxed), 1);
    cluster.shutdown().await;
}

/// The product of a column and a row, whose lengths are two axes.
fn table() -> Function {
    let mut f = Function::default();
    let [a, b, one] = [Dim::sym("a"), Dim::sym("b"), Dim::Const(1)];
    let column = TensorType::new(DType::F32, vec![a.clone(), one.clone()]);
    let row = TensorType::new(DType::F32, vec![one, b.clone()]);
    let (x, y) = (f.add_value("x", column), f.add_value("y", row));
    f.params = vec![x, y];
    let z = f.add_value("z", TensorType::new(DType::F32, vec![a, b]));
    f.nodes.push(Node {
        name: "product".into(),
        op: "Mul".into(),
        attrs: Attrs::default(),
        inputs: vec![Some(x), Some(y)],
        outputs: vec![z],
        runs_at: RunsAt::Step,
    });
    f.results = vec![("z".into(), z)];
    f
}

#[tokio::test]
async fn axes_that_are_long_in_turns_are_planned_together() {
    let cluster = Embedded::new(1).start().await.unwrap();
    let (plans, on_progress) = counted_plans();
    let load = cluster.load_function(table(), vec![]);
    let model = load.on_progress(on_progress).await.unwrap();
    for (a, b) in [(100, 1), (1, 100), (100, 1), (1, 100), (150, 120)] {
        let ones = |shape: &[usize]| Tensor::zeros(DType::F32, shape).unwrap();
        let inputs = [("x", ones(&[a, 1])), ("y", ones(&[1, b]))];
        let out = model.call(inputs).await.unwrap();
        assert_eq!(out["z"].shape(), [a, b]);
    }
    assert_eq!(plans.load(Relaxed), 2);
    cluster.shutdown().await;
}

/// The negatives of `x: f32[2*n]` and `y: f32[2*n + m]`: none of the axes is an axis of an input alone.
fn of_expressions() -> Function {
    let mut f = Function::default();
    let twice = &Dim::sym("n") * &Dim::Const(2);
    let more = &twice + &Dim::sym("m");
    for (name, negative, length) in [("x", "-x", twice), ("y", "-y", more)] {
        let ty = TensorType::new(DType::F32, vec![length]);
        let given = f.add_value(name, ty.clone());
        let made = f.add_value(negative, ty);
        f.params.push(given);
        f.nodes.push(Node {
            name: negative.into(),
            op: "Neg".into(),
            attrs: Attrs::default(),
            inputs: vec![Some(given)],
            outputs: vec![made],
            runs_at: RunsAt::Step,
        });
        f.results.push((negative.into(), made));
    }
    f
}

#[tokio::test]
async fn an_axis_follows_from_an_expression() {
    let cluster = Embedded::new(1).start().await.unwrap();
    let model = cluster
        .load_function(of_expressions(), vec![])
        .await
        .unwrap();
    let given = |x: usize, y: usize| {
        let zeros = |length: usize| Tensor::zeros(DType::F32, &[length]).unwrap();
        [("x", zeros(x)), ("y", zeros(y))]
    };
    for (x, y) in [(6, 7), (2, 2), (40, 90), (0, 1)] {
        let out = model.call(given(x, y)).await.unwrap();
        let shapes = ["-x", "-y"].map(|name| out[name].shape().to_vec());
        assert_eq!(shapes, [[x], [y]]);
    }
    for (x, y, why) in [
        (
            5,
            7,
            "input 'x' is f32[5], a shape that f32[2*n] has for no axis lengths",
        ),
        (
            6,
            5,
            "input 'y' is f32[5], a shape that f32[m+2*n] has for no axis lengths with n = 3",
        ),
    ] {
        let e = model.call(given(x, y)).await.unwrap_err();
        assert!(
            e.code == Code::InvalidInput && e.message.contains(why),
            "{e}"
        );
    }
    cluster.shutdown().await;
}

/// A function whose init part takes long: what does not depend on its parameter is computed before its first step.
fn slow_to_load() -> Function {
    const SIZE: usize = 128;
    let mut f = Function::default();
    let dims = |shape: &[usize]| shape.iter().map(|d| Dim::Const(*d as i64)).collect();
    let square = TensorType::new(DType::F32, dims(&[SIZE, SIZE]));
    let constant = f.add_value("constant", square.clone());
    let zeros = Tensor::zeros(DType::F32, &[SIZE, SIZE]).unwrap();
    f.literals.push((constant, Literal::Inline(zeros)));
    let node = |f: &mut Function, op: &str, inputs: [ValueId; 2], ty: &TensorType| {
        let name = format!("n{}", f.nodes.len());
        let made = f.add_value(&*name, ty.clone());
        f.nodes.push(Node {
            name: name.into(),
            op: op.into(),
            attrs: Attrs::default(),
            inputs: inputs.map(Some).to_vec(),
            outputs: vec![made],
            runs_at: RunsAt::Step,
        });
        made
    };
    let mut product = constant;
    for _ in 0..2000 {
        product = node(&mut f, "MatMul", [product, constant], &square);
    }
    // The size of the parameter is unbounded, so that nothing is planned before the call.
    let rows = TensorType::new(DType::F32, vec![Dim::sym("rows"), Dim::Const(SIZE as i64)]);
    let x = f.add_value("x", rows.clone());
    f.params.push(x);
    let y = node(&mut f, "MatMul", [x, product], &rows);
    f.results.push(("y".into(), y));
    f
}

/// Starts a call, for which the model is being loaded when this returns.
async fn loading(cluster: &Cluster) -> (Model, Call) {
    let (begun, planning) = tokio::sync::oneshot::channel();
    let once = Mutex::new(Some(begun));
    let tell = move |phase: Phase| {
        if phase == Phase::Planning
            && let Some(begun) = once.lock().unwrap().take()
        {
            begun.send(()).unwrap();
        }
    };
    let load = cluster.load_function(slow_to_load(), vec![]);
    let model = load.on_progress(tell).await.unwrap();
    let called = model.clone();
    let x = Tensor::zeros(DType::F32, &[1, 128]).unwrap();
    let call = tokio::spawn(async move { called.call([("x", x)]).await });
    planning.await.unwrap();
    (model, call)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_asks_for_the_plan_does_not_wait_for_one() {
    let cluster = Embedded::new(1).start().await.unwrap();
    let (model, call) = loading(&cluster).await;
    assert!(model.plan().await.is_none());
    call.await.unwrap().unwrap();
    assert!(model.plan().await.is_some());
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_is_unloaded_is_not_loaded_on() {
    let cluster = Embedded::new(1).start().await.unwrap();
    let (model, call) = loading(&cluster).await;
    model.unload().await.unwrap();
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error.code, Code::Cancelled, "{error}");
    let status = cluster.status().await.unwrap();
    assert!(status.leases.is_empty(), "{:?}", status.leases);
    cluster.shutdown().await;
}

#[tokio::test]
async fn what_is_put_is_bounded_by_the_workers_memory() {
    const MEMORY: u64 = 1 << 30;
    const PART: u64 = 48 << 20;
    let cluster = Embedded::new(1).threads(1).memory(MEMORY);
    let cluster = cluster.start().await.unwrap();
    let device = cluster.device("w0").unwrap();
    let held = || async {
        let status = cluster.status().await.unwrap();
        let used = &status.members[0].status.as_ref().unwrap().memory_used;
        used.get(&Purpose::Handles).copied().unwrap_or(0)
    };
    // All puts share the memory of these zeros, which nobody touches.
    let part = Tensor::zeros(DType::U8, &[PART as usize]).unwrap();
    let put: Vec<_> = (0..2 * MEMORY / PART).map(|_| device.put(&part)).collect();
    let mut fit = Vec::new();
    for t in put.into_iter().map(Result::unwrap) {
        match t.ready().await {
            Ok(()) => fit.push(t),
            Err(e) => {
                assert_eq!(e.code, Code::OutOfMemory, "{e}");
                let needed = "MiB free; 48.0 more MiB are needed";
                assert!(e.message.starts_with("worker w0 has "), "{e}");
                assert!(e.message.ends_with(needed), "{e}");
                let site = e.site.unwrap();
                assert_eq!(site.op.as_deref(), Some("put"));
                assert!(site.origin.unwrap().contains("embedded.rs"));
            }
        }
    }
    assert!(!fit.is_empty());
    let bytes = fit.len() as u64 * PART;
    assert!(bytes < MEMORY, "{bytes}");
    assert_eq!(held().await, bytes);
    // A tensor that is fetched is the same memory: put back, it is not counted again.
    let back: Tensor = fit[0].fetch().await.unwrap();
    let again = device.put(&back).unwrap();
    again.ready().await.unwrap();
    drop((fit, back));
    assert_eq!(held().await, PART);
    drop(again);
    assert_eq!(held().await, 0);
    let more = device.put(&part).unwrap();
    more.ready().await.unwrap();
    cluster.shutdown().await;
}
