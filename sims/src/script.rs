//! A client's script: it loads the client's models, makes its calls, and notes how each of them ended.
//!
//! A script runs on the client's host and ends with its process, but its notes stay. When the client starts again, a
//! new script makes the calls that had not begun.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use convoke::{CallOptions, Error, HostTensor as Tensor, Outputs, Retry};
use convoke_common::error::Code;
use futures::future::join_all;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::cluster::{Cluster, Task};
use crate::eager::{self, CallMode};
use crate::scenario::{CallSpec, ClientSpec, ModelUse};
use crate::workload::{AXIS_BOUND, Model, inputs};

/// How often a model is loaded again after a failure, and the pause before each further load.
const LOADS: usize = 4;
const LOAD_PAUSE: Duration = Duration::from_millis(400);

/// How a call or load ended.
#[derive(Debug, Clone)]
pub enum CallOutcome {
    Results(Vec<Tensor>),
    Failed(Error),
    /// The caller dropped the call.
    Dropped,
    /// The client's process ended first.
    Lost,
}

/// A call or a load of a model. Its times are since the scenario began.
#[derive(Debug, Clone)]
pub struct Record {
    pub client: usize,
    pub model: usize,
    /// Index of the call, or `None` for a load.
    pub call: Option<usize>,
    pub begun: Duration,
    pub ended: Option<(Duration, CallOutcome)>,
}

/// The records of all scripts; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Notes(Arc<Mutex<RecordLog>>);

#[derive(Debug, Default)]
struct RecordLog {
    records: Vec<Record>,
    /// Counts the changes of `records`.
    version: u64,
}

impl Notes {
    /// Locks the records for a change.
    fn noted(&self) -> MutexGuard<'_, RecordLog> {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.version += 1;
        noted
    }

    fn begin(&self, record: Record) -> usize {
        let records = &mut self.noted().records;
        records.push(record);
        records.len() - 1
    }

    fn end(&self, at: usize, when: Duration, ended: CallOutcome) {
        self.noted().records[at].ended = Some((when, ended));
    }

    /// Marks the calls and loads of a client's dead process as lost.
    pub fn lost(&self, client: usize, when: Duration) {
        let noted = &mut *self.noted();
        let open = noted.records.iter_mut().filter(|r| r.client == client);
        for r in open.filter(|r| r.ended.is_none()) {
            r.ended = Some((when, CallOutcome::Lost));
        }
    }

    /// Returns the current version and a copy of all records, unless `version` is current.
    pub fn changed(&self, version: u64) -> Option<(u64, Vec<Record>)> {
        let noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (noted.version != version).then(|| (noted.version, noted.records.clone()))
    }

    /// Returns a copy of all records.
    pub fn records(&self) -> Vec<Record> {
        let noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.records.clone()
    }
}

/// The models of a client, with their functions built.
pub type Models = Arc<Vec<Model>>;

struct Script {
    client: usize,
    spec: ClientSpec,
    models: Models,
    notes: Notes,
    /// When the scenario began, on this host's clock.
    zero: Instant,
}

/// Runs the rest of a client's script. The task is over once all calls and loads have ended and the models are
/// unloaded.
pub fn run(
    cluster: &Cluster,
    client: usize,
    spec: &ClientSpec,
    models: &Models,
    notes: &Notes,
    zero: Duration,
) -> Task<()> {
    let begun: Vec<usize> = notes
        .records()
        .iter()
        .filter(|r| r.client == client)
        .filter_map(|r| r.call)
        .collect();
    let (spec, models, notes) = (spec.clone(), models.clone(), notes.clone());
    let clock = cluster.clock();
    cluster.on_client(client as u16, move |c| async move {
        // This work may first have to wait until the client connects.
        let past = clock.now().saturating_sub(zero);
        let script = Script {
            client,
            spec,
            models,
            notes,
            zero: Instant::now() - past,
        };
        script.run(c, &begun).await;
    })
}

type LoadOutcome = Option<Result<convoke::Model, Error>>;

impl Script {
    fn now(&self) -> Duration {
        self.zero.elapsed()
    }

    fn at(&self, ms: u32) -> Instant {
        self.zero + Duration::from_millis(u64::from(ms))
    }

    async fn run(&self, cluster: convoke::Cluster, begun: &[usize]) {
        let slots: Vec<_> = self
            .models
            .iter()
            .map(|_| watch::channel::<LoadOutcome>(None))
            .collect();
        let loads = slots.iter().enumerate().map(|(i, (tell, _))| {
            let cluster = cluster.clone();
            async move {
                let loaded = self.load(&cluster, i).await;
                tell.send_replace(Some(loaded));
            }
        });
        let left = (0..self.spec.calls.len()).filter(|i| !begun.contains(i));
        let calls = left.map(|i| {
            let cluster = &cluster;
            let mut loaded = slots[self.spec.calls[i].model].1.clone();
            async move {
                sleep_until(self.at(self.spec.calls[i].at)).await;
                if let Some(how) = self.spec.calls[i].eager {
                    return self.eager(cluster, i, how).await;
                }
                let model = loaded.wait_for(Option::is_some).await.map(|m| m.clone());
                if let Ok(Some(Ok(model))) = model {
                    self.call(&model, i).await;
                }
            }
        });
        futures::join!(join_all(loads), join_all(calls));
        for (tell, _) in slots {
            if let Some(Ok(model)) = tell.send_replace(None) {
                // If the coordinator is away, it frees the lease when it notices that this client left.
                drop(model.unload().await);
            }
        }
    }

    async fn load(&self, cluster: &convoke::Cluster, i: usize) -> Result<convoke::Model, Error> {
        let used = &self.spec.models[i];
        sleep_until(self.at(used.at)).await;
        let mut tries = 1;
        loop {
            let note = self.notes.begin(Record {
                client: self.client,
                model: i,
                call: None,
                begun: self.now(),
                ended: None,
            });
            let load = builder(cluster, &self.models[i], used).into_future();
            let loaded = match used.gives_up.filter(|_| tries == 1) {
                None => load.await,
                Some(ms) => match timeout(Duration::from_millis(ms.into()), load).await {
                    Ok(loaded) => loaded,
                    Err(_) => {
                        self.notes.end(note, self.now(), CallOutcome::Dropped);
                        tries += 1;
                        continue;
                    }
                },
            };
            let ended = match &loaded {
                Ok(_) => CallOutcome::Results(vec![]),
                Err(e) => CallOutcome::Failed(e.clone()),
            };
            self.notes.end(note, self.now(), ended);
            match loaded {
                Err(e) if tries < LOADS && !is_final(used, e.code) => {
                    tries += 1;
                    tokio::time::sleep(LOAD_PAUSE).await;
                }
                loaded => return loaded,
            }
        }
    }

    fn begin_call(&self, i: usize) -> usize {
        self.notes.begin(Record {
            client: self.client,
            model: self.spec.calls[i].model,
            call: Some(i),
            begun: self.now(),
            ended: None,
        })
    }

    async fn eager(&self, cluster: &convoke::Cluster, i: usize, how: (CallMode, u64)) {
        let spec = &self.spec.calls[i];
        let note = self.begin_call(i);
        let model = &self.models[spec.model];
        let run = eager::run(cluster, model, given(model, spec), how);
        let ended = match spec.cancel {
            None => Some(run.await),
            Some(ms) => timeout(Duration::from_millis(ms.into()), run).await.ok(),
        };
        let ended = match ended {
            Some(Ok(results)) => CallOutcome::Results(results),
            Some(Err(e)) => CallOutcome::Failed(e),
            None => CallOutcome::Dropped,
        };
        self.notes.end(note, self.now(), ended);
    }

    async fn call(&self, model: &convoke::Model, i: usize) {
        let spec = &self.spec.calls[i];
        let note = self.begin_call(i);
        let given = given(&self.models[spec.model], spec);
        let options = CallOptions {
            deadline: spec.deadline.map(|ms| Duration::from_millis(ms.into())),
            retry: match spec.retry {
                true => Retry::On,
                false => Retry::Off,
            },
        };
        let call = model.call_with(given, options);
        let ended = match spec.cancel {
            None => ended(call.await),
            Some(ms) => match timeout(Duration::from_millis(ms.into()), call).await {
                Ok(answer) => ended(answer),
                Err(_) => CallOutcome::Dropped,
            },
        };
        self.notes.end(note, self.now(), ended);
    }
}

/// Whether a load need not be tried again: what it asks for does not exist, or it has waited long enough for its
/// workers.
fn is_final(used: &ModelUse, code: Code) -> bool {
    code == Code::InvalidArgument || code == Code::NoWorkers && used.workers.is_some()
}

fn ended(answer: Result<Outputs, Error>) -> CallOutcome {
    match answer {
        Ok(Outputs(results)) => CallOutcome::Results(results.into_iter().map(|(_, t)| t).collect()),
        Err(e) => CallOutcome::Failed(e),
    }
}

/// The inputs of a call.
pub fn given(model: &Model, spec: &CallSpec) -> Vec<(String, Tensor)> {
    inputs(model, spec.inputs, spec.axis, spec.sprung)
}

/// Builds the load of a model, as the scenario describes it.
fn builder(cluster: &convoke::Cluster, model: &Model, used: &ModelUse) -> convoke::ModelBuilder {
    let mut b = cluster
        .load_function(model.function.clone(), vec![])
        .numerics(convoke::Numerics::Exact)
        .in_flight(used.in_flight);
    if model.spec.dynamic {
        b = b.dim("n", AXIS_BOUND);
    }
    if let Some(n) = used.workers {
        b = b.workers(n.min(model.steps.len() as u32));
    }
    if let Some((node, worker)) = used.pin {
        let node = &model.steps[node as usize % model.steps.len()];
        // The name of a fused node lists those of the nodes that it is made of, which are the names to pin by.
        let first = node.split('+').next().unwrap_or_default();
        b = b.pin(first, format!("w{worker}"));
    }
    b
}

/// Loads a small model over `workers` workers on a client's host, calls it, and unloads it. Returns the results of the
/// call.
pub fn canary(
    cluster: &Cluster,
    client: u16,
    model: &Model,
    workers: u32,
) -> Task<Result<Vec<Tensor>, Error>> {
    let model = model.clone();
    let used = ModelUse {
        spec: model.spec,
        at: 0,
        workers: Some(workers),
        pin: None,
        in_flight: 1,
        gives_up: None,
    };
    cluster.on_client(client, move |c| async move {
        let loaded = builder(&c, &model, &used).await?;
        let given = inputs(&model, 1, 2, false);
        let Outputs(results) = loaded.call(given).await?;
        loaded.unload().await?;
        Ok(results.into_iter().map(|(_, t)| t).collect())
    })
}
