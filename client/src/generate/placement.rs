//! Where a decoder runs: a plan of its steps whose caches are read and kept at the same workers.

use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::Arc;

use convoke_common::error::{Code, Error, Result};
use convoke_common::grant::Participant;
use convoke_common::rpc::{Intent, PlanSummary};
use convoke_graph::Tensor as HostTensor;
use convoke_graph::dim::Bindings;
use convoke_graph::graph::Function;
use convoke_graph::program::{Axes, FetchFrom};

use crate::calls::attempts::Attempts;
use crate::calls::options::{CallOptions, Retry};
use crate::calls::step::{Call, CompiledFunction};
use crate::calls::worker_process::{WorkerProcess, named};
use crate::cluster::Cluster;
use crate::device::Device;
use crate::model::Model;
use crate::tensor::Tensor;
use crate::trace::TracedFunction;

use super::graph::{keeper, reader};
use super::layout::Layout;

/// How many tokens one call may take, and how many there may be in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    pub chunk: usize,
    pub all: usize,
}

impl Room {
    pub fn holds(&self, other: Room) -> bool {
        self.chunk >= other.chunk && self.all >= other.all
    }
}

/// A call is the last attempt by itself: without its caches it cannot run again.
const ONCE: CallOptions = CallOptions {
    deadline: None,
    retry: Retry::Off,
};

/// A plan of a decoder's steps.
pub(super) struct Placement {
    compiled: CompiledFunction,
    /// The device of each cache.
    homes: Vec<Device>,
    workers: Vec<Participant>,
    pub room: Room,
}

/// The failure of a placement or of a step, and the worker processes that further plans avoid.
pub(super) struct AttemptFailure {
    pub error: Error,
    pub unusable: Vec<WorkerProcess>,
}

impl From<Error> for AttemptFailure {
    fn from(error: Error) -> AttemptFailure {
        AttemptFailure {
            error,
            unusable: vec![],
        }
    }
}

/// Blames the workers that an error names.
fn blamed(error: Error, workers: &[Participant]) -> AttemptFailure {
    let site = error.site.as_ref().and_then(|s| s.worker.as_ref());
    let about = workers.iter().filter(|p| Some(&p.name) == site);
    AttemptFailure {
        unusable: about.map(named).collect(),
        error,
    }
}

impl Placement {
    /// Plans the steps of a model with this layout, and installs the plan. A first plan says where the caches are
    /// computed; the second one, which is installed, keeps them there. The model is told the numerics
    /// profile of the devices, which its later plans keep to.
    pub async fn make(
        loaded: &Model,
        layout: &Layout,
        steps: &Arc<Function>,
        room: Room,
        avoid: Vec<WorkerProcess>,
    ) -> Result<Placement, AttemptFailure> {
        let (cluster, base) = (&loaded.cluster, &loaded.inner);
        let model = &*base.function;
        // Times are predicted for a step that takes one token, which most do.
        let (past, new) = match layout.caches.is_empty() {
            true => (0, room.all),
            false => (room.all.saturating_sub(1), 1),
        };
        let usual = layout.usual_sizes(model, past, new)?;
        let chunk = room.chunk.min(room.all);
        let mut bounds: BTreeMap<String, i64> = BTreeMap::new();
        let prompt = layout.usual_sizes(model, room.all - chunk, chunk)?;
        // The caches before the first token are empty. Caches of a window then have room for the whole window.
        let kept = layout.sizes_after(model, &layout.usual_sizes(model, 0, 1)?);
        for sizes in [usual.clone(), prompt, kept] {
            for (symbol, size) in sizes {
                let bound = bounds.entry(symbol.to_string()).or_insert(size);
                *bound = (*bound).max(size).max(1);
            }
        }
        bounds.extend(base.bounds.iter().map(|(s, b)| (s.clone(), *b)));
        let first = base.with_function(steps.clone(), bounds.clone(), vec![]);
        let (asked, usual_sizes) = (avoid.clone(), usual.clone());
        let plan = cluster.net.run(async move {
            let plan = first
                .planned(&usual_sizes, &Axes::default(), asked, None, Intent::Explain)
                .await?;
            plan.check()?;
            Ok(plan)
        });
        let plan = plan.await?;
        let workers = plan.participants[..plan.participants.len().saturating_sub(1)].to_vec();
        let (mut homes, mut pins) = (Vec::new(), Vec::new());
        for (i, fetch) in plan
            .driver
            .fetches
            .iter()
            .take(layout.caches.len())
            .enumerate()
        {
            let worker = match fetch.from {
                FetchFrom::Worker { from, .. } => workers.get(usize::from(from)),
                FetchFrom::Param(_) => None,
            };
            let worker = worker.ok_or_else(|| Error::internal("a cache without a worker"))?;
            let home = Device(cluster.eager.at(worker));
            pins.push((reader(i), home.name()));
            pins.push((keeper(i), home.name()));
            homes.push(home);
        }
        let inner = Arc::new(base.with_function(steps.clone(), bounds, pins));
        let (installing, sizes) = (inner.clone(), usual);
        let ready = cluster.net.run(async move {
            let mut attempts = Attempts::avoiding(&ONCE, avoid);
            installing.ready(&sizes, &mut attempts).await.map(drop)
        });
        let installed = ready.await.map_err(|mut error| {
            // The pins were made for workers that were there a moment ago.
            if error.code == Code::InvalidArgument {
                error.code = Code::PeerLost;
            }
            error
        });
        installed.map_err(|e| blamed(e, &workers))?;
        if let Some(lease) = inner.lease() {
            base.note_profile(&lease.planned.summary);
        }
        let inner = Arc::into_inner(inner);
        let inner = inner.ok_or_else(|| Error::internal("an install that goes on"))?;
        let caches = layout.caches.iter();
        let results = caches
            .map(|c| model.ty(model.results[c.result].1).clone())
            .collect();
        let traced = TracedFunction {
            results,
            donated: (0..layout.caches.len()).collect(),
            ..TracedFunction::default()
        };
        Ok(Placement {
            compiled: CompiledFunction { traced, inner },
            homes,
            workers,
            room,
        })
    }

    /// Frees the memory that the plan reserves, and returns once it is free.
    pub async fn release(self, cluster: &Cluster) {
        let inner = self.compiled.inner;
        let released = cluster.net.run(async move { inner.holder.unload().await });
        if let Err(e) = released.await {
            // Each worker frees a lease whose driver gave it up, even where it cannot be told.
            tracing::debug!("a decoder's plan was given up untold: {e}");
        }
    }

    /// The names of the workers.
    pub fn workers(&self) -> Vec<String> {
        self.workers.iter().map(|w| w.name.clone()).collect()
    }

    /// How the steps are split, unless the lease is gone.
    pub fn plan(&self) -> Option<PlanSummary> {
        let lease = self.compiled.inner.lease();
        lease.map(|lease| lease.planned.summary.clone())
    }

    /// Whether the plan is installed, and all of its workers are there, as far as is known.
    pub fn serves(&self) -> bool {
        let lease = self.compiled.inner.lease();
        let there = |home: &Device| home.0.lost_because().is_none();
        lease.is_some_and(|lease| lease.holds(&Bindings::new())) && self.homes.iter().all(there)
    }

    /// Blames the workers that an error names, and those that this client has lost.
    pub fn blamed(&self, error: Error) -> AttemptFailure {
        let mut failed = blamed(error, &self.workers);
        let lease = self.compiled.inner.lease();
        let lost = lease.iter().flat_map(|l| l.unusable());
        failed.unusable.extend(lost);
        let gone = self.homes.iter().map(|home| &home.0);
        let gone = gone.filter(|session| session.lost_because().is_some());
        failed
            .unusable
            .extend(gone.map(|session| named(&session.participant)));
        failed
    }

    /// Makes caches before the first token, at their devices.
    pub fn caches(&self, model: &Function, layout: &Layout) -> Result<Vec<Tensor>> {
        let all = layout.caches.iter().zip(&self.homes);
        all.map(|(cache, home)| {
            let dtype = model.ty(model.params[cache.param]).dtype;
            home.zeros(layout.cache_shape(model, *cache, 0), dtype)
        })
        .collect()
    }

    /// Runs a step. Returns the logits of its last token, and the caches after it.
    pub async fn step(
        self: &Arc<Placement>,
        cluster: &Cluster,
        caches: Vec<Tensor>,
        fed: Vec<HostTensor>,
        sizes: Bindings,
    ) -> Result<(HostTensor, Vec<Tensor>), AttemptFailure> {
        let (me, of) = (self.clone(), cluster.clone());
        let step = Box::pin(async move {
            let call = Call {
                options: &ONCE,
                retained: &[],
                axes: &sizes,
                fed: &fed,
                at: Location::caller(),
            };
            let ended = me.compiled.step::<HostTensor>(&of, &caches, call).await;
            ended.map(|(handles, mut values)| (values.pop(), handles))
        });
        match cluster.compute(step).await {
            Ok((Some(logits), caches)) => Ok((logits, caches)),
            Ok((None, _)) => Err(Error::internal("a step without logits").into()),
            Err(error) => Err(self.blamed(error)),
        }
    }
}
