//! Imported models, which become parts of functions.

use std::collections::BTreeMap;
use std::future::{Future, IntoFuture};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use convoke_common::error::{Code, Error, Result};
use convoke_graph::graph::{Function as Graph, TensorType};
use convoke_graph::{Dim, Printable, printable};
use convoke_models::Source;

use crate::cluster::Cluster;
use crate::model::builder::{ModelBuilder, Origin};
use crate::model::phase::Phase;
use crate::model::signature::{Signature, signatures};
use crate::tensor::Tensor;
use crate::trace::traced::Function;

/// The options of an import; await the builder to import the model.
#[must_use = "a model is imported when this is awaited"]
pub struct ImportBuilder(ModelBuilder);

impl ImportBuilder {
    /// Binds initializers that have no data to the tensors of a safetensors file, as [`ModelBuilder::weights`] does.
    pub fn weights(self, path: impl Into<PathBuf>) -> Self {
        ImportBuilder(self.0.weights(path))
    }

    /// Names a folder from which workers read weights themselves, as [`ModelBuilder::artifact_root`] does.
    pub fn artifact_root(self, path: impl Into<PathBuf>) -> Self {
        ImportBuilder(self.0.artifact_root(path))
    }

    /// Calls `tell` while the model's files are read, on the thread that awaits the import.
    #[track_caller]
    pub fn on_progress(self, tell: impl Fn(Phase) + Send + Sync + 'static) -> Self {
        ImportBuilder(self.0.on_progress(tell))
    }
}

impl IntoFuture for ImportBuilder {
    type Output = Result<Imported>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Imported>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let cluster = self.0.cluster.clone();
            let progress = self.0.options.progress.clone();
            let read = cluster.net.run(async move { self.0.read().await });
            let read = progress.awaiting(&cluster.net, read).await?;
            if let Some(form) = read.outputs.iter().find(|form| form.results() > 1) {
                let name = Printable(&form.name);
                let msg = format!("the data decide how many tensors the output '{name}' has");
                return Err(Error::new(Code::UnsupportedOp, msg)
                    .advise("load the model by `load`, whose calls return them all"));
            }
            let model = Arc::new(Files {
                graph: read.function,
                sources: read.sources,
            });
            Ok(Imported { model, cluster })
        })
    }
}

/// An imported model, to apply to tensors in functions, or to make a function of. Its weights stay in its files until a
/// function that contains it runs. Clones share the model.
#[derive(Clone)]
pub struct Imported {
    model: Arc<Files>,
    cluster: Cluster,
}

struct Files {
    graph: Arc<Graph>,
    sources: Vec<Source>,
}

impl Cluster {
    /// Imports an ONNX model, to be a part of functions. Options are set on the returned builder; awaiting the builder
    /// imports the model.
    pub fn import(&self, path: impl AsRef<Path>) -> ImportBuilder {
        let origin = Origin::File(path.as_ref().to_owned());
        ImportBuilder(ModelBuilder::new(self.clone(), origin))
    }
}

impl Imported {
    /// The model's parameters, in their order.
    pub fn inputs(&self) -> Vec<Signature> {
        signatures(&self.model.graph).0
    }

    /// The model's results, in their order.
    pub fn outputs(&self) -> Vec<Signature> {
        signatures(&self.model.graph).1
    }

    /// Applies the model in the closure of a function, to operands that are given by the names of its inputs, and
    /// returns its results in their order. The model's nodes keep their names, its shapes follow from those of the
    /// operands, and a function that applies it several times has its weights once.
    #[track_caller]
    pub fn apply(&self, operands: &[(&str, &Tensor)]) -> Result<Vec<Tensor>> {
        self.model.apply(operands, Location::caller())
    }

    /// Returns a function of the model's inputs, in their order, to be called with tensors of devices. Its results have
    /// the same bits as those of the model when it is loaded with `.numerics(Numerics::Exact)`.
    #[track_caller]
    pub fn function(&self) -> Function {
        let (name, model) = (self.model.graph.name.clone(), self.model.clone());
        let at = Location::caller();
        let body = move |t: &[Tensor]| {
            let names = model.graph.params.iter();
            let names: Vec<&str> = names.map(|p| &*model.graph.value(*p).name).collect();
            if names.len() != t.len() {
                let (count, names) = (t.len(), printable::list(names));
                let msg = format!("the model has the inputs {names}, and is given {count} tensors");
                return Err(Error::new(Code::InvalidInput, msg));
            }
            let operands: Vec<_> = names.into_iter().zip(t).collect();
            model.apply(&operands, at)
        };
        Function::new(self.cluster.clone(), format!("model {name}"), body)
    }
}

impl Files {
    fn apply(&self, operands: &[(&str, &Tensor)], at: &Location<'_>) -> Result<Vec<Tensor>> {
        let ordered = arrange(&self.graph, operands)?;
        let traced = ordered.iter().find_map(Tensor::traced);
        let outside = || {
            let msg = "a model is applied in the closure of a function";
            Error::new(Code::InvalidArgument, msg)
                .advise("outside of one make a function of it by `function()`, and call that")
        };
        let trace = traced.ok_or_else(outside)?.trace.clone();
        trace.splice(&self.graph, &self.sources, &ordered, at)
    }
}

/// Puts the operands into the order of the parameters. An error names every problem.
fn arrange(graph: &Graph, operands: &[(&str, &Tensor)]) -> Result<Vec<Tensor>> {
    let mut given: BTreeMap<&str, &Tensor> = BTreeMap::new();
    let (mut ordered, mut problems) = (Vec::new(), Vec::new());
    for (name, t) in operands {
        if given.insert(name, t).is_some() {
            problems.push(format!("input '{}' is given twice", Printable(name)));
        }
    }
    let mut axes = BTreeMap::new();
    for p in &graph.params {
        let value = graph.value(*p);
        let Some(t) = given.remove(&*value.name) else {
            problems.push(format!(
                "input '{}' ({}) is missing",
                Printable(&value.name),
                value.ty
            ));
            continue;
        };
        if !fits(&value.ty, &t.ty(), &mut axes) {
            let (name, is) = (Printable(&value.name), t.ty());
            problems.push(format!("input '{name}' is {is}, expected {}", value.ty));
        }
        ordered.push(t.clone());
    }
    for name in given.keys() {
        problems.push(format!("the model has no input '{}'", Printable(name)));
    }
    if problems.is_empty() {
        return Ok(ordered);
    }
    let names = graph.params.iter().map(|p| &*graph.value(*p).name);
    let advice = format!("the model's inputs are: {}", printable::list(names));
    Err(Error::new(Code::InvalidInput, problems.join("; ")).advise(advice))
}

/// Whether a tensor of type `given` may be an input of type `declared`. `axes` are the dynamic axes that earlier inputs
/// bind. A symbol fits any other dimension, since the two may turn out equal.
fn fits(declared: &TensorType, given: &TensorType, axes: &mut BTreeMap<Arc<str>, Dim>) -> bool {
    let mut dims = declared.shape.iter().zip(&given.shape);
    declared.dtype == given.dtype
        && declared.shape.len() == given.shape.len()
        && dims.all(|(d, g)| match (d.as_symbol(), d.as_const()) {
            (Some(symbol), _) => {
                let before = axes.entry(symbol.clone()).or_insert_with(|| g.clone());
                before == g || before.as_const().is_none() || g.as_const().is_none()
            }
            (None, Some(_)) => d == g,
            (None, None) => true,
        })
}
