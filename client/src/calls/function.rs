//! A function as the client keeps it: its parameters and their sizes, and the lease that it runs under.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use convoke_common::error::{Code, Error, Result};
use convoke_common::rpc::{Intent, PlanOptions, PlanSummary, Profiles};
use convoke_graph::dim::Bindings;
use convoke_graph::graph::{Function, TensorType};
use convoke_graph::ops::{self, CustomOp};
use convoke_graph::program::{Axes, Unsolved};
use convoke_graph::{Dim, Printable, Tensor, printable};
use convoke_models::onnx::OutputForm;

use crate::calls::attempts::Attempts;
use crate::calls::holder::LeaseHolder;
use crate::calls::lease::Lease;
use crate::calls::options::{CallOptions, FunctionOptions, Retry};
use crate::calls::result::CallResult;
use crate::cluster::Cluster;
use crate::cluster::callbacks::Progress;
use crate::cluster::presence::ClusterPresence;
use crate::cluster::runtime::NetThread;
use crate::cluster::sources::ServedFiles;
use crate::model::signature::ArrayType;

/// A function with its options, its bounds, and the lease that it runs under.
pub(crate) struct Inner {
    pub(crate) session: Arc<ClusterPresence>,
    pub(crate) function: Arc<Function>,
    /// How the outputs are made of the function's results; none where each result is one.
    pub(crate) outputs: Vec<OutputForm>,
    pub(crate) options: PlanOptions,
    /// The bounds that the program asked for, by symbol. A call beyond a bound plans anew.
    pub(crate) bounds: BTreeMap<String, i64>,
    /// What happens when a worker is lost during a load that no call asked for.
    retry: Retry,
    /// How long a load waits for memory.
    pub(crate) wait: Option<Duration>,
    pub(crate) progress: Progress,
    /// The numerics profile of the devices that the function was first loaded on; every later plan keeps to it.
    profile: OnceLock<String>,
    /// Holds the lease, while there is one.
    pub(crate) holder: LeaseHolder,
    /// Serves the function's files as long as it may be loaded again.
    _served: ServedFiles,
    pub(crate) net: NetThread,
}

/// The room that the bound of an axis leaves, so that the next longer input does not plan anew at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Growth {
    Double,
    Quarter,
    None,
}

impl Growth {
    /// Each, with less room than the one before.
    pub(crate) const ALL: [Growth; 3] = [Growth::Double, Growth::Quarter, Growth::None];
}

impl Inner {
    pub(crate) fn new(
        cluster: &Cluster,
        function: Arc<Function>,
        served: ServedFiles,
        own: FunctionOptions,
    ) -> Result<Inner> {
        let inner = Inner {
            session: cluster.session.clone(),
            options: PlanOptions {
                intent: Intent::Install,
                workers: own.workers,
                pins: own.pins,
                stages: vec![],
                list_nodes: false,
                axes: Axes::default(),
                tighter: vec![],
                expected: vec![],
                numerics: own.numerics,
                in_flight: own.in_flight,
                avoid: vec![],
                ops: custom_ops(&function),
                profiles: own.profiles,
            },
            function,
            outputs: vec![],
            bounds: own.bounds,
            retry: own.retry,
            wait: own.wait,
            progress: own.progress,
            profile: OnceLock::new(),
            holder: LeaseHolder::default(),
            _served: served,
            net: cluster.net.clone(),
        };
        let symbols = inner.symbols();
        if let Some(unknown) = inner.bounds.keys().find(|k| !symbols.contains(k.as_str())) {
            let known: Vec<&str> = symbols.iter().map(|s| &**s).collect();
            let msg = format!(
                "the model has no dynamic axis '{}'; it has: {}",
                Printable(unknown),
                printable::list(known)
            );
            return Err(Error::new(Code::InvalidArgument, msg));
        }
        Ok(inner)
    }

    /// Returns the same for another function of the same artifacts, which are served as long as `self` is kept. These
    /// pins come before those of `self`, and the bounds replace its bounds.
    pub(crate) fn with_function(
        &self,
        function: Arc<Function>,
        bounds: BTreeMap<String, i64>,
        mut pins: Vec<(String, String)>,
    ) -> Inner {
        let mut options = self.options.clone();
        pins.append(&mut options.pins);
        options.pins = pins;
        Inner {
            session: self.session.clone(),
            function,
            outputs: vec![],
            options,
            bounds,
            retry: self.retry,
            wait: self.wait,
            progress: self.progress.clone(),
            profile: self.profile.clone(),
            holder: LeaseHolder::default(),
            _served: self.session.sources.serve(vec![]),
            net: self.net.clone(),
        }
    }

    /// The current lease, if there is one.
    pub(crate) fn lease(&self) -> Option<Arc<Lease>> {
        self.holder.lease()
    }

    /// The devices that the next plan may use.
    pub(crate) fn profiles(&self) -> Profiles {
        match self.profile.get() {
            Some(profile) => Profiles::Profile(profile.clone()),
            None => self.options.profiles.clone(),
        }
    }

    /// Notes on which devices the function was loaded.
    pub(crate) fn note_profile(&self, summary: &PlanSummary) {
        if let (Profiles::Uniform, Some(part)) = (&self.options.profiles, summary.parts.first()) {
            let _ = self.profile.set(part.profile.clone());
        }
    }

    /// The symbols of the parameters' dynamic axes.
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

    /// Returns the sizes of the dynamic axes for inputs of these types. An error names every problem.
    pub(crate) fn sizes<N: Into<String>, T: Into<ArrayType>>(
        &self,
        given: impl IntoIterator<Item = (N, T)>,
    ) -> Result<Bindings> {
        Ok(self.arrange(typed(given), ArrayType::clone)?.1)
    }

    /// Puts inputs, whose types `of` returns, into the order of the parameters, and binds the dynamic axes. An error
    /// names every problem.
    pub(crate) fn arrange<T>(
        &self,
        given: Vec<(String, T)>,
        of: impl Fn(&T) -> ArrayType,
    ) -> Result<(Vec<T>, Bindings)> {
        let f = &self.function;
        let (mut ordered, mut bindings, mut problems) = (Vec::new(), Bindings::new(), Vec::new());
        let mut named: BTreeMap<String, T> = BTreeMap::new();
        for (name, t) in given {
            match named.entry(name) {
                Entry::Vacant(place) => {
                    place.insert(t);
                }
                Entry::Occupied(place) => {
                    let name = Printable(place.key());
                    problems.push(format!("input '{name}' is given twice"));
                }
            }
        }
        for p in &f.params {
            let value = f.value(*p);
            let Some(t) = named.remove(&*value.name) else {
                problems.push(format!(
                    "input '{}' ({}) is missing",
                    Printable(&value.name),
                    value.ty
                ));
                continue;
            };
            let is = of(&t);
            let fits = is.dtype == value.ty.dtype
                && Axes::unify(&value.ty.shape, &is.shape, &mut bindings);
            if !fits {
                problems.push(format!(
                    "input '{}' is {is}, expected {}{}",
                    Printable(&value.name),
                    value.ty,
                    bound_text(&value.ty, &bindings)
                ));
            }
            ordered.push(t);
        }
        for name in named.keys() {
            problems.push(format!("the model has no input '{}'", Printable(name)));
        }
        if problems.is_empty() {
            let given: Vec<_> = ordered.iter().map(&of).collect();
            problems.extend(self.solved(&given, &mut bindings).err());
        }
        if problems.is_empty() {
            return Ok((ordered, bindings));
        }
        let names = f.params.iter().map(|p| &*f.value(*p).name);
        let advice = format!("the model's inputs are: {}", printable::list(names));
        Err(Error::new(Code::InvalidInput, problems.join("; ")).advise(advice))
    }

    /// Binds the axes that stand in expressions only. An error says what does not fit.
    fn solved(&self, given: &[ArrayType], bindings: &mut Bindings) -> Result<(), String> {
        let f = &self.function;
        let declared = || f.params.iter().map(|p| f.value(*p));
        let is_plain = |d: &Dim| d.as_const().is_some() || d.as_symbol().is_some();
        if declared().all(|value| value.ty.shape.iter().all(is_plain)) {
            return Ok(());
        }
        let pairs = declared().map(|value| value.ty.shape.as_slice());
        let pairs: Vec<_> = pairs.zip(given.iter().map(|is| &is.shape[..])).collect();
        let Err(unsolved) = Axes::solve(&pairs, bindings) else {
            return Ok(());
        };
        let (Unsolved::Differs(at) | Unsolved::Open(at)) = unsolved;
        let (Some(value), Some(is)) = (declared().nth(at), given.get(at)) else {
            return Ok(());
        };
        let (name, ty) = (Printable(&value.name), &value.ty);
        let bound = bound_text(ty, bindings);
        Err(match unsolved {
            Unsolved::Differs(_) => {
                format!("input '{name}' is {is}, a shape that {ty} has for no axis lengths{bound}")
            }
            Unsolved::Open(_) => format!(
                "input '{name}' is {is}, from which the lengths in {ty} do not follow{bound}: a length of its own has to be an \
                 axis of some input"
            ),
        })
    }

    /// Returns bounds of the dynamic axes that these sizes fit. One that was not given leaves room for this growth, and is no
    /// less than in `former` bounds.
    pub(crate) fn bounds_for(
        &self,
        bindings: &Bindings,
        growth: Growth,
        former: &Axes,
    ) -> BTreeMap<String, i64> {
        let mut bounds = self.bounds.clone();
        for (symbol, bound) in &former.bounds {
            let own = bounds.entry(symbol.to_string()).or_insert(*bound);
            *own = (*own).max(*bound);
        }
        for (symbol, size) in bindings {
            let room = match growth {
                Growth::Double => *size,
                Growth::Quarter => *size / 4,
                Growth::None => 0,
            };
            let wanted = size.saturating_add(room).max(1);
            let bound = bounds.entry(symbol.to_string()).or_insert(wanted);
            let given = self.bounds.get(symbol.as_ref());
            if given.is_none_or(|given| given < size) {
                *bound = (*bound).max(wanted);
            }
        }
        bounds
    }

    /// The attempts of a load that no call asked for.
    pub(crate) fn load_attempts(&self) -> Attempts {
        Attempts::new(&CallOptions {
            retry: self.retry,
            ..CallOptions::default()
        })
    }

    /// The outputs that are made of the results of a step.
    fn named<R: CallResult>(&self, results: Vec<R>) -> Result<Vec<(String, R)>> {
        if self.outputs.is_empty() {
            let names = self.function.results.iter().map(|(n, _)| n.clone());
            return Ok(names.zip(results).collect());
        }
        let mut results = results.into_iter();
        let mut named = Vec::with_capacity(self.outputs.len());
        for form in &self.outputs {
            match form.results() {
                1 => named.extend(results.next().map(|r| (form.name.clone(), r))),
                n => named.extend(R::assembled(form, results.by_ref().take(n).collect())?),
            }
        }
        Ok(named)
    }

    /// Runs one step, and runs it again where a worker is lost meanwhile.
    pub(crate) async fn call<R: CallResult>(
        &self,
        inputs: Vec<Tensor>,
        bindings: Bindings,
        options: CallOptions,
    ) -> Result<Vec<(String, R)>> {
        let mut attempts = Attempts::new(&options);
        loop {
            let held = self.ready(&bindings, &mut attempts).await?;
            let step = held
                .lease
                .step(inputs.clone(), &bindings, attempts.deadline());
            match step.await {
                Ok(results) => return self.named(results),
                Err(failed) => attempts.failed(failed)?,
            }
        }
    }
}

/// The custom ops of a function that this process defines.
fn custom_ops(f: &Function) -> Vec<CustomOp> {
    let names: BTreeSet<&str> = f.nodes.iter().map(|n| &*n.op).collect();
    let custom = names.into_iter().filter(|op| ops::is_custom(op));
    custom.filter_map(ops::lookup).map(CustomOp::of).collect()
}

/// Reduces inputs to their names and types.
pub(crate) fn typed<N: Into<String>, T: Into<ArrayType>>(
    given: impl IntoIterator<Item = (N, T)>,
) -> Vec<(String, ArrayType)> {
    let typed = |(name, t): (N, T)| (name.into(), t.into());
    given.into_iter().map(typed).collect()
}

/// Tells in words which sizes the other inputs bind the dynamic axes of a type to.
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
