//! Real processes that have weights and programs already: another client and a longer axis load nothing, no program is
//! sent again, and memory counts once. Workers that see the files read them.

#![allow(clippy::unwrap_used, reason = "a test that fails here says where")]
#![allow(
    clippy::disallowed_methods,
    reason = "a test of real processes in real time"
)]

use crate::common;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use common::cluster::Processes;
use common::functions::{ROOM_FOR_ONE, SIDE, WEIGHT, layers};
use common::waits::await_status;
use convoke::graph::Function;
use convoke::{Attrs, Cluster, DType, HostTensor, Model, Operand, Source, Tensor};
use convoke_common::memory::Purpose;
use convoke_common::rpc::{ClusterStatus, WorkerStatus};

/// Layers of a model with 500 MiB of weights.
const LAYERS: usize = 125;
const ALL: u64 = WEIGHT * LAYERS as u64;

fn one_worker(name: &str, memory: &str) -> Processes {
    let mut processes = Processes::prepare(name, memory);
    processes.start_coordinator();
    processes.add_worker();
    processes
}

/// The worker's report, once it holds this many leases.
async fn report(cluster: &Cluster, leases: usize) -> WorkerStatus {
    let is = |w: &WorkerStatus| w.programs.len() == leases;
    let status = await_status(cluster, "leases", |s| {
        s.members[0].status.as_ref().is_some_and(is)
    });
    status.await.members[0].status.clone().unwrap()
}

fn counted(w: &WorkerStatus) -> [u64; 2] {
    [Purpose::Weights, Purpose::UnusedWeights].map(|p| w.memory_used.get(&p).copied().unwrap_or(0))
}

fn op(name: &str, operands: &[Operand<'_>]) -> convoke::Result<Tensor> {
    convoke::issue(name, Attrs::default(), operands, 1).map(|mut made| made.remove(0))
}

fn negate(t: &[Tensor]) -> convoke::Result<Tensor> {
    op("Neg", &[Operand::Tensor(&t[0])])
}

async fn load(cluster: &Cluster, (f, sources): &(Function, Vec<Source>), rows: i64) -> Model {
    let load = cluster.load_function(f.clone(), sources.clone());
    load.dim("rows", rows).in_flight(1).await.unwrap()
}

async fn call(model: &Model, rows: usize) -> HostTensor {
    let x: Vec<f32> = (0..rows * SIDE).map(|i| (i % 97) as f32 / 97.).collect();
    let x = HostTensor::from_slice(&[rows, SIDE], &x).unwrap();
    model.call([("x", x)]).await.unwrap()["y"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_client_loads_nothing_and_memory_counts_once() {
    let processes = one_worker("weights-two", "1GiB");
    let first = processes.connect().await;
    let second = processes.connect().await;
    let function = layers(LAYERS, &processes.scratch.path("weights"), 0);
    let mine = load(&first, &function, 4).await;
    let expected = call(&mine, 4).await;
    assert!(expected.bytes().iter().any(|b| *b != 0));
    let once = report(&first, 1).await;
    assert_eq!((once.loaded.clients, counted(&once)), (ALL, [ALL, 0]));
    assert_eq!(once.weights.shared_bytes, 0);
    let programs = once.program_store;
    assert_eq!((programs.held, programs.received), (1, 1));

    let theirs = load(&second, &function, 4).await;
    assert!(call(&theirs, 4).await == expected);
    let twice = report(&first, 2).await;
    assert_eq!((twice.loaded.clients, counted(&twice)), (ALL, [ALL, 0]));
    let weights = twice.weights;
    assert_eq!((weights.held_bytes, weights.shared_bytes), (ALL, ALL));
    let shared = twice.programs.iter().map(|p| p.shared_weights_bytes);
    assert_eq!(shared.collect::<Vec<u64>>(), [ALL; 2]);

    // They outlive their leases, and a later lease finds them.
    mine.unload().await.unwrap();
    theirs.unload().await.unwrap();
    let none = report(&first, 0).await;
    assert_eq!((counted(&none), none.weights.unused_bytes), ([0, ALL], ALL));
    let again = load(&second, &function, 4).await;
    assert!(call(&again, 4).await == expected);
    let thrice = report(&first, 1).await;
    assert_eq!(thrice.loaded.clients, ALL);
    assert_eq!(thrice.program_store, programs, "no program was sent again");
    again.unload().await.unwrap();
    first.shutdown().await;
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_with_the_weights_has_room_for_a_second_client_of_the_model() {
    let processes = one_worker("weights-tight", ROOM_FOR_ONE);
    let first = processes.connect().await;
    let second = processes.connect().await;
    // Two of these do not fit without sharing.
    let count = 12;
    let of_seed = |seed| {
        let file = format!("weights-{seed}");
        layers(count, &processes.scratch.path(&file), seed)
    };
    let function = of_seed(0);
    let mine = load(&first, &function, 4).await;
    let expected = call(&mine, 4).await;
    let theirs = load(&second, &function, 4).await;
    assert!(call(&theirs, 4).await == expected);
    let twice = report(&first, 2).await;
    let all = WEIGHT * count as u64;
    assert_eq!((twice.loaded.clients, counted(&twice)), (all, [all, 0]));
    let (other, sources) = of_seed(1);
    let other = second.load_function(other, sources).dim("rows", 4);
    let full = other.await.map(drop).unwrap_err();
    assert_eq!(full.code, convoke::Code::OutOfMemory, "{full}");
    assert!(
        full.message
            .contains("does not fit the memory that is free"),
        "{full}"
    );
    first.shutdown().await;
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_axis_beyond_its_bound_loads_no_weights() {
    let processes = one_worker("weights-axis", "1GiB");
    let cluster = processes.connect().await;
    let function = layers(LAYERS, &processes.scratch.path("weights"), 0);
    let model = load(&cluster, &function, 64).await;
    let short = call(&model, 64).await;
    assert!(short.bytes().iter().any(|b| *b != 0));
    let long = call(&model, 512).await;
    assert_eq!(long.shape(), [512, SIDE]);
    assert_eq!(long.bytes()[..short.byte_len()], *short.bytes());
    let after = report(&cluster, 1).await;
    assert_eq!((after.loaded.clients, counted(&after)), (ALL, [ALL, 0]));
    model.unload().await.unwrap();
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weights_that_nobody_uses_make_room_for_others() {
    let processes = one_worker("weights-room", ROOM_FOR_ONE);
    let cluster = processes.connect().await;
    // Two of these do not fit together.
    let count = 12;
    for seed in 0..3 {
        let file = format!("weights-{seed}");
        let function = layers(count, &processes.scratch.path(&file), seed);
        let model = load(&cluster, &function, 4).await;
        call(&model, 4).await;
        model.unload().await.unwrap();
        let left = report(&cluster, 0).await;
        let [weights, unused] = counted(&left);
        assert_eq!(weights, 0);
        assert!(unused >= WEIGHT * count as u64, "{left:?}");
        assert!(left.memory_peak <= left.memory_budget, "{left:?}");
    }
    // Handles and steps get that memory, too.
    let device = cluster.device("w0/cpu:0").unwrap();
    let handle = device
        .put(HostTensor::zeros(DType::U8, &[50 << 20]).unwrap())
        .unwrap();
    handle.ready().await.unwrap();
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_constant_that_becomes_a_handle_is_never_overwritten() {
    let processes = one_worker("weights-handle", "1GiB");
    let cluster = processes.connect().await;
    let count = 1 << 18;
    // The result is a constant, made at the install; the operand only says where.
    let f = cluster.function(move |t| {
        let shape = HostTensor::from_slice(&[1], &[count as i64])?;
        let operands = [HostTensor::scalar(2f32), shape].map(Operand::Value);
        let constant = op("Expand", &operands)?;
        Ok(vec![constant, negate(t)?])
    });
    let device = cluster.device("w0/cpu:0").unwrap();
    let x = device.put(vec![1f32]).unwrap();
    let made = f.call(std::slice::from_ref(&x)).await.unwrap().remove(0);
    let held = report(&cluster, 1).await;
    assert_eq!(counted(&held), [count * 4, 0]);
    assert_eq!(held.weights.shared_bytes, count * 4);
    // The handle is donated to a function that writes in place.
    let negates = cluster.function(|t| Ok(vec![negate(t)?]));
    let negates = negates.donate(0).unwrap();
    let negated = negates.call(&[made]).await.unwrap().remove(0);
    let values: Vec<f32> = negated.fetch().await.unwrap();
    assert!(values.iter().all(|v| *v == -2.));
    let again = f.call(&[x]).await.unwrap().remove(0);
    let values: Vec<f32> = again.fetch().await.unwrap();
    assert!(values.iter().all(|v| *v == 2.));
    cluster.shutdown().await;
}

/// A field of a message of protobuf, with its length.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let len = u8::try_from(content.len()).unwrap();
    assert!(len < 128);
    [&[number << 3 | 2, len], content].concat()
}

/// A field of a message of protobuf that is a number below 128.
fn number(field: u8, value: u8) -> Vec<u8> {
    vec![field << 3, value]
}

/// The dimensions of the model's tensors: weights of a few elements travel within the program.
const SHAPE: [u8; 3] = [64, 64, 16];
/// The elements of each of them.
const ELEMENTS: usize = 64 * 64 * 16;
/// The bytes of each of them.
const BYTES: u64 = 4 * ELEMENTS as u64;

/// The ONNX model `y = x + w`, whose `w` is the whole file `model.onnx_data`.
fn adding() -> Vec<u8> {
    let tensor = |name: &[u8]| {
        let shape = SHAPE.map(|n| field(1, &number(1, n))).concat();
        let of = [number(1, 1), field(2, &shape)].concat();
        [field(1, name), field(2, &field(1, &of))].concat()
    };
    let location = [field(1, b"location"), field(2, b"model.onnx_data")].concat();
    let weight = [
        SHAPE.map(|n| number(1, n)).concat(),
        number(2, 1),
        field(8, b"w"),
        field(13, &location),
        number(14, 1),
    ];
    let node = [
        field(1, b"x"),
        field(1, b"w"),
        field(2, b"y"),
        field(4, b"Add"),
    ];
    let graph = [
        field(1, &node.concat()),
        field(2, b"g"),
        field(5, &weight.concat()),
        field(11, &tensor(b"x")),
        field(12, &tensor(b"y")),
    ]
    .concat();
    let len = u8::try_from(graph.len() % 128).unwrap() | 128;
    let len = [len, u8::try_from(graph.len() / 128).unwrap()];
    let graph = [&[7 << 3 | 2], &len[..], &graph].concat();
    [number(1, 8), field(8, &number(2, 17)), graph].concat()
}

/// A cache as Hugging Face's hub has it, in `hub`: the files of a snapshot are links to `blobs`.
fn cache(hub: &Path) -> PathBuf {
    let repo = hub.join("models--a--b");
    let snapshot = repo.join("snapshots/x");
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir(repo.join("blobs")).unwrap();
    std::fs::write(repo.join("blobs/M"), adding()).unwrap();
    let weight: Vec<u8> = (0..ELEMENTS)
        .flat_map(|i| (i as f32).to_le_bytes())
        .collect();
    std::fs::write(repo.join("blobs/H"), weight).unwrap();
    symlink("../../blobs/M", snapshot.join("model.onnx")).unwrap();
    symlink("../../blobs/H", snapshot.join("model.onnx_data")).unwrap();
    snapshot.join("model.onnx")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_reads_weights_in_a_cache_of_hugging_faces_hub() {
    let mut processes = Processes::prepare("weights-hub", "1GiB");
    let at = |name: &str| processes.scratch.path(name);
    let (hub, copy, linked, outside) = (at("hub"), at("copy"), at("linked"), at("outside"));
    let model = cache(&hub);
    // Another worker has a copy of the cache, the next one a cache whose blob is a link that leads out of its root.
    cache(&copy);
    cache(&linked);
    let blob = linked.join("models--a--b/blobs/H");
    std::fs::rename(&blob, &outside).unwrap();
    symlink(&outside, &blob).unwrap();
    processes.start_coordinator();
    for root in [&hub, &copy, &linked] {
        processes.variables = vec![("CONVOKE_ARTIFACT_ROOT", root.to_str().unwrap().into())];
        processes.add_worker();
    }
    let cluster = processes.connect().await;
    for (worker, of_path) in [(0, true), (1, true), (2, false)] {
        let load = cluster.load(&model).artifact_root(&hub);
        let loaded = load.pin("*", format!("w{worker}")).await.unwrap();
        let x = HostTensor::from_slice(&SHAPE.map(usize::from), &[0.5f32; ELEMENTS]).unwrap();
        let y = loaded.call([("x", x)]).await.unwrap()["y"].clone();
        let want: Vec<f32> = (0..ELEMENTS).map(|i| i as f32 + 0.5).collect();
        assert!(y.as_slice::<f32>().unwrap() == want);
        let has = |s: &ClusterStatus| {
            let read = s.members[worker].status.as_ref().map(|w| w.loaded);
            let read = read.map(|read| (read.shared_path, read.clients));
            read == Some(if of_path { (BYTES, 0) } else { (0, BYTES) })
        };
        await_status(&cluster, "weights come from where they are", has).await;
        loaded.unload().await.unwrap();
    }
    // A link of the snapshot that leads anywhere else is refused, before any worker hears of it.
    let data = model.with_file_name("model.onnx_data");
    for target in [
        outside.to_str().unwrap(),
        "../../../../outside",
        "../../blobs/deeper/H",
    ] {
        let deeper = hub.join("models--a--b/blobs/deeper");
        std::fs::create_dir_all(&deeper).unwrap();
        std::fs::copy(&outside, deeper.join("H")).unwrap();
        std::fs::remove_file(&data).unwrap();
        symlink(target, &data).unwrap();
        let load = cluster.load(&model).artifact_root(&hub);
        let refused = load.await.map(drop).unwrap_err().to_string();
        assert!(refused.contains("a link leads out"), "{target}: {refused}");
    }
    cluster.shutdown().await;
}
