//! A client that takes all it can get of a worker: memory up to its budget and beyond, or compute.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use convoke::{Device, Error, Tensor};
use convoke_common::error::{Code, Result};
use convoke_graph::DType;
use convoke_graph::Tensor as HostTensor;
use futures::future::join_all;
use tokio_util::sync::CancellationToken;

use crate::cluster::{Cluster, Host, Task};
use crate::workload::{ModelSpec, inputs};

/// Elements of a tensor that the client sends, and of a tensor that is made at the worker.
const PUT: usize = 8 << 10;
const MADE: usize = 128 << 10;

/// One of this many tensors is sent; the others are made at the worker.
const PUTS: usize = 4;

/// How long the client pauses after a refusal.
const PAUSE: Duration = Duration::from_millis(40);

/// Calls that a flooding client has under way, and how many of them may run at once.
const CALLS: usize = 64;
const IN_FLIGHT: u32 = 16;

/// The tensors that a client knows to exist at the worker.
struct KnownTensors {
    tensors: Vec<(Tensor, u64)>,
    bytes: Arc<AtomicU64>,
}

impl KnownTensors {
    fn add(&mut self, tensor: Tensor, bytes: u64) {
        self.tensors.push((tensor, bytes));
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Drops all tensors but the first `len`.
    fn truncate(&mut self, len: usize) {
        for (tensor, bytes) in self.tensors.drain(len.min(self.tensors.len())..) {
            // The bytes are subtracted first, so that the count never exceeds what the worker holds.
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            drop(tensor);
        }
    }
}

impl Drop for KnownTensors {
    fn drop(&mut self) {
        self.truncate(0);
    }
}

/// A client that takes memory or compute of one worker until it is stopped.
pub struct Hog {
    pub client: Host,
    pub worker: Host,
    bytes: Arc<AtomicU64>,
    refused: Arc<Mutex<Vec<Error>>>,
    stop: CancellationToken,
    task: Task<()>,
}

impl Hog {
    /// Starts to take memory.
    pub(super) fn hoards(cluster: &Cluster, client: Host, worker: Host) -> Hog {
        Hog::begin(cluster, client, worker, hoard)
    }

    /// Starts to take compute.
    pub(super) fn floods(cluster: &Cluster, client: Host, worker: Host) -> Hog {
        Hog::begin(cluster, client, worker, flood)
    }

    fn begin<F>(
        cluster: &Cluster,
        client: Host,
        worker: Host,
        work: impl FnOnce(Work) -> F + Send + 'static,
    ) -> Hog
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (bytes, stop) = (Arc::<AtomicU64>::default(), CancellationToken::new());
        let refused = Arc::<Mutex<Vec<_>>>::default();
        let number = match client {
            Host::Client(i) => i,
            Host::Coordinator | Host::Worker(_) => 0,
        };
        let (noted, stopped) = (refused.clone(), stop.clone());
        let kept = bytes.clone();
        let task = cluster.on_client(number, move |cluster| {
            work(Work {
                cluster,
                worker: worker.name(),
                kept,
                refused: noted,
                stop: stopped,
            })
        });
        Hog {
            client,
            worker,
            bytes,
            refused,
            stop,
            task,
        }
    }

    /// The bytes of tensors that the worker confirmed and that the client has not dropped.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the errors that the client's requests met since the last call.
    pub fn refused(&self) -> Vec<Error> {
        std::mem::take(&mut *self.refused.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Tells the client to give everything back. Returns whether it has.
    pub(super) fn stop(&self) -> bool {
        self.stop.cancel();
        self.task.is_over()
    }
}

/// The state of a hog on the client's host.
struct Work {
    cluster: convoke::Cluster,
    worker: String,
    kept: Arc<AtomicU64>,
    refused: Arc<Mutex<Vec<Error>>>,
    stop: CancellationToken,
}

impl Work {
    fn refuses(&self, error: Error) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.push(error);
    }

    async fn device(&self) -> Result<Device> {
        let devices = self.cluster.devices().await?;
        let there = devices.into_iter().find(|d| d.worker() == self.worker);
        there.ok_or_else(|| Error::new(Code::NoWorkers, "the worker is not there"))
    }
}

async fn hoard(work: Work) {
    let mut kept = KnownTensors {
        tensors: Vec::new(),
        bytes: work.kept.clone(),
    };
    let takes = async {
        for n in 0.. {
            match take(&work, n).await {
                Ok((tensor, bytes)) => kept.add(tensor, bytes),
                Err(e) => {
                    // It drops half of its tensors, and then has room to take memory again.
                    let left = match e.code {
                        Code::OutOfMemory => kept.tensors.len() / 2,
                        _ => 0,
                    };
                    kept.truncate(left);
                    work.refuses(e);
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    };
    let _ = work.stop.run_until_cancelled(takes).await;
}

/// Takes one more tensor, and returns it with its size in bytes.
async fn take(work: &Work, n: usize) -> Result<(Tensor, u64)> {
    let device = work.device().await?;
    let (tensor, elements) = match n % PUTS {
        0 => (device.put(HostTensor::zeros(DType::F32, &[PUT])?)?, PUT),
        _ => (device.zeros([MADE], DType::F32)?, MADE),
    };
    tensor.ready().await?;
    Ok((tensor, 4 * elements as u64))
}

async fn flood(work: Work) {
    let model = ModelSpec::narrow(7, 12).build();
    while !work.stop.is_cancelled() {
        let load = work
            .cluster
            .load_function(model.function.clone(), vec![])
            .workers(1)
            .in_flight(IN_FLIGHT)
            .pin(model.steps[0].clone(), work.worker.clone());
        let load = async move { load.await };
        if let Some(Ok(loaded)) = work.stop.run_until_cancelled(load).await {
            let calls = (0..CALLS).map(|i| {
                let (loaded, model) = (&loaded, &model);
                async move {
                    let given = || inputs(model, i as u64, 2, false);
                    while loaded.call(given()).await.is_ok() {}
                }
            });
            let _ = work.stop.run_until_cancelled(join_all(calls)).await;
            // If the coordinator is away, it frees the lease once it is back.
            drop(loaded.unload().await);
        }
        let _ = work
            .stop
            .run_until_cancelled(tokio::time::sleep(PAUSE))
            .await;
    }
}
