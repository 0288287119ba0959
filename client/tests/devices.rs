//! Devices with memory of their own, on an embedded cluster: the same bits as on the CPU, errors with their causes, and
//! memory that is accounted for.
#![cfg(feature = "embedded")]
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::ty;
use convoke::devices::{
    CopiedCallback, Device, DeviceFailure, DeviceKernel, DeviceKind, DeviceLaunch, DeviceOp,
    DeviceQueue, DeviceStep, DeviceTensor, EventCallback, KernelSet, LaunchResults, Ledger,
    NUMERICS_PROFILE, Pool, Purpose, Share, SharedBlocks,
};
use convoke::graph::Function;
use convoke::{
    Attr, Attrs, Cluster, Code, DType, DeviceId, Dim, Embedded, HostTensor, Operand, Outputs,
    PlanSummary,
};
use convoke_common::rpc::{MemberState, MemberStatus};
use convoke_worker::device::simgpu::SimGpu;

async fn cluster(workers: usize, devices: &[&str]) -> Cluster {
    let devices = devices.iter().map(|d| d.parse::<DeviceId>().unwrap());
    let embedded = Embedded::new(workers).threads(1).devices(devices);
    embedded.memory(1 << 30).start().await.unwrap()
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fixtures")
        .join(name)
}

/// The inputs in a fixture's file of arrays, by name.
fn inputs(cluster_inputs: &[String], file: &Path) -> BTreeMap<String, HostTensor> {
    let arrays = convoke::numpy::read_npz(file).unwrap();
    let wanted = arrays
        .into_iter()
        .filter(|(name, _)| cluster_inputs.contains(name));
    wanted.collect()
}

/// The results of a fixture on all workers of a cluster whose workers have these devices.
async fn run(name: &str, workers: usize, devices: &[&str]) -> (Outputs, u64) {
    let cluster = cluster(workers, devices).await;
    let load = cluster.load(fixture(name).join("model.onnx"));
    let model = load.workers(workers as u32).await.unwrap();
    let names: Vec<String> = model.inputs().into_iter().map(|i| i.name).collect();
    let given = inputs(&names, &fixture(name).join("test.npz"));
    let made = model.call(given).await.unwrap();
    let peak = device_peak(&cluster).await;
    cluster.shutdown().await;
    (made, peak)
}

/// The most bytes that were ever in use on devices.
async fn device_peak(cluster: &Cluster) -> u64 {
    let members = cluster.status().await.unwrap().members;
    let all = members.into_iter().filter_map(|m| m.status?.device_memory);
    all.map(|memory| memory.peak).sum()
}

async fn check_bits(name: &str) {
    let (want, peak) = run(name, 1, &["cpu"]).await;
    assert_eq!(peak, 0);
    for (workers, devices) in [
        (1, &["simgpu"][..]),
        (3, &["simgpu"]),
        (3, &["cpu", "simgpu"]),
        (2, &["simgpu:1", "cpu:0"]),
    ] {
        let (made, peak) = run(name, workers, devices).await;
        assert_eq!(made, want, "{name} on {workers} of {devices:?}");
        assert!(
            peak > 0,
            "{name} on {workers} of {devices:?}: no device was used"
        );
    }
}

#[tokio::test]
async fn a_convolutional_network_has_the_bits_of_the_cpu() {
    check_bits("digits").await;
}

#[tokio::test]
async fn a_transformer_has_the_bits_of_the_cpu() {
    check_bits("mini_transformer").await;
}

/// A function of x: f32[n, 4] and at: i64[1] with the results `found` = |(-x)[at]| and `size` = |x|.
fn lookup() -> Function {
    let mut f = Function::default();
    let (n, four, one) = (Dim::sym("n"), Dim::Const(4), Dim::Const(1));
    let rows = ty(DType::F32, &[n, four.clone()]);
    let row = ty(DType::F32, &[one.clone(), four]);
    let x = f.add_value("x", rows.clone());
    let at = f.add_value("at", ty(DType::I64, &[one]));
    f.params = vec![x, at];
    let mut node =
        |name: &str, op: &str, inputs: &[_], ty: &_| common::node(&mut f, name, op, inputs, ty);
    let minus = node("minus", "Neg", &[x], &rows);
    let taken = node("taken", "Gather", &[minus, at], &row);
    let found = node("found", "Abs", &[taken], &row);
    let size = node("size", "Abs", &[x], &rows);
    f.results = vec![("found".into(), found), ("size".into(), size)];
    f
}

fn given(rows: usize, at: i64) -> [(&'static str, HostTensor); 2] {
    let x: Vec<f32> = (0..rows * 4).map(|i| i as f32 - 7.).collect();
    [
        ("x", HostTensor::from_slice(&[rows, 4], &x).unwrap()),
        ("at", HostTensor::from_slice(&[1], &[at]).unwrap()),
    ]
}

#[tokio::test]
async fn a_late_error_names_its_node_and_its_device() {
    let cluster = cluster(2, &["cpu", "simgpu"]).await;
    let load = cluster
        .load_function(lookup(), vec![])
        .numerics(convoke::Numerics::Exact);
    let model = load.pin("*", "w1").dim("n", 16).await.unwrap();
    let whole = model.call(given(8, 2)).await.unwrap();
    for _ in 0..3 {
        let e = model.call(given(8, 9)).await.unwrap_err();
        assert_eq!(e.code, Code::KernelFailed, "{e}");
        let site = e.site.as_ref().unwrap();
        assert_eq!(site.node.as_deref(), Some("taken"), "{e}");
        assert_eq!(site.worker.as_deref(), Some("w1"), "{e}");
        assert_eq!(site.device.as_deref(), Some("simgpu:0"), "{e}");
        // The next step finds nothing of the failed one.
        assert_eq!(model.call(given(8, 2)).await.unwrap(), whole);
    }
    // In a partial call only what depends on the node fails.
    let out = model.partial().call(given(8, 9)).await.unwrap();
    let failed: Vec<&str> = out.failed().map(|(name, _)| name).collect();
    assert_eq!(failed, ["found"]);
    assert_eq!(out["size"].as_ref().unwrap(), &whole["size"]);
    model.unload().await.unwrap();
    check_at_rest(&cluster).await;
    cluster.shutdown().await;
}

/// `found` is `x` times the number that a node on the host, `taken`, takes from `at` at `at`; it fails unless that is 0.
fn scaled() -> Function {
    let mut f = Function::default();
    let (n, one) = (Dim::sym("n"), Dim::Const(1));
    let rows = ty(DType::F32, &[n, Dim::Const(4)]);
    let x = f.add_value("x", rows.clone());
    let list = ty(DType::I64, std::slice::from_ref(&one));
    let at = f.add_value("at", list.clone());
    f.params = vec![x, at];
    let taken = common::node(&mut f, "taken", "Gather", &[at, at], &list);
    let number = common::node(&mut f, "number", "Cast", &[taken], &ty(DType::F32, &[one]));
    let cast = f.nodes.last_mut().unwrap();
    cast.attrs = Attrs::default().with("to", Attr::DType(DType::F32));
    let found = common::node(&mut f, "found", "Mul", &[x, number], &rows);
    let size = common::node(&mut f, "size", "Abs", &[x], &rows);
    f.results = vec![("found".into(), found), ("size".into(), size)];
    f
}

#[tokio::test]
async fn what_a_device_would_copy_back_is_lost_with_what_it_reads() {
    let cluster = cluster(1, &["simgpu"]).await;
    let load = cluster.load_function(scaled(), vec![]).dim("n", 16);
    let model = load.await.unwrap();
    let whole = model.call(given(8, 0)).await.unwrap();
    for _ in 0..3 {
        let partial = model.partial();
        let call = partial.call(given(8, 9));
        let out = tokio::time::timeout(Duration::from_secs(30), call).await;
        let out = out.unwrap().unwrap();
        let failed: Vec<&str> = out.failed().map(|(name, _)| name).collect();
        assert_eq!(failed, ["found"]);
        assert_eq!(out["size"].as_ref().unwrap(), &whole["size"]);
    }
    model.unload().await.unwrap();
    check_at_rest(&cluster).await;
    cluster.shutdown().await;
}

#[tokio::test]
async fn sizes_that_change_are_those_of_the_cpu() {
    let mut made = vec![];
    for device in ["cpu", "simgpu"] {
        let cluster = cluster(1, &[device]).await;
        let load = cluster
            .load_function(lookup(), vec![])
            .numerics(convoke::Numerics::Exact);
        let model = load.dim("n", 64).await.unwrap();
        let mut all = vec![];
        for rows in [1, 64, 3, 0, 17] {
            all.push(model.call(given(rows, 0)).await.map_err(|e| e.code));
        }
        made.push(all);
        cluster.shutdown().await;
    }
    assert_eq!(made[0], made[1]);
    assert_eq!(made[0].iter().filter(|m| m.is_ok()).count(), 4);
}

/// Waits until the devices have no memory in use: the thread that ran the last task of a lease may hold its memory for
/// a moment after the lease was released.
async fn check_at_rest(cluster: &Cluster) {
    let mut used = vec![];
    let rest = async {
        loop {
            let members = cluster.status().await.unwrap().members;
            let statuses = members.into_iter().filter_map(|m| m.status);
            let devices = statuses.filter_map(|s| s.device_memory);
            used = devices.map(|memory| memory.used).collect();
            if used
                .iter()
                .flat_map(BTreeMap::values)
                .all(|bytes| *bytes == 0)
            {
                return;
            }
        }
    };
    let rested = tokio::time::timeout(Duration::from_secs(10), rest).await;
    assert!(rested.is_ok(), "{used:?}");
}

/// A cluster of simulated GPUs with this much memory each, beside 1 GiB at their hosts.
async fn of_small_devices(workers: usize, device_memory: u64) -> Cluster {
    let embedded = Embedded::new(workers).threads(1).memory(1 << 30);
    let embedded = embedded.devices(["simgpu".parse().unwrap()]);
    let started = embedded.device_memory(device_memory).start();
    started.await.unwrap()
}

/// Loads and calls a fixture: its plan, and its results.
async fn planned_run(cluster: &Cluster, name: &str) -> convoke::Result<(PlanSummary, Outputs)> {
    let model = cluster.load(fixture(name).join("model.onnx")).await?;
    let names: Vec<String> = model.inputs().into_iter().map(|i| i.name).collect();
    let given = inputs(&names, &fixture(name).join("test.npz"));
    let made = model.call(given).await?;
    Ok((model.plan().await.unwrap(), made))
}

#[tokio::test]
async fn a_model_that_fits_hosts_and_not_one_device_is_split() {
    const MODEL: &str = "mini_transformer";
    let (want, _) = run(MODEL, 1, &["cpu"]).await;
    let roomy = of_small_devices(1, 1 << 30).await;
    let (plan, _) = planned_run(&roomy, MODEL).await.unwrap();
    roomy.shutdown().await;
    let whole = &plan.parts[0];
    assert_eq!(whole.device_memory, 1 << 30);
    assert!(
        whole.memory < whole.device_memory,
        "the host loads and packs"
    );
    let needed = whole.device_needed_bytes;
    // What is predicted suffices, to the byte.
    let exact = of_small_devices(3, needed).await;
    let (plan, made) = planned_run(&exact, MODEL).await.unwrap();
    assert_eq!((plan.parts.len(), made), (1, want.clone()));
    assert!(device_peak(&exact).await <= needed);
    exact.shutdown().await;
    // The weights alone do not fit one device, so that no smaller bounds of axes help.
    let less = whole.weights_bytes / 16 * 15;
    let split = of_small_devices(4, less).await;
    let (plan, made) = planned_run(&split, MODEL).await.unwrap();
    assert!(plan.parts.len() > 1, "{plan:?}");
    for part in &plan.parts {
        assert!(part.device_needed_bytes <= less, "{part:?}");
        assert_eq!((part.device_memory, part.device_free), (less, less));
        assert!(part.memory > less, "{part:?}");
    }
    assert_eq!(made, want);
    let members = split.status().await.unwrap().members;
    let offered = members.iter().map(|m| (m.device_memory, m.memory > less));
    assert!(offered.into_iter().all(|o| o == (less, true)));
    split.shutdown().await;
    // One device alone is refused, and the error says which memory is short.
    let alone = of_small_devices(1, less).await;
    let e = planned_run(&alone, MODEL).await.unwrap_err();
    assert_eq!(e.code, Code::ClusterTooSmall, "{e}");
    assert!(e.message.contains("on its device simgpu:0"), "{e}");
    assert!(e.advice.contains("(raise --device-memory)"), "{e}");
    alone.shutdown().await;
}

/// A simulated GPU that has no kernel for products, and that is measured.
struct WithoutProducts(SimGpu);

impl Device for WithoutProducts {
    fn kernels(&self) -> KernelSet {
        let all = convoke_graph::ops::all();
        let products = |name: &str| name.contains("MatMul") || name.contains("Gemm");
        let lacks = all.filter(|def| products(def.name));
        KernelSet::all_except(lacks.map(|def| (def.name, DType::ALL.into_iter().collect())))
    }

    fn shared_blocks(&self) -> SharedBlocks {
        self.0.shared_blocks()
    }

    fn resolve(&self, op: &DeviceOp<'_>) -> Option<DeviceKernel> {
        let dtype = op.operands.first().copied().flatten();
        let has = self.kernels().contains(op.def.name, dtype);
        has.then(|| self.0.resolve(op)).flatten()
    }

    fn open(
        &self,
        share: &Share,
        memory: &Ledger,
        purpose: Purpose,
        bytes: u64,
    ) -> convoke::Result<Arc<dyn DeviceQueue>> {
        self.0.open(share, memory, purpose, bytes)
    }
}

#[tokio::test]
async fn weights_that_a_device_has_no_kernel_for_take_none_of_its_memory() {
    const MODEL: &str = "mini_transformer";
    let kind = DeviceKind::new("narrow", NUMERICS_PROFILE, |context| {
        Ok(Arc::new(WithoutProducts(SimGpu::new(
            context.compute.clone(),
        ))))
    });
    convoke::devices::register(kind).unwrap();
    let start = async |device: &str, memory: u64| {
        let embedded = Embedded::new(1).threads(1).memory(1 << 30);
        let embedded = embedded.devices([device.parse().unwrap()]);
        embedded.device_memory(memory).start().await.unwrap()
    };
    let whole = start("simgpu", 1 << 30).await;
    let (plan, want) = planned_run(&whole, MODEL).await.unwrap();
    let weights = plan.parts[0].weights_bytes;
    let whole_needed = plan.parts[0].device_needed_bytes;
    whole.shutdown().await;
    let narrow = start("narrow", 1 << 30).await;
    let (plan, made) = planned_run(&narrow, MODEL).await.unwrap();
    let part = &plan.parts[0];
    assert!(part.device_needed_bytes + weights / 4 < whole_needed);
    assert!(part.needed_bytes >= part.activation_bytes + weights);
    assert_eq!(made, want);
    // The status has the speed that was measured.
    let member = narrow.status().await.unwrap().members.remove(0);
    assert!(member.flops > 0.0 && member.memory_bandwidth > 0.0);
    narrow.shutdown().await;
    // What is predicted suffices, to the byte.
    let exact = start("narrow", part.device_needed_bytes).await;
    let (_, made) = planned_run(&exact, MODEL).await.unwrap();
    assert_eq!(made, want);
    assert!(device_peak(&exact).await > 0);
    exact.shutdown().await;
}

#[tokio::test]
async fn what_does_not_fit_the_device_is_planned_elsewhere() {
    let small = Embedded::new(2)
        .threads(1)
        .memory(1 << 30)
        .devices(["simgpu", "cpu"].map(|d| d.parse().unwrap()))
        .device_memory(64 << 10);
    let cluster = small.start().await.unwrap();
    let rows = 1 << 14;
    let load = |pin: &'static str| {
        let load = cluster
            .load_function(lookup(), vec![])
            .numerics(convoke::Numerics::Exact);
        load.pin("*", pin).dim("n", rows as i64)
    };
    let e = load("w0").await.err().unwrap();
    assert_eq!(e.code, Code::ClusterTooSmall, "{e}");
    let load = cluster
        .load_function(lookup(), vec![])
        .numerics(convoke::Numerics::Exact);
    let model = load.dim("n", rows as i64).await.unwrap();
    let out = model.call(given(rows, 3)).await.unwrap();
    assert_eq!(out["size"].shape(), [rows, 4]);
    assert_eq!(device_peak(&cluster).await, 0);
    cluster.shutdown().await;
}

#[tokio::test]
async fn devices_are_named_and_chosen_by_their_kind() {
    let cluster = cluster(3, &["cpu", "simgpu"]).await;
    let names: Vec<String> = cluster
        .devices()
        .await
        .unwrap()
        .iter()
        .map(|d| d.name())
        .collect();
    assert_eq!(names, ["w0/cpu:0", "w1/simgpu:0", "w2/cpu:0"]);
    assert_eq!(cluster.device("simgpu").unwrap().name(), "w1/simgpu:0");
    assert_eq!(cluster.device_set("cpu").unwrap().devices().len(), 2);
    let load = cluster
        .load_function(lookup(), vec![])
        .numerics(convoke::Numerics::Exact);
    let model = load.pin("*", "kind:simgpu").dim("n", 8).await.unwrap();
    model.call(given(8, 1)).await.unwrap();
    assert!(device_peak(&cluster).await > 0);
    // So do ops that are issued one by one.
    let x = cluster.device("w1").unwrap().put([1f32, -2.]).unwrap();
    assert_eq!(
        x.abs().unwrap().fetch::<Vec<f32>>().await.unwrap(),
        [1., 2.]
    );
    cluster.shutdown().await;
}

/// The state of a device that works until it is broken.
#[derive(Default)]
struct BrittleState {
    broken: AtomicBool,
    /// How many tensors were copied to the host.
    copies: AtomicUsize,
}

/// A device that works until it is broken.
struct Brittle {
    whole: Arc<dyn Device>,
    state: Arc<BrittleState>,
}

struct BrittleQueue {
    whole: Arc<dyn DeviceQueue>,
    state: Arc<BrittleState>,
}

impl Device for Brittle {
    fn kernels(&self) -> KernelSet {
        self.whole.kernels()
    }

    fn shared_blocks(&self) -> SharedBlocks {
        self.whole.shared_blocks()
    }

    fn resolve(&self, op: &DeviceOp<'_>) -> Option<DeviceKernel> {
        self.whole.resolve(op)
    }

    fn open(
        &self,
        share: &Share,
        memory: &Ledger,
        purpose: Purpose,
        bytes: u64,
    ) -> convoke::Result<Arc<dyn DeviceQueue>> {
        Ok(Arc::new(BrittleQueue {
            whole: self.whole.open(share, memory, purpose, bytes)?,
            state: self.state.clone(),
        }))
    }
}

impl DeviceQueue for BrittleQueue {
    fn copy_in(&self, step: &Arc<DeviceStep>, node: u32, tensor: HostTensor) -> DeviceTensor {
        self.whole.copy_in(step, node, tensor)
    }

    fn launch(&self, launch: DeviceLaunch<'_>) -> LaunchResults {
        self.whole.launch(launch)
    }

    fn copy_out(
        &self,
        step: &Arc<DeviceStep>,
        node: u32,
        tensor: DeviceTensor,
        pool: &Pool,
        then: CopiedCallback,
    ) {
        self.state.copies.fetch_add(1, Ordering::Relaxed);
        if !self.state.broken.load(Ordering::Relaxed) {
            return self.whole.copy_out(step, node, tensor, pool, then);
        }
        let error = convoke::Error::new(Code::Wedged, "it fell off the bus");
        let failure = Arc::new(DeviceFailure {
            node,
            error: Some(error),
        });
        step.fail(&failure);
        then(Err(failure));
    }

    fn event(&self, then: EventCallback) {
        self.whole.event(then);
    }
}

/// Waits until these workers live and the others have ended.
async fn check_alive(cluster: &Cluster, want: &[bool]) {
    let states = async || -> Vec<bool> {
        let members = cluster.status().await.unwrap().members;
        let alive = |m: MemberStatus| m.state == MemberState::Alive;
        members.into_iter().map(alive).collect()
    };
    let ended = async { while states().await != want {} };
    let bound = Duration::from_secs(30);
    tokio::time::timeout(bound, ended).await.unwrap();
}

#[tokio::test]
async fn handles_of_a_device_that_fails_for_good_say_so() {
    let state = Arc::<BrittleState>::default();
    let shared = state.clone();
    let kind = DeviceKind::new("frail", NUMERICS_PROFILE, move |context| {
        Ok(Arc::new(Brittle {
            whole: Arc::new(SimGpu::new(context.compute.clone())),
            state: shared.clone(),
        }))
    });
    convoke::devices::register(kind).unwrap();
    let cluster = cluster(2, &["frail", "cpu"]).await;
    let (frail, other) = (cluster.device("w0").unwrap(), cluster.device("w1").unwrap());
    let x = frail.put(vec![1f32; 1 << 15]).unwrap();
    let y = x.neg().unwrap();
    // The host runs ops whose sizes data decide. They share one copy.
    let of_host = || convoke::issue("NonZero", Attrs::default(), &[Operand::Tensor(&y)], 1);
    let found: Vec<_> = (0..8).map(|_| of_host().unwrap().remove(0)).collect();
    for found in &found {
        assert_eq!(found.fetch::<Vec<i64>>().await.unwrap().len(), 1 << 15);
    }
    assert_eq!(state.copies.load(Ordering::Relaxed), 1);
    drop(found);
    let y = x.neg().unwrap();
    frail.synchronize().await.unwrap();
    state.broken.store(true, Ordering::Relaxed);
    let e = y.fetch::<Vec<f32>>().await.unwrap_err();
    assert_eq!(e.code, Code::Wedged, "{e}");
    let want = "worker w0 is wedged: its device frail:0 failed: it fell off the bus";
    assert!(e.message.contains(want), "{e}");
    check_alive(&cluster, &[false, true]).await;
    let sum = other.put([1f32, 2.]).unwrap().neg().unwrap();
    assert_eq!(sum.fetch::<Vec<f32>>().await.unwrap(), [-1., -2.]);
    cluster.shutdown().await;
}

#[tokio::test]
async fn a_device_that_fails_for_good_takes_its_worker_along_and_nothing_else() {
    let states: [Arc<BrittleState>; 2] = Default::default();
    let of_number = states.clone();
    let kind = DeviceKind::new("brittle", NUMERICS_PROFILE, move |context| {
        Ok(Arc::new(Brittle {
            whole: Arc::new(SimGpu::new(context.compute.clone())),
            state: of_number[context.number as usize].clone(),
        }))
    });
    convoke::devices::register(kind).unwrap();
    let cluster = cluster(2, &["brittle:0", "brittle:1"]).await;
    let reruns: Arc<Mutex<Vec<String>>> = Arc::default();
    let told = reruns.clone();
    let load = cluster
        .load_function(lookup(), vec![])
        .numerics(convoke::Numerics::Exact);
    let load = load.workers(1).dim("n", 16).on_progress(move |phase| {
        if let convoke::Phase::Rerun(rerun) = phase {
            told.lock().unwrap().push(rerun.cause.to_string());
        }
    });
    let model = load.await.unwrap();
    let part = async || model.plan().await.unwrap().parts[0].name.clone();
    let whole = model.call(given(8, 2)).await.unwrap();
    let first = part().await;
    let at = usize::from(first == "w1");
    states[at].broken.store(true, Ordering::Relaxed);
    assert_eq!(model.call(given(8, 2)).await.unwrap(), whole);
    assert_ne!(part().await, first);
    let told = reruns.lock().unwrap().clone();
    let want =
        format!("worker w{at} is wedged: its device brittle:{at} failed: it fell off the bus");
    assert!(told.len() == 1 && told[0].contains(&want), "{told:?}");
    check_alive(&cluster, &[at != 0, at != 1]).await;
    cluster.shutdown().await;
}
