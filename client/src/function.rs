//! A function as the client has it: its parameters and their sizes, and the lease that it runs under.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use convoke_common::Tensor;
use convoke_common::dim::Bindings;
use convoke_common::error::{Code, Error, Result};
use convoke_common::graph::{Function, TensorType};
use convoke_common::ops::{self, CustomOp};
use convoke_common::program::Axes;
use convoke_common::rpc::PlanOptions;
use tokio::sync::Notify;

use crate::attempts::Attempts;
use crate::builder::{ModelBuilder, OnPhase};
use crate::lease::Lease;
use crate::model::{CallOptions, Outputs};
use crate::runtime::NetThread;
use crate::session::Session;
use crate::sources::Served;

/// See the module.
pub(crate) struct Inner {
    pub(crate) session: Arc<Session>,
    pub(crate) function: Arc<Function>,
    pub(crate) options: PlanOptions,
    /// Bounds asked for, by symbol; a call beyond them plans anew.
    pub(crate) bounds: BTreeMap<String, i64>,
    pub(crate) tell: OnPhase,
    lease: Mutex<Option<Arc<Lease>>>,
    /// Held while the lease is looked at, to be replaced where it does not do.
    pub(crate) loading: tokio::sync::Mutex<()>,
    /// Whoever loads, or waits for it, gives up.
    pub(crate) unloading: Notify,
    /// As long as it may be loaded again.
    _served: Served,
    pub(crate) net: NetThread,
}

impl Inner {
    pub(crate) fn new(
        session: Arc<Session>,
        function: Arc<Function>,
        served: Served,
        b: &ModelBuilder,
    ) -> Result<Inner> {
        let inner = Inner {
            session,
            options: PlanOptions {
                workers: b.workers,
                pins: b.pins.clone(),
                axes: Axes::default(),
                expected: vec![],
                exact: b.exact,
                in_flight: b.in_flight,
                avoid: vec![],
                ops: custom_ops(&function),
            },
            function,
            bounds: b.bounds.clone(),
            tell: b.tell.clone(),
            lease: Mutex::default(),
            loading: tokio::sync::Mutex::default(),
            unloading: Notify::new(),
            _served: served,
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

    /// The lease that there is.
    pub(crate) fn lease(&self) -> Option<Arc<Lease>> {
        let lease = self.lease.lock().unwrap_or_else(PoisonError::into_inner);
        lease.clone()
    }

    /// Puts one in its place. Answers the former.
    pub(crate) fn put_lease(&self, new: Option<Arc<Lease>>) -> Option<Arc<Lease>> {
        let mut lease = self.lease.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut lease, new)
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

    /// Runs one step, and again where a worker is lost over it.
    pub(crate) async fn call(
        &self,
        inputs: Vec<Tensor>,
        bindings: Bindings,
        options: CallOptions,
    ) -> Result<Outputs> {
        let mut attempts = Attempts::new(&options);
        loop {
            let held = self.ready(&bindings, &mut attempts).await?;
            let step = held
                .lease
                .step(inputs.clone(), &bindings, attempts.deadline());
            match step.await {
                Ok(results) => {
                    let names = self.function.results.iter().map(|(n, _)| n.clone());
                    return Ok(Outputs(names.zip(results).collect()));
                }
                Err(failed) => attempts.failed(failed)?,
            }
        }
    }
}

/// The custom ops of a function that are defined here.
fn custom_ops(f: &Function) -> Vec<CustomOp> {
    let names: BTreeSet<&str> = f.nodes.iter().map(|n| &*n.op).collect();
    let custom = names.into_iter().filter(|op| ops::is_custom(op));
    custom.filter_map(ops::lookup).map(CustomOp::of).collect()
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
