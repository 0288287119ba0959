//! Branches and loops whose weights fit no single worker, on an embedded cluster: several workers run them together,
//! with the bits of one worker that holds everything.
//!
//! Each weight is a table of 128 MiB, which the install makes of a few bytes. That is much more than the amount by
//! which the other memory of the process, and with it the workers' offer, changes during a test.
#![cfg(feature = "embedded")]
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use convoke::graph::{Function, Literal, Node, RunsAt, ValueId};
use convoke::{
    Attr, Attrs, CallOptions, Cluster, Code, DType, Dim, Embedded, Error, HostTensor, Model,
    TensorType,
};
use tokio::sync::Mutex;

const MIB: u64 = 1 << 20;
const ROWS: i64 = 2048;
/// A row crosses between workers of one host in lent memory: it is larger than what travels within a frame.
const WIDTH: usize = 16_384;
/// Bytes of a table.
const TABLE: u64 = 128 * MIB;

/// Held by each test until its end. A worker's offer depends on how much memory its process takes, so another test that
/// runs at the same time would change it.
static ALONE: Mutex<()> = Mutex::const_new(());

/// A cluster whose workers have room for this many tables each, and for half a table more.
async fn cluster(workers: usize, tables: u64) -> Cluster {
    let (least, most) = (tables * TABLE, (tables + 1) * TABLE);
    let mut memory = most + TABLE;
    for _ in 0..8 {
        let cluster = Embedded::new(workers).threads(1).memory(memory);
        let cluster = cluster.start().await.unwrap();
        let members = cluster.status().await.unwrap().members;
        let offers = members.into_iter().filter_map(|m| m.status).map(|s| {
            let used: u64 = s.memory_used.values().sum();
            s.memory_budget - used
        });
        let offers: Vec<u64> = offers.collect();
        if offers
            .iter()
            .all(|o| (least + 32 * MIB..most - 32 * MIB).contains(o))
        {
            return cluster;
        }
        cluster.shutdown().await;
        let all: u64 = offers.iter().sum();
        memory = (memory + least + TABLE / 2).saturating_sub(all / workers as u64);
    }
    panic!("no size of memory leaves room for {tables} tables");
}

/// The op of control flow that runs the layers.
#[derive(Clone, Copy, PartialEq)]
enum Control {
    /// A loop of `count` iterations over all tables.
    Loop,
    /// A scan over `count` rows of ones.
    Scan,
    /// Both branches have tables: all but the last, and the last.
    If,
    /// One branch has all tables, and the other the last.
    Shared,
    /// A loop around that `If`.
    Nested,
}

fn ty(dtype: DType, shape: &[usize]) -> TensorType {
    TensorType::fixed(dtype, shape)
}

fn add(f: &mut Function, name: &str, op: &str, inputs: &[ValueId], ty: &TensorType) -> ValueId {
    common::node(f, name, op, inputs, ty)
}

fn attr(f: &mut Function, name: &str, value: Attr) {
    let node = f.nodes.last_mut().unwrap();
    node.attrs = std::mem::take(&mut node.attrs).with(name, value);
}

fn floats(shape: &[usize], seed: usize) -> HostTensor {
    let n: usize = shape.iter().product();
    let data = (0..n).map(|i| ((i * 37 + seed * 53) % 101) as f32 / 101. - 0.45);
    HostTensor::from_slice(shape, &data.collect::<Vec<_>>()).unwrap()
}

fn constant(f: &mut Function, name: &str, t: HostTensor) -> ValueId {
    let id = f.add_value(name, TensorType::fixed(t.dtype(), t.shape()));
    f.literals.push((id, Literal::Inline(t)));
    id
}

/// A table of f32[ROWS, WIDTH], made of a product and repeated.
fn table(f: &mut Function, i: usize) -> ValueId {
    let a = constant(f, &format!("a{i}"), floats(&[64, 1], i));
    let b = constant(f, &format!("b{i}"), floats(&[1, WIDTH], i + 7));
    let times = HostTensor::from_slice(&[2], &[ROWS / 64, 1i64]).unwrap();
    let times = constant(f, &format!("times{i}"), times);
    let product = ty(DType::F32, &[64, WIDTH]);
    let product = add(f, &format!("product{i}"), "MatMul", &[a, b], &product);
    let all = ty(DType::F32, &[ROWS as usize, WIDTH]);
    add(f, &format!("table{i}"), "Tile", &[product, times], &all)
}

/// Adds layers `x = tanh(x + table[at])`, one for each table.
fn layers(f: &mut Function, mut x: ValueId, at: ValueId, tables: &[(usize, ValueId)]) -> ValueId {
    let row = ty(DType::F32, &[WIDTH]);
    for (i, table) in tables {
        let found = add(f, &format!("row{i}"), "Gather", &[*table, at], &row);
        let sum = add(f, &format!("sum{i}"), "Add", &[x, found], &row);
        x = add(f, &format!("layer{i}"), "Tanh", &[sum], &row);
    }
    x
}

fn params(f: &mut Function, all: &[(&str, TensorType)]) -> Vec<ValueId> {
    let made = all.iter().map(|(n, ty)| f.add_value(*n, ty.clone()));
    f.params = made.collect();
    f.params.clone()
}

/// The operands that a body captures: what iterations are multiplied by, and the tables.
fn captured(tables: usize) -> Vec<(String, TensorType)> {
    let all = ty(DType::F32, &[ROWS as usize, WIDTH]);
    let step = ("step".to_owned(), ty(DType::I64, &[]));
    let tables = (0..tables).map(|i| (format!("t{i}"), all.clone()));
    std::iter::once(step).chain(tables).collect()
}

fn declared(f: &mut Function, own: &[(&str, TensorType)], tables: usize) -> Vec<ValueId> {
    let captured = captured(tables);
    let captured = captured.iter().map(|(n, ty)| (n.as_str(), ty.clone()));
    let all: Vec<_> = own.iter().cloned().chain(captured).collect();
    params(f, &all)
}

fn numbered(tables: &[ValueId]) -> Vec<(usize, ValueId)> {
    tables.iter().copied().enumerate().collect()
}

/// A branch over the tables of `those`.
fn branch(tables: usize, those: std::ops::Range<usize>) -> Attr {
    let mut f = Function::default();
    let row = ty(DType::F32, &[WIDTH]);
    let p = declared(&mut f, &[("x", row)], tables);
    let (x, step, all) = (p[0], p[1], numbered(&p[2..]));
    let y = layers(&mut f, x, step, &all[those]);
    f.results = vec![("y".into(), y)];
    Attr::Function(f.into())
}

/// Adds an `If` over all tables: one branch has the last table, the other this many of the first ones.
fn branches(
    f: &mut Function,
    cond: ValueId,
    (x, step): (ValueId, ValueId),
    t: &[ValueId],
    first: usize,
) -> ValueId {
    let inputs: Vec<ValueId> = [cond, x, step].iter().chain(t).copied().collect();
    let y = add(f, "choice", "If", &inputs, &ty(DType::F32, &[WIDTH]));
    let last = t.len().saturating_sub(1);
    attr(f, "then_branch", branch(t.len(), 0..first));
    attr(f, "else_branch", branch(t.len(), last..t.len()));
    y
}

/// The body of a loop or scan over this many tables. Iteration `i` reads row `i · step`.
fn body(control: Control, tables: usize) -> Attr {
    let mut f = Function::default();
    let (row, long, bool) = (
        ty(DType::F32, &[WIDTH]),
        ty(DType::I64, &[]),
        ty(DType::Bool, &[]),
    );
    if control == Control::Scan {
        let p = declared(&mut f, &[("x", row.clone()), ("over", row.clone())], tables);
        let x = add(&mut f, "with", "Add", &[p[0], p[1]], &row);
        let y = layers(&mut f, x, p[2], &numbered(&p[3..]));
        let size = add(&mut f, "size", "Abs", &[y], &row);
        f.results = vec![("y".into(), y), ("size".into(), size)];
        return Attr::Function(f.into());
    }
    let own = [("i", long.clone()), ("going", bool), ("x", row.clone())];
    let p = declared(&mut f, &own, tables);
    let at = add(&mut f, "at", "Mul", &[p[0], p[3]], &long);
    let y = match control {
        Control::Nested => {
            let two = constant(&mut f, "two", HostTensor::scalar(2i64));
            let rest = add(&mut f, "rest", "Mod", &[p[0], two], &long);
            let zero = constant(&mut f, "zero", HostTensor::scalar(0i64));
            let even = add(
                &mut f,
                "even",
                "Equal",
                &[rest, zero],
                &ty(DType::Bool, &[]),
            );
            branches(&mut f, even, (p[2], at), &p[4..], tables - 1)
        }
        _ => layers(&mut f, p[2], at, &numbered(&p[4..])),
    };
    let size = add(&mut f, "size", "Abs", &[y], &row);
    f.results = vec![
        ("going".into(), p[1]),
        ("y".into(), y),
        ("size".into(), size),
    ];
    Attr::Function(f.into())
}

/// A function of `count`, `step` and `x`. `beside` is a result that no table is needed for.
fn function(control: Control, tables: usize) -> Function {
    let mut f = Function::default();
    let (row, long) = (ty(DType::F32, &[WIDTH]), ty(DType::I64, &[]));
    let own = [("count", long.clone()), ("step", long), ("x", row.clone())];
    let p = params(&mut f, &own);
    let (count, step, x) = (p[0], p[1], p[2]);
    let tables: Vec<ValueId> = (0..tables).map(|i| table(&mut f, i)).collect();
    let beside = add(&mut f, "beside", "Neg", &[x], &row);
    let all = TensorType::new(DType::F32, vec![Dim::sym("all"), Dim::from(WIDTH)]);
    let captured = Attr::Int(1 + tables.len() as i64);
    let rest = || std::iter::once(&step).chain(&tables).copied().map(Some);
    match control {
        Control::If | Control::Shared => {
            let zero = constant(&mut f, "zero", HostTensor::scalar(0i64));
            let none = add(
                &mut f,
                "none",
                "Greater",
                &[count, zero],
                &ty(DType::Bool, &[]),
            );
            let apart = usize::from(control == Control::If);
            let y = branches(&mut f, none, (x, step), &tables, tables.len() - apart);
            f.results.push(("y".into(), y));
        }
        _ => {
            let y = f.add_value("y", row.clone());
            let sizes = f.add_value("sizes", all);
            let scans = control == Control::Scan;
            let over = scans.then(|| {
                let ones = HostTensor::from_slice(&[4, 1], &[0.1f32, 0.2, 0.3, 0.4]).unwrap();
                let ones = constant(&mut f, "ones", ones);
                let shape = ty(DType::F32, &[4, WIDTH]);
                add(&mut f, "over", "Add", &[ones, x], &shape)
            });
            let first = match over {
                Some(over) => vec![Some(x), Some(over)],
                None => vec![Some(count), None, Some(x)],
            };
            let attrs = Attrs::default()
                .with("body", body(control, tables.len()))
                .with("captured", captured);
            f.nodes.push(Node {
                name: "repeat".into(),
                op: if scans { "Scan" } else { "Loop" }.into(),
                attrs: match scans {
                    true => attrs.with("num_scan_inputs", Attr::Int(1)),
                    false => attrs,
                },
                inputs: first.into_iter().chain(rest()).collect(),
                outputs: vec![y, sizes],
                runs_at: RunsAt::Step,
            });
            f.results = vec![("y".into(), y), ("sizes".into(), sizes)];
        }
    }
    f.results.push(("beside".into(), beside));
    convoke_graph::ops::infer_types(&mut f).unwrap();
    f
}

async fn load(cluster: &Cluster, control: Control) -> Model {
    let load = cluster.load_function(function(control, 3), vec![]);
    load.numerics(convoke::Numerics::Exact)
        .in_flight(2)
        .await
        .unwrap()
}

fn given(count: i64, step: i64) -> [(&'static str, HostTensor); 3] {
    [
        ("count", HostTensor::scalar(count)),
        ("step", HostTensor::scalar(step)),
        ("x", floats(&[WIDTH], 3)),
    ]
}

/// Checks that nothing of any step or lease is left at a worker.
async fn check_at_rest(cluster: &Cluster) {
    let status = cluster.status().await.unwrap();
    assert!(status.leases.is_empty(), "{:?}", status.leases);
    for status in status.members.into_iter().filter_map(|m| m.status) {
        let rendezvous = &status.rendezvous;
        let left = (status.live_steps, status.programs.len(), rendezvous.leases);
        assert_eq!(left, (0, 0, 0));
    }
}

/// The results of a worker that holds everything.
async fn whole(control: Control, calls: &[(i64, i64)]) -> Vec<convoke::Outputs> {
    let cluster = Embedded::new(1).threads(1).memory(2048 * MIB);
    let cluster = cluster.start().await.unwrap();
    let model = load(&cluster, control).await;
    assert!(model.plan().await.unwrap().bodies.is_empty());
    let mut made = vec![];
    for (count, step) in calls {
        made.push(model.call(given(*count, *step)).await.unwrap());
    }
    model.unload().await.unwrap();
    cluster.shutdown().await;
    made
}

/// Checks the placement on this many workers with room for this many tables each, and that the results are those of one
/// worker. `parts` are the numbers of workers of each body.
async fn check(control: Control, workers: usize, tables: u64, parts: &[usize]) {
    let calls = [(0, 1), (1, 1), (2, 5), (7, 100)];
    let want = whole(control, &calls).await;
    let cluster = cluster(workers, tables).await;
    let model = load(&cluster, control).await;
    let plan = model.plan().await.unwrap();
    let found: Vec<usize> = plan.bodies.iter().map(|b| b.parts.len()).collect();
    assert_eq!(found, parts, "{:?}", plan.bodies);
    for part in plan.bodies.iter().flat_map(|b| &b.parts) {
        assert!(part.weights_bytes <= tables * TABLE, "{:?}", plan.bodies);
    }
    for ((count, step), want) in calls.into_iter().zip(&want) {
        let made = model.call(given(count, step)).await.unwrap();
        assert_eq!(made, *want, "{count} {step}");
    }
    let both = tokio::join!(model.call(given(7, 100)), model.call(given(2, 5)));
    assert_eq!((&both.0.unwrap(), &both.1.unwrap()), (&want[3], &want[2]));
    model.unload().await.unwrap();
    check_at_rest(&cluster).await;
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_loop_over_three_layers_on_workers_that_hold_one_each() {
    let _alone = ALONE.lock().await;
    check(Control::Loop, 3, 1, &[3]).await;
    check(Control::Loop, 5, 1, &[3]).await;
}

#[tokio::test]
async fn a_loop_over_three_layers_on_two_workers() {
    let _alone = ALONE.lock().await;
    check(Control::Loop, 2, 2, &[2]).await;
}

#[tokio::test]
async fn branches_and_scans_and_what_is_within_each_other() {
    let _alone = ALONE.lock().await;
    check(Control::If, 3, 1, &[2, 1]).await;
    check(Control::Shared, 3, 1, &[3, 1]).await;
    check(Control::Scan, 3, 1, &[3]).await;
    check(Control::Nested, 3, 1, &[1, 2, 1]).await;
}

#[track_caller]
fn check_cause(e: &Error, node: &str, worker: &str) {
    assert_eq!(e.code, Code::KernelFailed, "{e}");
    let site = e.site.as_ref().unwrap();
    assert_eq!(site.node.as_deref(), Some(node), "{e}");
    assert_eq!(site.worker.as_deref(), Some(worker), "{e}");
}

#[tokio::test]
async fn an_error_names_the_node_and_the_worker_within_the_body() {
    let _alone = ALONE.lock().await;
    let cluster = cluster(3, 1).await;
    let model = load(&cluster, Control::Loop).await;
    let plan = model.plan().await.unwrap();
    // The second iteration reads rows that do not exist.
    let e = model.call(given(3, ROWS)).await.unwrap_err();
    let site = e.site.clone().unwrap();
    let (node, worker) = (site.node.unwrap(), site.worker.unwrap());
    assert!(node.starts_with("row"), "{e}");
    assert!(
        plan.bodies[0].parts.iter().any(|p| p.worker == worker),
        "{e}"
    );
    check_cause(&e, &node, &worker);
    assert!(e.message.contains(&ROWS.to_string()), "{e}");
    let some = model.partial().call(given(3, ROWS)).await.unwrap();
    let failed: Vec<&str> = some.failed().map(|(name, _)| name).collect();
    assert_eq!(failed, ["y", "sizes"]);
    assert_eq!(
        some["beside"].as_ref().unwrap(),
        &model.call(given(0, 1)).await.unwrap()["beside"]
    );
    // The failed call leaves nothing behind.
    let want = &whole(Control::Loop, &[(2, 5)]).await[0];
    assert_eq!(model.call(given(2, 5)).await.unwrap(), *want);
    model.unload().await.unwrap();
    check_at_rest(&cluster).await;
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_loop_without_end_is_cancelled() {
    let _alone = ALONE.lock().await;
    let cluster = cluster(3, 1).await;
    let model = load(&cluster, Control::Loop).await;
    let want = &whole(Control::Loop, &[(2, 5)]).await[0];
    for _ in 0..3 {
        let endless = model.call(given(i64::MAX, 0));
        let late = Duration::from_millis(50);
        assert!(tokio::time::timeout(late, endless).await.is_err());
        // The window has room for two steps, of which each one that was cancelled must make way.
        assert_eq!(model.call(given(2, 5)).await.unwrap(), *want);
    }
    let options = CallOptions {
        deadline: Some(Duration::from_millis(50)),
        ..CallOptions::default()
    };
    let endless = model.call_with(given(i64::MAX, 0), options);
    let e = endless.await.unwrap_err();
    assert_eq!(e.code, Code::DeadlineExceeded, "{e}");
    model.unload().await.unwrap();
    check_at_rest(&cluster).await;
    cluster.shutdown().await;
}
