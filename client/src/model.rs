//! A model as a function that the cluster runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use convoke_common::Tensor;
use convoke_common::admission::call;
use convoke_common::dim::Bindings;
use convoke_common::error::{Code, Error, Result};
use convoke_common::graph::{Function, TensorType};
use convoke_common::memory::{Account, Pool};
use convoke_common::program::Axes;
use convoke_common::rpc::{self, PlanOptions, PlanSummary, Planned};
use convoke_common::rpc_transport::call_context;
use convoke_rendezvous::driver::Driver;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};

use crate::builder::{ModelBuilder, OnPhase, Phase};
use crate::cluster::Cluster;
use crate::runtime::NetThread;
use crate::session::Session;

/// How often progress of a loading model is asked for.
const PROGRESS_PERIOD: Duration = Duration::from_millis(200);

/// A loaded model. Dropping the last clone unloads it.
#[derive(Clone)]
pub struct Model {
    pub(crate) inner: Arc<Inner>,
    pub(crate) cluster: Cluster,
}

pub(crate) struct Inner {
    session: Arc<Session>,
    function: Arc<Function>,
    options: PlanOptions,
    /// Bounds asked for, by symbol; a call beyond them plans anew.
    bounds: BTreeMap<String, i64>,
    tell: OnPhase,
    lease: tokio::sync::Mutex<Option<Arc<Lease>>>,
    net: NetThread,
}

/// An installed plan. Dropping it gives back what it leased.
struct Lease {
    driver: Arc<Driver>,
    planned: Planned,
    /// Held for reading by each call, so that a lease is replaced between calls.
    calls: Arc<RwLock<()>>,
    session: Arc<Session>,
    net: NetThread,
}

impl Lease {
    async fn release(&self) -> Result<()> {
        self.driver.close();
        self.session.release(self.driver.lease()).await
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.driver.close();
        let (session, id) = (self.session.clone(), self.driver.lease());
        // A coordinator that is gone frees the lease when it notices this client's absence; one that was
        // asked already does nothing.
        self.net
            .detach(async move { drop(session.release(id).await) });
    }
}

/// A parameter or result: its name and type.
#[derive(Debug, Clone, PartialEq)]
pub struct Signature {
    /// Name as in the model.
    pub name: String,
    /// dtype and shape; dynamic axes by their symbols.
    pub ty: TensorType,
}

/// How one call is to run.
#[derive(Debug, Clone, Default)]
pub struct CallOptions {
    /// The call fails, and the step is cancelled everywhere, when it has not ended by then.
    pub deadline: Option<Duration>,
}

/// Results by name, in the model's order.
#[derive(Debug, Clone, PartialEq)]
pub struct Outputs(pub Vec<(String, Tensor)>);

impl Outputs {
    /// The result of this name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, t)| t)
    }
}

impl std::ops::Index<&str> for Outputs {
    type Output = Tensor;

    /// # Panics
    /// When there is no such result; [`Outputs::get`] does not.
    fn index(&self, name: &str) -> &Tensor {
        match self.get(name) {
            Some(t) => t,
            None => panic!("the model has no output '{name}'"),
        }
    }
}

impl Model {
    /// Plans and installs right away where every dynamic axis has its bound, else at the first call.
    pub(crate) async fn begin(inner: Inner) -> Result<Arc<Inner>> {
        if inner.unbounded(&inner.bounds).is_empty() {
            let axes = inner.bounds.clone();
            *inner.lease.lock().await = Some(inner.lease(axes).await?);
        }
        Ok(Arc::new(inner))
    }

    /// Parameters, in the model's order.
    pub fn inputs(&self) -> Vec<Signature> {
        let f = &self.inner.function;
        let sig = |v: &_| Signature {
            name: f.value(*v).name.to_string(),
            ty: f.ty(*v).clone(),
        };
        f.params.iter().map(sig).collect()
    }

    /// Results, in the model's order.
    pub fn outputs(&self) -> Vec<Signature> {
        let f = &self.inner.function;
        let sig = |(name, v): &(String, _)| Signature {
            name: name.clone(),
            ty: f.ty(*v).clone(),
        };
        f.results.iter().map(sig).collect()
    }

    /// Runs the model. Parameters by name; results once all have arrived.
    pub async fn call<N: Into<String>>(
        &self,
        inputs: impl IntoIterator<Item = (N, Tensor)>,
    ) -> Result<Outputs> {
        self.call_with(inputs, CallOptions::default()).await
    }

    /// As [`Model::call`], with options. Dropping the future cancels the step everywhere.
    pub async fn call_with<N: Into<String>>(
        &self,
        inputs: impl IntoIterator<Item = (N, Tensor)>,
        options: CallOptions,
    ) -> Result<Outputs> {
        let given: Vec<(String, Tensor)> = inputs.into_iter().map(|(n, t)| (n.into(), t)).collect();
        let (ordered, bindings) = self.inner.arrange(given)?;
        let inner = self.inner.clone();
        self.cluster
            .net
            .run(async move { inner.call(ordered, bindings, options).await })
            .await
    }

    /// Makes sure that a plan for inputs of these sizes is installed, and explains it. Inputs are only
    /// looked at for their shapes.
    pub async fn prepare<N: Into<String>>(
        &self,
        inputs: impl IntoIterator<Item = (N, Tensor)>,
    ) -> Result<PlanSummary> {
        let given: Vec<(String, Tensor)> = inputs.into_iter().map(|(n, t)| (n.into(), t)).collect();
        let (_, bindings) = self.inner.arrange(given)?;
        let inner = self.inner.clone();
        let lease = self
            .cluster
            .net
            .run(async move { inner.leased(&bindings).await });
        let (lease, _) = lease.await?;
        Ok(lease.planned.summary.clone())
    }

    /// The plan that is installed, where there is one already.
    pub async fn plan(&self) -> Option<PlanSummary> {
        self.inner
            .lease
            .lock()
            .await
            .as_ref()
            .map(|l| l.planned.summary.clone())
    }

    /// Frees everything that the model holds on the workers.
    pub async fn unload(self) -> Result<()> {
        let inner = self.inner.clone();
        let unloaded = self.cluster.net.run(async move {
            match inner.lease.lock().await.take() {
                Some(lease) => lease.release().await,
                None => Ok(()),
            }
        });
        unloaded.await
    }
}

impl Inner {
    pub(crate) fn new(
        session: Arc<Session>,
        function: Arc<Function>,
        b: &ModelBuilder,
    ) -> Result<Inner> {
        let inner = Inner {
            session,
            function,
            options: PlanOptions {
                workers: b.workers,
                pins: b.pins.clone(),
                axes: Axes::default(),
                exact: b.exact,
                in_flight: b.in_flight,
            },
            bounds: b.bounds.clone(),
            tell: b.tell.clone(),
            lease: tokio::sync::Mutex::new(None),
            net: b.cluster.net.clone(),
        };
        let symbols = inner.symbols();
        if let Some(unknown) = inner.bounds.keys().find(|k| !symbols.contains(k.as_str())) {
            let known: Vec<&str> = symbols.iter().map(|s| &**s).collect();
            let msg = format!(
                "the model has no dynamic axis '{unknown}'; it has: {}",
                known.join(", ")
            );
            return Err(Error::new(Code::InvalidArgument, msg));
        }
        Ok(inner)
    }

    /// The dynamic axes of the parameters.
    fn symbols(&self) -> BTreeSet<Arc<str>> {
        let mut all = BTreeSet::new();
        for p in &self.function.params {
            self.function
                .ty(*p)
                .shape
                .iter()
                .for_each(|d| d.symbols(&mut all));
        }
        all
    }

    pub(crate) fn unbounded(&self, bounds: &BTreeMap<String, i64>) -> Vec<Arc<str>> {
        self.symbols()
            .into_iter()
            .filter(|s| !bounds.contains_key(&**s))
            .collect()
    }

    /// Puts inputs into the order of the parameters and binds the dynamic axes; every problem is named.
    pub(crate) fn arrange(&self, given: Vec<(String, Tensor)>) -> Result<(Vec<Tensor>, Bindings)> {
        let f = &self.function;
        let mut given: BTreeMap<String, Tensor> = given.into_iter().collect();
        let (mut ordered, mut bindings, mut problems) = (Vec::new(), Bindings::new(), Vec::new());
        for p in &f.params {
            let value = f.value(*p);
            let Some(t) = given.remove(&*value.name) else {
                problems.push(format!("input '{}' ({}) is missing", value.name, value.ty));
                continue;
            };
            let fits = t.dtype() == value.ty.dtype
                && Axes::unify(&value.ty.shape, t.shape(), &mut bindings);
            if !fits {
                problems.push(format!(
                    "input '{}' is {}, expected {}{}",
                    value.name,
                    t.signature(),
                    value.ty,
                    bound_text(&value.ty, &bindings)
                ));
            }
            ordered.push(t);
        }
        for name in given.keys() {
            problems.push(format!("the model has no input '{name}'"));
        }
        if problems.is_empty() {
            return Ok((ordered, bindings));
        }
        let names: Vec<&str> = f.params.iter().map(|p| &*f.value(*p).name).collect();
        let advice = format!("the model's inputs are: {}", names.join(", "));
        Err(Error::new(Code::InvalidInput, problems.join("; ")).advise(advice))
    }

    async fn call(
        self: &Arc<Self>,
        inputs: Vec<Tensor>,
        bindings: Bindings,
        options: CallOptions,
    ) -> Result<Outputs> {
        let (lease, _call) = self.leased(&bindings).await?;
        let axes = &lease.planned.axes.bounds;
        let values = axes
            .iter()
            .map(|(s, _)| bindings.get(s).copied().unwrap_or(1))
            .collect();
        let results = lease.driver.call(inputs, values, options.deadline).await?;
        let names = self.function.results.iter().map(|(n, _)| n.clone());
        Ok(Outputs(names.zip(results).collect()))
    }

    /// The lease, replaced where these sizes exceed its bounds or a worker of it is gone; and the right to
    /// call it.
    async fn leased(
        &self,
        bindings: &Bindings,
    ) -> Result<(Arc<Lease>, Option<OwnedRwLockReadGuard<()>>)> {
        // Granted at once: a writer holds the slot meanwhile.
        let held = |l: &Arc<Lease>| (l.clone(), l.calls.clone().try_read_owned().ok());
        let mut slot = self.lease.lock().await;
        if let Some(lease) = &*slot {
            let within = |(s, b): &(Arc<str>, i64)| bindings.get(s).is_none_or(|v| v <= b);
            if lease.driver.broken().is_none() && lease.planned.axes.bounds.iter().all(within) {
                return Ok(held(lease));
            }
        }
        let bounds = self.bounds_for(bindings);
        if let Some(old) = slot.take() {
            if old.driver.broken().is_none() {
                // Calls that fit the old bounds end undisturbed.
                drop(old.calls.write().await);
            }
            // Its members may be gone, which the coordinator knows; a failure changes nothing here.
            drop(old.release().await);
        }
        let lease = self.lease(bounds).await?;
        *slot = Some(lease.clone());
        Ok(held(&lease))
    }

    /// Bounds of the dynamic axes that hold these sizes.
    pub(crate) fn bounds_for(&self, bindings: &Bindings) -> BTreeMap<String, i64> {
        let mut bounds = self.bounds.clone();
        for (symbol, size) in bindings {
            // Room to grow, so that the next longer input does not plan anew at once.
            let wanted = size.saturating_mul(2).max(1);
            let bound = bounds.entry(symbol.to_string()).or_insert(wanted);
            if *bound < *size {
                *bound = wanted;
            }
        }
        bounds
    }

    /// Plans under these bounds; nothing is installed.
    pub(crate) async fn planned(&self, bounds: BTreeMap<String, i64>) -> Result<Planned> {
        let client = self.session.coordinator().await?;
        (self.tell)(Phase::Planning);
        let mut options = self.options.clone();
        options.axes.bounds = bounds.into_iter().map(|(s, b)| (s.into(), b)).collect();
        let me = self.session.hub.me.incarnation;
        let context = call_context(rpc::PLAN_BOUND);
        let answer = client.plan(context, self.function.clone(), options, me);
        rpc::answer("the coordinator", answer.await)
    }

    /// Plans and installs under these bounds.
    async fn lease(&self, bounds: BTreeMap<String, i64>) -> Result<Arc<Lease>> {
        let session = &self.session;
        let planned = self.planned(bounds).await?;
        let client = session.coordinator().await?;
        let workers = &planned.participants[..planned.participants.len().saturating_sub(1)];
        // Linked before the install: workers ask this client for weights over these connections.
        let links = session.links(workers).await?;
        let plan = planned.plan;
        let install = client.install(call_context(rpc::INSTALL_BOUND), plan);
        tokio::pin!(install);
        let leased = loop {
            tokio::select! {
                biased;
                answer = &mut install => break rpc::answer("the coordinator", answer)?,
                () = tokio::time::sleep(PROGRESS_PERIOD) => {
                    if let Ok(Ok(p)) = client.progress(call(), plan).await {
                        (self.tell)(Phase::Loading { done: p.done, total: p.total });
                    }
                }
            }
        };
        let pool = Pool::new(&session.ledger, Account::Leases, 0)?;
        let driver = Driver::new(
            session.hub.clone(),
            leased.lease,
            planned.participants.clone(),
            planned.driver.clone(),
            planned.axes.clone(),
            leased.in_flight,
            links,
            pool,
        );
        Ok(Arc::new(Lease {
            driver,
            planned,
            calls: Arc::default(),
            session: session.clone(),
            net: self.net.clone(),
        }))
    }
}

/// Which sizes the dynamic axes of a type are bound to by other inputs.
fn bound_text(ty: &TensorType, bindings: &Bindings) -> String {
    let mut symbols = BTreeSet::new();
    ty.shape.iter().for_each(|d| d.symbols(&mut symbols));
    let bound: Vec<String> = symbols
        .iter()
        .filter_map(|s| bindings.get(s).map(|v| format!("{s} = {v}")))
        .collect();
    if bound.is_empty() {
        String::new()
    } else {
        format!(" with {}", bound.join(", "))
    }
}
