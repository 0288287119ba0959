//! Partial calls on an embedded cluster: what fails in a node reaches the results that depend on it, and no others.
#![cfg(feature = "embedded")]
#![allow(clippy::unwrap_used)]

mod common;

use convoke::graph::Function;
use convoke::{
    Attrs, Cluster, Code, DType, Dim, Embedded, Error, HostTensor, Model, Operand, Result, Tensor,
    cond, for_loop,
};

async fn cluster(workers: usize) -> Cluster {
    Embedded::new(workers).threads(1).start().await.unwrap()
}

/// A function that takes the rows of `table` at `at`, and computes results beside that which do not depend on `at`:
/// ```text
/// found = table[at]    near = -found    far = |near|    minus = -table    size = |minus|
/// ```
/// All but `found` are results.
fn lookup() -> Function {
    let mut f = Function::default();
    let ty = |dtype, shape: &[i64]| {
        let dims: Vec<Dim> = shape.iter().map(|d| Dim::Const(*d)).collect();
        common::ty(dtype, &dims)
    };
    let table = f.add_value("table", ty(DType::F32, &[2, 3]));
    let at = f.add_value("at", ty(DType::I64, &[1]));
    f.params = vec![table, at];
    let (rows, all) = (ty(DType::F32, &[1, 3]), ty(DType::F32, &[2, 3]));
    let mut node =
        |name: &str, op: &str, inputs: &[_], ty: &_| common::node(&mut f, name, op, inputs, ty);
    let found = node("found", "Gather", &[table, at], &rows);
    let near = node("near", "Neg", &[found], &rows);
    let far = node("far", "Abs", &[near], &rows);
    let minus = node("minus", "Neg", &[table], &all);
    let size = node("size", "Abs", &[minus], &all);
    let results = [
        ("near", near),
        ("far", far),
        ("minus", minus),
        ("size", size),
    ];
    f.results = results.map(|(name, v)| (name.to_owned(), v)).into();
    f
}

/// [`lookup`] with each node on the worker of this number: `found`, `near`, `far`, `minus`, `size`.
async fn load(cluster: &Cluster, places: [u32; 5]) -> Model {
    let mut load = cluster.load_function(lookup(), vec![]);
    for (node, at) in ["found", "near", "far", "minus", "size"].iter().zip(places) {
        load = load.pin(*node, format!("w{at}"));
    }
    load.numerics(convoke::Numerics::Exact).await.unwrap()
}

fn given(at: i64) -> [(&'static str, HostTensor); 2] {
    let table = HostTensor::from_slice(&[2, 3], &[1f32, -2., 3., -4., 5., -6.]).unwrap();
    [
        ("table", table),
        ("at", HostTensor::from_slice(&[1], &[at]).unwrap()),
    ]
}

#[track_caller]
fn check_cause(e: &Error, node: &str, worker: &str) {
    assert_eq!(e.code, Code::KernelFailed, "{e}");
    let site = e.site.as_ref().unwrap();
    assert_eq!(site.node.as_deref(), Some(node), "{e}");
    assert_eq!(site.worker.as_deref(), Some(worker), "{e}");
}

/// Checks that nothing of any step is left at a worker, once its lease has ended.
async fn check_at_rest(cluster: &Cluster) {
    let status = cluster.status().await.unwrap();
    assert!(status.leases.is_empty(), "{:?}", status.leases);
    for member in status.members {
        let Some(status) = member.status else {
            continue;
        };
        assert_eq!((status.live_steps, status.programs.len()), (0, 0));
    }
}

#[tokio::test]
async fn results_that_do_not_depend_on_what_failed_arrive() {
    let cluster = cluster(2).await;
    // All nodes are on one worker, or are split between two in several ways.
    for places in [[0; 5], [0, 0, 1, 0, 1], [0, 1, 1, 1, 0], [1, 0, 1, 0, 0]] {
        let model = load(&cluster, places).await;
        let whole = model.call(given(1)).await.unwrap();
        let partial = model.partial();
        for _ in 0..3 {
            let out = partial.call(given(1)).await.unwrap();
            assert_eq!(out.failed().count(), 0);
            assert_eq!(out.complete().unwrap(), whole, "{places:?}");
            let out = partial.call(given(9)).await.unwrap();
            let failed: Vec<&str> = out.failed().map(|(name, _)| name).collect();
            assert_eq!(failed, ["near", "far"], "{places:?}");
            for (_, e) in out.failed() {
                check_cause(e, "found", &format!("w{}", places[0]));
            }
            for name in ["minus", "size"] {
                assert_eq!(out[name].as_ref().unwrap(), &whole[name], "{places:?}");
            }
            check_cause(
                &out.complete().unwrap_err(),
                "found",
                &format!("w{}", places[0]),
            );
            // Other calls of the model fail as a whole.
            check_cause(
                &model.call(given(9)).await.unwrap_err(),
                "found",
                &format!("w{}", places[0]),
            );
        }
        model.unload().await.unwrap();
        check_at_rest(&cluster).await;
    }
    cluster.shutdown().await;
}

#[tokio::test]
async fn what_is_wrong_with_the_call_is_an_error_of_the_call() {
    let cluster = cluster(1).await;
    let model = load(&cluster, [0; 5]).await;
    let partial = model.partial();
    let e = partial
        .call(given(0).into_iter().take(1))
        .await
        .unwrap_err();
    assert_eq!(e.code, Code::InvalidInput);
    drop(partial.call(given(9)));
    model.unload().await.unwrap();
    assert!(partial.call(given(9)).await.is_ok(), "it is loaded again");
    cluster.shutdown().await;
}

#[track_caller]
fn op(name: &str, operands: &[&Tensor]) -> Result<Tensor> {
    let operands: Vec<_> = operands.iter().map(|t| Operand::Tensor(t)).collect();
    convoke::issue(name, Attrs::default(), &operands, 1).map(|mut made| made.remove(0))
}

/// Computes of a table and an index: -table, |found| and found, where found is the table's element at the index.
fn closure(t: &[Tensor]) -> Result<Vec<Tensor>> {
    let found = op("Gather", &[&t[0], &t[1]])?;
    Ok(vec![op("Neg", &[&t[0]])?, op("Abs", &[&found])?, found])
}

async fn values(t: &Tensor) -> Vec<f32> {
    t.fetch().await.unwrap()
}

async fn held(cluster: &Cluster) -> u64 {
    let held = cluster.memory().await.unwrap();
    held.iter().map(|h| h.bytes).sum()
}

#[tokio::test]
async fn a_functions_results_are_each_there_or_failed() {
    let cluster = cluster(2).await;
    for [here, there] in [["w0", "w0"], ["w0", "w1"]] {
        let [here, there] = [here, there].map(|d| cluster.device(d).unwrap());
        let table = here.put([1f32, -2., 3., -4., 5., -6.]).unwrap();
        let [good, bad] = [1i64, 9].map(|at| there.put([at]).unwrap());
        let partial = cluster.function(closure).partial();
        let mut flat = vec![];
        for _ in 0..4 {
            let all = partial.call(&[table.clone(), good.clone()]).await.unwrap();
            assert_eq!(values(all[2].as_ref().unwrap()).await, [-2.]);
            let some = partial.call(&[table.clone(), bad.clone()]).await.unwrap();
            let minus = values(some[0].as_ref().unwrap()).await;
            assert_eq!(minus, [-1., 2., -3., 4., -5., 6.]);
            for failed in &some[1..] {
                let e = failed.as_ref().unwrap_err();
                assert_eq!(e.code, Code::KernelFailed, "{e}");
                let node = e.site.as_ref().and_then(|s| s.node.clone()).unwrap();
                assert!(node.starts_with("Gather at "), "{node}");
            }
            drop((all, some, minus));
            flat.push(held(&cluster).await);
        }
        // The handles that no step has filled are gone, like those that one has filled.
        assert!(flat.iter().all(|h| *h == flat[0]), "{flat:?}");
    }
    cluster.shutdown().await;
}

#[tokio::test]
async fn an_operand_that_failed_fails_what_reads_it() {
    let cluster = cluster(2).await;
    let [a, b] = ["w0", "w1"].map(|d| cluster.device(d).unwrap());
    let table = a.put([1f32, 2.]).unwrap();
    let failed = op("Gather", &[&table, &a.put([9i64]).unwrap()]).unwrap();
    for other in [a.put([3f32]).unwrap(), b.put([3f32]).unwrap()] {
        let f = cluster.function(|t: &[Tensor]| {
            let minus = op("Neg", &[&t[1]])?;
            Ok(vec![op("Add", &[&t[0], &minus])?, minus])
        });
        let operands = [failed.clone(), other];
        let some = f.partial().call(&operands).await.unwrap();
        let e = some[0].as_ref().unwrap_err();
        let op = e.site.as_ref().and_then(|s| s.op.as_deref());
        assert_eq!((e.code, op), (Code::KernelFailed, Some("Gather")), "{e}");
        assert_eq!(values(some[1].as_ref().unwrap()).await, [-3.]);
    }
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_retained_operand_stays_where_a_result_failed() {
    let cluster = cluster(1).await;
    let a = cluster.device("w0").unwrap();
    let f = cluster
        .function(closure)
        .donate_retain(0)
        .unwrap()
        .partial();
    let table = a.put([1f32, 2.]).unwrap();
    let [good, bad] = [0i64, 9].map(|at| a.put([at]).unwrap());
    let some = f.call(&[table.clone(), bad]).await.unwrap();
    assert!(some[0].is_ok() && some[1].is_err());
    assert_eq!(values(&table).await, [1., 2.]);
    let all = f.call(&[table.clone(), good]).await.unwrap();
    assert!(all.iter().all(Result::is_ok));
    assert_eq!(table.abs().unwrap_err().code, Code::StateLost);
    cluster.shutdown().await;
}

#[tokio::test]
async fn what_fails_in_a_body_fails_what_runs_the_body() {
    let cluster = cluster(2).await;
    let start = cluster.device("w0").unwrap().put(2i64).unwrap();
    // The second round divides by zero.
    let round = |_: &Tensor, t: &[Tensor]| Ok(vec![t[0].sub(1)?.sub(&t[0].div(&t[0])?)?]);
    let f = cluster.function(move |t: &[Tensor]| {
        let looped = for_loop(3, t, round)?.remove(0);
        let positive = t[0].greater(0)?;
        let one = |t: &[Tensor]| Ok(vec![t[0].add(1)?]);
        let zero = |t: &[Tensor]| Ok(vec![t[0].div(&t[0].sub(&t[0])?)?]);
        let held = cond(&positive, t, one, zero)?.remove(0);
        let broken = cond(&positive, t, zero, one)?.remove(0);
        Ok(vec![looped.add(1)?, held, broken, t[0].add(5)?])
    });
    let some = f.partial().call(&[start]).await.unwrap();
    for failed in [0, 2] {
        let e = some[failed].as_ref().unwrap_err();
        let op = e.site.as_ref().and_then(|s| s.op.as_deref());
        assert_eq!((e.code, op), (Code::KernelFailed, Some("Div")), "{e}");
    }
    for (there, want) in [(1, 3), (3, 7)] {
        let t = some[there].as_ref().unwrap();
        assert_eq!(t.fetch::<i64>().await.unwrap(), want);
    }
    cluster.shutdown().await;
}
