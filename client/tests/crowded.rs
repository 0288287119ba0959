//! Several clients on workers whose memory does not suffice for all of them at once: where their models are placed, how
//! they wait for memory, and what they are told.

#![allow(clippy::unwrap_used)]
#![cfg(feature = "embedded")]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use convoke::graph::Function;
use convoke::{
    Cluster, Code, DType, Error, HostTensor as Tensor, Model, ModelBuilder, Phase, TensorType,
    Token,
};
use convoke_common::device_spec::DeviceId;
use convoke_common::identity::{JoinToken, Role};
use convoke_common::world::{NoCompute, World};
use convoke_coordinator::{Coordinator, CoordinatorConfig, RunningCoordinator};
use convoke_graph::graph::{Attrs, Node, RunsAt};
use convoke_worker::{RunningWorker, Threads, Worker, WorkerConfig};
use tokio::sync::{MutexGuard, Notify};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const BOUND: Duration = Duration::from_secs(60);

/// A cluster whose members are in this process and know each other over the network alone.
struct Rig {
    coordinator: RunningCoordinator,
    _workers: Vec<RunningWorker>,
    token: JoinToken,
    /// Bytes that the workers offer, by name. They differ, because the resident memory of the process changes from time
    /// to time.
    offered: BTreeMap<String, u64>,
    _alone: MutexGuard<'static, ()>,
}

/// Held by the test that runs, so that no other takes memory meanwhile.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Starts a coordinator and the workers `w0`, `w1`, ….
async fn rig(workers: usize) -> Rig {
    let alone = ALONE.lock().await;
    let world = World::real(Arc::new(NoCompute));
    let config = CoordinatorConfig {
        listen: ANY,
        state_dir: None,
        run_dir: None,
        token_dir: None,
    };
    let coordinator = Coordinator::start(world.clone(), config).await.unwrap();
    let mut running = vec![];
    for i in 0..workers {
        let pool = Threads::start("w", 1).unwrap();
        let own = World {
            compute: Arc::new(pool.clone()),
            ..world.clone()
        };
        let config = WorkerConfig {
            name: Some(format!("w{i}")),
            join: coordinator.addr().to_string(),
            token: coordinator.create_token(Role::Worker, None).await.unwrap(),
            state_dir: None,
            run_dir: None,
            cache_dir: None,
            cache_bytes: 0,
            artifact_root: None,
            device: DeviceId::default(),
            device_memory: 0,
            memory: 256 << 20,
            sharers: 1,
            listen: ANY,
            advertise: None,
            host: "here".into(),
            black_box: None,
        };
        running.push(Worker::start(own, config, Some(&pool)).await.unwrap());
    }
    let token = coordinator.create_token(Role::Client, None).await.unwrap();
    let mut rig = Rig {
        coordinator,
        _workers: running,
        token,
        offered: BTreeMap::new(),
        _alone: alone,
    };
    let members = rig.client().await.status().await.unwrap().members;
    rig.offered = members.into_iter().map(|m| (m.name, m.memory)).collect();
    rig
}

impl Rig {
    async fn client(&self) -> Cluster {
        let token: Token = self.token.to_string().parse().unwrap();
        let address = self.coordinator.addr().to_string();
        convoke::connect(&address, token).await.unwrap()
    }

    /// A number of bytes that each worker can hold once, and none can hold twice.
    fn large_bytes(&self) -> usize {
        let least = self.offered.values().min().unwrap();
        // The holders of a token may have 96 % of a worker.
        ((self.most() / 2 + least / 100 * 96) / 2) as usize
    }

    fn most(&self) -> u64 {
        *self.offered.values().max().unwrap()
    }

    /// The builder of a model that a worker can hold once, and no worker can hold twice.
    fn large(&self, cluster: &Cluster) -> ModelBuilder {
        // The result takes the place of the parameter.
        let elements = self.large_bytes() / 4;
        cluster.load_function(tanh(elements), vec![]).in_flight(1)
    }
}

/// The function y = tanh(x) over this many elements.
fn tanh(elements: usize) -> Function {
    let ty = TensorType::fixed(DType::F32, &[elements]);
    let mut f = Function {
        name: "large".into(),
        ..Function::default()
    };
    let (x, y) = (f.add_value("x", ty.clone()), f.add_value("y", ty));
    f.params.push(x);
    f.nodes.push(Node {
        name: "tanh".into(),
        op: "Tanh".into(),
        attrs: Attrs::default(),
        inputs: vec![Some(x)],
        outputs: vec![y],
        runs_at: RunsAt::Step,
    });
    f.results.push(("y".into(), y));
    f
}

async fn workers(model: &Model) -> Vec<String> {
    let plan = model.plan().await.unwrap();
    plan.parts.into_iter().map(|part| part.name).collect()
}

/// Loads a model in a task. Returns the task, and a notification that it waits.
fn waiting(
    builder: ModelBuilder,
) -> (
    tokio::task::JoinHandle<Result<Model, Error>>,
    Arc<Notify>,
    Arc<Mutex<Vec<String>>>,
) {
    let (waits, causes) = (
        Arc::new(Notify::new()),
        Arc::<Mutex<Vec<String>>>::default(),
    );
    let (tell, told) = (waits.clone(), causes.clone());
    let builder = builder.on_progress(move |phase| {
        if let Phase::Waiting { cause, .. } = phase {
            told.lock().unwrap().push(cause.message);
            tell.notify_one();
        }
    });
    let load = tokio::spawn(async move { builder.await });
    (load, waits, causes)
}

async fn within<F: IntoFuture>(work: F) -> F::Output {
    tokio::time::timeout(BOUND, work.into_future())
        .await
        .expect("in time")
}

/// Waits until this many loads wait for memory at the coordinator.
async fn await_queued(rig: &Rig, count: usize) {
    let queued = async {
        loop {
            let tables = rig.coordinator.tables().await.unwrap();
            if tables.contains(&("loads that wait", count)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(queued).await;
}

#[tokio::test]
async fn a_full_worker_is_not_planned_on_and_whoever_waits_gets_what_is_released() {
    let rig = rig(2).await;
    let clients = [rig.client().await, rig.client().await, rig.client().await];
    let first = within(rig.large(&clients[0])).await.unwrap();
    let second = within(rig.large(&clients[1])).await.unwrap();
    let mut used = [workers(&first).await, workers(&second).await].concat();
    used.sort();
    assert_eq!(used, ["w0", "w1"]);

    // Both are full: the third is told who has what.
    let full = within(rig.large(&clients[2])).await.map(drop).unwrap_err();
    assert_eq!(full.code, Code::OutOfMemory, "{full}");
    for part in ["it needs", "w0 has", "w1 has", "free (token", "client"] {
        assert!(full.message.contains(part), "{part}: {full}");
    }
    assert!(full.advice.contains("--wait"), "{full}");
    // A plan that is only shown says so, and is made all the same.
    let explained = rig.large(&clients[2]).explain::<&str, Tensor>([]);
    let explained = within(explained).await.unwrap();
    let part = &explained.parts[0];
    assert!(part.free < part.needed_bytes && part.needed_bytes <= part.memory);
    assert!(explained.warnings[0].contains("does not fit the memory that is free"));

    // Two wait, in order. The memory that the first client releases goes to the first of them, and the other waits on.
    let (third, waits, causes) = waiting(rig.large(&clients[2]).wait(BOUND));
    within(waits.notified()).await;
    assert!(causes.lock().unwrap()[0].contains("it needs"));
    await_queued(&rig, 1).await;
    let (fourth, waits, causes) = waiting(rig.large(&clients[1]).wait(BOUND));
    within(waits.notified()).await;
    assert_eq!(
        *causes.lock().unwrap(),
        ["1 load waits for memory before this one"]
    );
    await_queued(&rig, 2).await;
    let freed = workers(&first).await;
    within(first.unload()).await.unwrap();
    let third = within(third).await.unwrap().unwrap();
    assert_eq!(workers(&third).await, freed);
    await_queued(&rig, 1).await;
    assert!(!fourth.is_finished());
    // A client that goes away takes its leases and its place in the queue along.
    fourth.abort();
    await_queued(&rig, 0).await;
    let [_, b, c] = clients;
    let (fifth, waits, _) = waiting(rig.large(&b).wait(BOUND));
    within(waits.notified()).await;
    drop(third);
    c.shutdown().await;
    within(fifth).await.unwrap().unwrap();
}

#[tokio::test]
async fn clients_that_load_at_the_same_time_share_the_workers() {
    let rig = rig(2).await;
    let (a, b) = (rig.client().await, rig.client().await);
    for _ in 0..3 {
        let (first, second) = (rig.large(&a).into_future(), rig.large(&b).into_future());
        let (first, second) = within(futures::future::join(first, second)).await;
        let models = [first.unwrap(), second.unwrap()];
        let mut used = [workers(&models[0]).await, workers(&models[1]).await].concat();
        used.sort();
        assert_eq!(used, ["w0", "w1"]);
        for model in models {
            within(model.unload()).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_wait_for_memory_ends_in_time() {
    let rig = rig(1).await;
    let (a, b) = (rig.client().await, rig.client().await);
    let _first = within(rig.large(&a)).await.unwrap();
    let bound = Duration::from_millis(1500);
    let late = within(rig.large(&b).wait(bound)).await.map(drop);
    let late = late.unwrap_err();
    assert_eq!(late.code, Code::OutOfMemory, "{late}");
    assert!(
        late.message.starts_with("waited 1.5s for memory: "),
        "{late}"
    );
    // A load that would not even fit into empty workers fails at once.
    let elements = rig.most() as usize / 2;
    let never = b.load_function(tanh(elements), vec![]).wait(BOUND);
    let never = within(never).await.map(drop).unwrap_err();
    assert_eq!(never.code, Code::ClusterTooSmall, "{never}");
}

#[tokio::test]
async fn handles_of_eager_work_count_as_taken() {
    let rig = rig(2).await;
    let cluster = rig.client().await;
    let free = within(rig.large(&cluster)).await.unwrap();
    let [worker] = &workers(&free).await[..] else {
        panic!("it is not split");
    };
    within(free.unload()).await.unwrap();
    let elements = (rig.offered[worker] as usize - rig.large_bytes() / 2) / 4;
    let device = cluster.device(&format!("{worker}/cpu:0")).unwrap();
    let host = Tensor::zeros(DType::F32, &[elements]).unwrap();
    let handle = device.put(host).unwrap();
    within(handle.ready()).await.unwrap();
    let model = within(rig.large(&cluster)).await.unwrap();
    assert_ne!(format!("{}/cpu:0", workers(&model).await[0]), device.name());
    // A load waits for memory that was dropped a moment before.
    let next = rig.large(&cluster);
    drop(handle);
    within(next).await.unwrap();
}
