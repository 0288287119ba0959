//! A cluster inside the calling process, whose coordinator and workers run the same code as in production. Workers
//! reach each other and the coordinator by QUIC on loopback; the client reaches the workers without the network.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use convoke_common::device_spec::DeviceId;
use convoke_common::error::{Code, Error, Result};
use convoke_common::identity::{Amount, Budget, Role};
use convoke_common::world::{NoCompute, World};
use convoke_coordinator::{Coordinator, CoordinatorConfig};
use convoke_worker::{Threads, Worker, WorkerConfig};
use futures::future::join_all;

use crate::cluster::Cluster;
use crate::cluster::presence::ClusterPresence;
use crate::cluster::runtime::NetThread;
use crate::eager::Sessions;

/// How long the parts of an embedded cluster may take to end.
const SHUTDOWN_BOUND: Duration = Duration::from_secs(5);
/// Bytes that an embedded worker may use by default: embedded clusters are for trying and testing.
const MEMORY: u64 = 8 << 30;

/// The options of an embedded cluster.
#[derive(Debug, Clone)]
pub struct Embedded {
    workers: usize,
    threads: Option<usize>,
    memory: u64,
    devices: Vec<DeviceId>,
    device_memory: Option<u64>,
}

/// Starts an embedded cluster of `workers` workers, each with an equal share of the cores.
pub async fn embedded(workers: usize) -> Result<Cluster> {
    Embedded::new(workers).start().await
}

impl Embedded {
    /// The options of a cluster of `workers` workers, at least one.
    pub fn new(workers: usize) -> Embedded {
        Embedded {
            workers: workers.max(1),
            threads: None,
            memory: MEMORY,
            devices: vec![],
            device_memory: None,
        }
    }

    /// Sets the number of compute threads of each worker. By default the workers share the cores equally.
    pub fn threads(mut self, threads: usize) -> Embedded {
        self.threads = Some(threads.max(1));
        self
    }

    /// Sets the bytes that each worker may use, 8 GiB by default: for its programs, for the tensors that are put on it
    /// or computed there, and for an equal share of what the process takes without any of these.
    pub fn memory(mut self, bytes: u64) -> Embedded {
        self.memory = bytes;
        self
    }

    /// Sets the devices of the workers, `cpu:0` by default. Where there are fewer devices than workers, they are given
    /// out in turns: of `[cpu:0, simgpu:0]` the workers w0 and w2 have the first, w1 the second.
    pub fn devices(mut self, devices: impl IntoIterator<Item = DeviceId>) -> Embedded {
        self.devices = devices.into_iter().collect();
        self
    }

    /// Sets the bytes of memory of each device that is not the host itself; by default as many as [`Embedded::memory`].
    pub fn device_memory(mut self, bytes: u64) -> Embedded {
        self.device_memory = Some(bytes);
        self
    }

    fn device_of(&self, worker: usize) -> DeviceId {
        let turn = worker.checked_rem(self.devices.len());
        let device = turn.and_then(|turn| self.devices.get(turn));
        device.cloned().unwrap_or_default()
    }

    /// Starts the cluster, and connects to it.
    pub async fn start(self) -> Result<Cluster> {
        let world = World::of_one_process(Arc::new(NoCompute));
        let net = NetThread::start("convoke-net", world.clone())?;
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let threads = self.threads.unwrap_or((cores / self.workers).max(1));
        let (session, parts) = net.run(start(world, self, threads)).await?;
        let parts = Arc::new(parts);
        let cluster = Cluster {
            eager: Sessions::new(session.clone(), Some(parts.clone()), &net),
            session,
            embedded: Some(parts),
            net,
        };
        cluster.eager.note_members(&cluster.status().await?);
        Ok(cluster)
    }
}

/// The coordinator and the workers of an embedded cluster.
pub(crate) struct Parts(
    Mutex<
        Option<(
            convoke_coordinator::RunningCoordinator,
            Vec<convoke_worker::RunningWorker>,
        )>,
    >,
);

impl Parts {
    /// Ends the workers and the coordinator. Nobody else is connected to them and would have to be told.
    pub(crate) async fn shutdown(&self, net: &NetThread) {
        let parts = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((coordinator, workers)) = parts else {
            return;
        };
        let ended = net.run(async move {
            join_all(workers.iter().map(|w| w.stop(SHUTDOWN_BOUND))).await;
            coordinator.stop(SHUTDOWN_BOUND).await;
            Ok(())
        });
        // Each part ends within its bound. An error means that the thread is gone, and the parts with it.
        drop(ended.await);
    }
}

async fn start(
    world: World,
    config: Embedded,
    threads: usize,
) -> Result<(Arc<ClusterPresence>, Parts)> {
    let any: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
    let volatile = CoordinatorConfig {
        listen: any,
        state_dir: None,
        run_dir: None,
        token_dir: None,
    };
    let coordinator = Coordinator::start(world.clone(), volatile).await?;
    let address = coordinator.addr().to_string();
    let worker_token = coordinator.create_token(Role::Worker, None).await?;
    // The process belongs to its owner, so the client may use all of it.
    let all = Budget {
        memory: Some(Amount::Percent(100)),
        requests: Some(Amount::Percent(100)),
        sessions: Some(u32::MAX),
        ..Budget::default()
    };
    let client_token = coordinator
        .create_token_with(Role::Client, None, all)
        .await?;
    let mut workers = Vec::new();
    for i in 0..config.workers {
        let name = format!("w{i}");
        let pool = Threads::start(&name, threads)
            .map_err(|e| Error::new(Code::Io, format!("cannot start compute threads: {e}")))?;
        let own = World {
            compute: Arc::new(pool.clone()),
            ..world.clone()
        };
        let worker = WorkerConfig {
            name: Some(name),
            join: address.clone(),
            token: worker_token.clone(),
            state_dir: None,
            run_dir: None,
            cache_dir: None,
            cache_bytes: 0,
            artifact_root: None,
            device: config.device_of(i),
            device_memory: config.device_memory.unwrap_or(config.memory),
            memory: config.memory,
            sharers: u32::try_from(config.workers).unwrap_or(u32::MAX),
            listen: any,
            advertise: None,
            host: "embedded".into(),
            black_box: None,
        };
        workers.push(Worker::start(own, worker, Some(&pool)).await?);
    }
    let session = ClusterPresence::connect(world, &address, &client_token, None).await?;
    for w in &workers {
        w.add_local_client(&session.hub, session.sources.clone());
    }
    Ok((session, Parts(Mutex::new(Some((coordinator, workers))))))
}
