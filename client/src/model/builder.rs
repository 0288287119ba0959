//! How a model is loaded: where it comes from, and what its plan may look like.

use std::collections::BTreeMap;
use std::future::{Future, IntoFuture};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use convoke_common::error::{Code, Error, Result};
use convoke_common::rpc::{Numerics, Profiles, Stage, WorkerCount};
use convoke_graph::graph::Function;
use convoke_models::onnx::{BlockWidth, GivenInput, Origins, OutputForm};
use convoke_models::{LoadOptions, Source, onnx};

use crate::calls::function::Inner;
use crate::calls::options::{FunctionOptions, Retry};
use crate::cluster::Cluster;
use crate::cluster::callbacks::Progress;
use crate::cluster::presence::ClusterPresence;
use crate::model::Model;
use crate::model::phase::Phase;

/// How long a load waits for the number of workers that it asks for.
const WORKERS_BOUND: Duration = Duration::from_secs(30);

/// The source of a model.
pub(crate) enum Origin {
    /// An ONNX file.
    File(PathBuf),
    /// A function, and the files that its literals are ranges of.
    Function(Arc<Function>, Vec<Source>),
}

/// A model that was read.
pub(crate) struct ReadModel {
    pub(crate) function: Arc<Function>,
    /// The files of the function's artifacts.
    pub(crate) sources: Vec<Source>,
    /// How the model's outputs are made of the function's results.
    pub(crate) outputs: Vec<OutputForm>,
    /// The stages that its file divides it into.
    stages: Vec<Stage>,
    /// This maps each node of the file to the nodes of the function that it became.
    pub(crate) origins: Origins,
}

/// The options of a load; await the builder to load the model.
#[must_use = "a model loads when its builder is awaited"]
pub struct ModelBuilder {
    pub(crate) cluster: Cluster,
    pub(crate) origin: Origin,
    pub(crate) weights: Vec<PathBuf>,
    pub(crate) artifact_root: Option<PathBuf>,
    pub(crate) inputs: BTreeMap<String, GivenInput>,
    pub(crate) without_others: bool,
    pub(crate) block_width: Option<BlockWidth>,
    pub(crate) outputs: Vec<OutputForm>,
    pub(crate) options: FunctionOptions,
}

impl Cluster {
    /// Loads an ONNX model. Options are set on the returned builder; awaiting the builder loads the model.
    pub fn load(&self, path: impl AsRef<Path>) -> ModelBuilder {
        ModelBuilder::new(self.clone(), Origin::File(path.as_ref().to_owned()))
    }

    /// Loads a function, whose artifacts are the files `sources`. Options are set on the returned builder; awaiting the
    /// builder loads the function, and fails where the function breaks an invariant.
    pub fn load_function(
        &self,
        function: impl Into<Arc<Function>>,
        sources: Vec<Source>,
    ) -> ModelBuilder {
        ModelBuilder::new(self.clone(), Origin::Function(function.into(), sources))
    }
}

impl ModelBuilder {
    pub(crate) fn new(cluster: Cluster, origin: Origin) -> ModelBuilder {
        ModelBuilder {
            cluster,
            origin,
            weights: vec![],
            artifact_root: None,
            inputs: BTreeMap::new(),
            without_others: false,
            block_width: None,
            outputs: vec![],
            options: FunctionOptions::default(),
        }
    }

    /// Binds initializers that have no data to the tensors of a safetensors file, by name. It has no effect on a
    /// function, whose files come with it.
    pub fn weights(mut self, path: impl Into<PathBuf>) -> Self {
        self.weights.push(path.into());
        self
    }

    /// Names a folder that workers started with the same `--artifact-root` see: they read weights beneath it
    /// themselves, and this client does not send them.
    pub fn artifact_root(mut self, path: impl Into<PathBuf>) -> Self {
        self.artifact_root = Some(path.into());
        self
    }

    /// Says how wide the blocks of channels are in a model that ONNX Runtime's optimizer wrote at its highest level,
    /// where the file leaves it open. It has no effect on models without such blocks.
    pub fn block_width(mut self, width: BlockWidth) -> Self {
        self.block_width = Some(width);
        self
    }

    /// Says that the input `name`, a sequence, holds a tensor of each of these ranks. In calls they are the inputs
    /// `name[0]`, `name[1]` and so on. Loading fails where the model has no such sequence, unless it has inputs of
    /// these names by themselves.
    pub fn sequence(mut self, name: impl Into<String>, ranks: impl Into<Vec<usize>>) -> Self {
        let given = GivenInput::Sequence(ranks.into());
        self.inputs.insert(name.into(), given);
        self
    }

    /// Says that calls give the input `name` a tensor of this rank. An input needs that whose rank the model does not
    /// declare, and one whose default is a constant of the model: without it, that constant is used, and calls cannot
    /// give another. It has no effect on other inputs.
    pub fn input(mut self, name: impl Into<String>, rank: usize) -> Self {
        self.inputs.insert(name.into(), GivenInput::Tensor(rank));
        self
    }

    /// Says that calls give the input `name` a tensor of this shape: as [`Self::input`] with its rank. Calls may give
    /// other sizes, unless these decide the rank of a tensor in the model: where the input is a list whose elements are
    /// a shape or axes, calls must give a list as long; where the size of an axis decides a rank in another way, calls
    /// must give that size, and the load tells [`Self::on_progress`] so.
    pub fn shape(mut self, name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        self.inputs
            .insert(name.into(), GivenInput::Shape(shape.into()));
        self
    }

    /// Leaves out an optional input. Loading fails where the model has no such input.
    pub fn without(mut self, name: impl Into<String>) -> Self {
        self.inputs.insert(name.into(), GivenInput::Nothing);
        self
    }

    /// Leaves out every optional input that is not named, as [`Self::without`] does.
    pub fn without_others(mut self) -> Self {
        self.without_others = true;
        self
    }

    /// Says how the model's outputs are made of the results of a function, as [`crate::OutputForm`] of an imported
    /// model does. Without it, each result is an output. It has no effect on a model's file.
    pub fn outputs(mut self, outputs: impl Into<Vec<OutputForm>>) -> Self {
        self.outputs = outputs.into();
        self
    }

    /// Uses exactly this many workers, each with at least one node. Without this option, the plan uses the fewest
    /// workers that fit the model, and one more only where that shortens the predicted step.
    pub fn workers(mut self, count: u32) -> Self {
        self.options.workers = WorkerCount::Exactly(count);
        self
    }

    /// Runs the nodes whose names match `pattern` (`*` matches anything) on `devices`: on one device, such as
    /// `w0/cpu:0`, or on those that the plan chooses from several, such as `w0`, `w*`, `cpu` or `w*/cpu`. Where several
    /// pins match a node, the first one counts.
    pub fn pin(mut self, pattern: impl Into<String>, devices: impl Into<String>) -> Self {
        self.options.pins.push((pattern.into(), devices.into()));
        self
    }

    /// Bounds a dynamic axis. By default the bound is twice the size that the first call needs; where that does not
    /// fit, a quarter more than this size, or just the size.
    pub fn dim(mut self, symbol: impl Into<String>, bound: i64) -> Self {
        self.options.bounds.insert(symbol.into(), bound);
        self
    }

    /// What the optimiser may do to values; [`Numerics::Standard`] by default.
    pub fn numerics(mut self, numerics: Numerics) -> Self {
        self.options.numerics = numerics;
        self
    }

    /// Lets devices of different numerics profiles compute the model together; the last bits of the results then depend
    /// on which device computes what. By default all devices of a model have one profile: the coordinator chooses the
    /// profile whose workers are the fastest together, and this model keeps to it when it is loaded again or runs
    /// again.
    pub fn mix_profiles(mut self, mix: bool) -> Self {
        self.options.profiles = match mix {
            true => Profiles::Mixed,
            false => Profiles::Uniform,
        };
        self
    }

    /// Uses devices of this numerics profile only, as [`crate::PartSummary::profile`] and the status name it.
    pub fn profile(mut self, profile: impl Into<String>) -> Self {
        self.options.profiles = Profiles::Profile(profile.into());
        self
    }

    /// Sets how many calls run at once, 2 by default; further calls wait.
    pub fn in_flight(mut self, steps: u32) -> Self {
        self.options.in_flight = steps.max(1);
        self
    }

    /// Sets what happens when a worker is lost while this builder, or [`Model::prepare`], loads the model. A call that
    /// has to load the model follows its own options.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.options.retry = retry;
        self
    }

    /// Where the model does not fit the memory that is free, waits until memory is released, at most for this time,
    /// behind the loads that wait already. Without this option the load fails. An hour is the longest time. Where a
    /// call has to load the model, it waits as well.
    pub fn wait(mut self, most: Duration) -> Self {
        self.options.wait = Some(most);
        self
    }

    /// Calls `tell` as loading proceeds, and when a step runs again, or the model was loaded again, because a worker
    /// was lost.
    ///
    /// The closure runs on the thread that awaits the load or the call, while that is awaited. While the closure takes
    /// long, outdated reports are left out. A panic in the closure is the error of the load or the call.
    #[track_caller]
    pub fn on_progress(mut self, tell: impl Fn(Phase) + Send + Sync + 'static) -> Self {
        let at = Location::caller();
        let what = format!("the progress closure at {}:{}", at.file(), at.line());
        self.options.progress = Progress::told(what, tell);
        self
    }

    /// Reads the model, and reports the parts of it that are ignored.
    pub(crate) async fn read(&self) -> Result<ReadModel> {
        match &self.origin {
            Origin::File(path) => {
                let imported = import(&self.cluster.session, path.clone(), self).await?;
                for remark in imported.remarks {
                    self.options.progress.note(Phase::Remark(remark));
                }
                Ok(ReadModel {
                    function: Arc::new(imported.function),
                    sources: imported.sources,
                    outputs: imported.outputs,
                    stages: imported.stages,
                    origins: imported.origins,
                })
            }
            Origin::Function(function, sources) => {
                let verified = function.verify();
                verified.map_err(|e| Error::new(Code::InvalidGraph, e.to_string()))?;
                let made: usize = self.outputs.iter().map(OutputForm::results).sum();
                if !self.outputs.is_empty() && made != function.results.len() {
                    let has = function.results.len();
                    let msg =
                        format!("the outputs are made of {made} results, the function has {has}");
                    return Err(Error::new(Code::InvalidArgument, msg));
                }
                Ok(ReadModel {
                    function: function.clone(),
                    sources: sources.clone(),
                    outputs: self.outputs.clone(),
                    stages: vec![],
                    origins: vec![],
                })
            }
        }
    }

    /// Imports the model and waits for its workers; plans nothing yet.
    pub(crate) async fn import(&self) -> Result<Inner> {
        let read = self.read().await?;
        self.prepared(read).await
    }

    /// Waits for the workers of a model that was read; plans nothing yet.
    pub(crate) async fn prepared(&self, read: ReadModel) -> Result<Inner> {
        let session = self.cluster.session.clone();
        let served = session.sources.serve(read.sources);
        if let WorkerCount::Exactly(need) = self.options.workers {
            let progress = self.options.progress.clone();
            let mut told = move |have| progress.note(Phase::Workers { have, need });
            session
                .await_workers(need, WORKERS_BOUND, &mut told)
                .await?;
        }
        let mut inner = Inner::new(&self.cluster, read.function, served, self.options.clone())?;
        inner.options.stages = read.stages;
        inner.outputs = read.outputs;
        Ok(inner)
    }

    async fn load(self) -> Result<Model> {
        let cluster = self.cluster.clone();
        let net = cluster.net.clone();
        let progress = self.options.progress.clone();
        let inner = net.run(async move { Model::begin(self.import().await?).await });
        Ok(Model {
            inner: progress.awaiting(&net, inner).await?,
            cluster,
        })
    }
}

impl IntoFuture for ModelBuilder {
    type Output = Result<Model>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Model>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.load())
    }
}

async fn import(
    session: &ClusterPresence,
    path: PathBuf,
    b: &ModelBuilder,
) -> Result<onnx::ImportedModel> {
    let hashing = b.options.progress.clone();
    let options = LoadOptions {
        weights: b.weights.clone(),
        cache_dir: None,
        artifact_root: b.artifact_root.clone(),
        inputs: b.inputs.clone(),
        without_others: b.without_others,
        block_width: b.block_width,
        progress: Some(Arc::new(move |p: convoke_models::Progress| {
            hashing.note(Phase::Hashing {
                done: p.done,
                total: p.total,
            });
        })),
    };
    let (done, result) = tokio::sync::oneshot::channel();
    session.world.store.run_blocking(Box::new(move || {
        // The receiver is gone when the load was given up.
        drop(done.send(onnx::load(&path, &options)));
    }));
    let result = result.await;
    Ok(result.map_err(|_| Error::internal("the importer ended without a result"))??)
}
