//! Loads models while a worker is killed and restarted at its address, as a supervisor does it.

use std::time::{Duration, Instant};

use convoke::{Cluster, ClusterStatus, Error, HostTensor as Tensor, Model, Outputs, Retry};
use convoke_common::rpc::MemberState;

use super::BOUND;
use super::cluster::Processes;
use super::functions::{product_chain, with_tables};
use super::waits::{await_status, is_free};

/// The side of the square tensors that steps pass on.
const SIDE: usize = 256;

/// The least bytes of weights that the worker has received when it is killed.
const BEGUN: u64 = 4 << 20;

/// A cluster of processes and a model whose weights take long enough to load.
pub struct Rig {
    processes: Processes,
    pub cluster: Cluster,
    tables: usize,
    /// The number of models that were loaded: each has tables of its own, of which no worker has any.
    models: u32,
    workers: u32,
    /// The outputs of a call after an undisturbed load.
    expected: Outputs,
}

/// The result of a load during which a worker was restarted.
#[derive(Debug)]
pub struct Round {
    /// The time from the kill until the call after the load had its result.
    pub took: Duration,
}

fn inputs() -> [(&'static str, Tensor); 2] {
    let value = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 500.0;
    let values: Vec<f32> = (0..SIDE * SIDE).map(value).collect();
    let x = Tensor::from_slice(&[SIDE, SIDE], &values).unwrap();
    let row = Tensor::from_slice(&[1], &[7i64]).unwrap();
    [("x", x), ("row", row)]
}

impl Rig {
    /// Starts `workers` workers that may use `memory` each, with a model of `tables` tables, each of 48 MiB.
    pub async fn start(name: &str, workers: usize, memory: &str, tables: usize) -> Rig {
        let processes = Processes::start(name, workers, memory);
        let cluster = processes.connect().await;
        let mut rig = Rig {
            processes,
            cluster,
            tables,
            models: 0,
            workers: workers as u32,
            expected: Outputs(vec![]),
        };
        let loaded = rig.builder().await.unwrap();
        rig.expected = loaded.call(inputs()).await.unwrap();
        loaded.unload().await.unwrap();
        rig
    }

    /// The load of a model whose tables no worker has.
    fn builder(&mut self) -> convoke::ModelBuilder {
        let chain = product_chain(SIDE, 4);
        let file = format!("tables-{}", self.models);
        let file = self.processes.scratch.path(&file);
        let (function, sources) = with_tables(chain, &file, SIDE, self.tables, self.models);
        self.models += 1;
        let load = self.cluster.load_function(function, sources);
        load.workers(self.workers)
    }

    /// The bytes of weights that each worker has received from its clients.
    async fn received(&self) -> Vec<u64> {
        let status = self.cluster.status().await.unwrap();
        let accounts = status.members.iter().map(|m| m.status.as_ref());
        accounts
            .map(|s| s.map_or(0, |s| s.loaded.clients))
            .collect()
    }

    /// Loads the model, kills the first worker that receives weights, restarts it after `pause`, and calls the model.
    pub async fn round(&mut self, pause: Duration, retry: Retry) -> Result<Round, Error> {
        let before = self.received().await;
        let load = self.builder().retry(retry);
        let load = tokio::spawn(async move { load.await });
        let end = Instant::now() + BOUND;
        let loads = loop {
            let now = self.received().await;
            let mut begun = now.iter().zip(&before).map(|(now, was)| now - was);
            if let Some(i) = begun.position(|bytes| bytes >= BEGUN) {
                break i;
            }
            assert!(!load.is_finished(), "the model was loaded too soon");
            assert!(Instant::now() < end, "no weights in {BOUND:?}");
        };
        assert!(!load.is_finished(), "the model was loaded too soon");
        self.processes.kill_worker(loads);
        let killed = Instant::now();
        tokio::time::sleep(pause).await;
        // `start_worker` returns when the worker has registered.
        tokio::task::block_in_place(|| self.processes.start_worker(loads));
        let loaded = async {
            let model = load.await.unwrap()?;
            let outputs = model.call(inputs()).await?;
            Ok::<(Model, Outputs), Error>((model, outputs))
        };
        let loaded = tokio::time::timeout(BOUND, loaded).await;
        let ended = loaded.expect("the load and its call end");
        let took = killed.elapsed();
        if let Ok((model, outputs)) = &ended {
            assert!(*outputs == self.expected, "other bits than without a fault");
            model.clone().unload().await.unwrap();
        }
        let ended = ended.map(|_| Round { took });
        let all = self.workers as usize;
        let free = |s: &ClusterStatus| {
            let there = s.members.iter().filter(|m| m.state == MemberState::Alive);
            there.filter(|m| is_free(m)).count() == all && s.leases.is_empty()
        };
        await_status(&self.cluster, "all workers are back and free", free).await;
        ended
    }
}
