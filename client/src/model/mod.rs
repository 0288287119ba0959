//! Loaded models: functions that the cluster runs, with named inputs and outputs.

pub(crate) mod builder;
pub(crate) mod explain;

use std::sync::Arc;
use std::time::Duration;

use convoke_common::error::Result;
use convoke_common::rpc::PlanSummary;
use convoke_graph::dim::Bindings;
use convoke_graph::graph::{Function, TensorType, ValueId};
use convoke_graph::{DType, Shape, Tensor};

use crate::calls::function::Inner;
use crate::calls::partial::CallResult;
use crate::cluster::Cluster;

/// A loaded model. Dropping the last clone unloads it.
#[derive(Clone)]
pub struct Model {
    pub(crate) inner: Arc<Inner>,
    pub(crate) cluster: Cluster,
}

/// A parameter or result: its name and type.
#[derive(Debug, Clone, PartialEq)]
pub struct Signature {
    /// The name in the model.
    pub name: String,
    /// The dtype and shape, with symbols for dynamic axes.
    pub ty: TensorType,
}

/// The dtype and shape of an array, without its elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrayType {
    /// The type of the elements.
    pub dtype: DType,
    /// The size of each axis.
    pub shape: Shape,
}

impl std::fmt::Display for ArrayType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}

impl From<&Tensor> for ArrayType {
    fn from(t: &Tensor) -> ArrayType {
        ArrayType {
            dtype: t.dtype(),
            shape: t.shape().into(),
        }
    }
}

impl From<Tensor> for ArrayType {
    fn from(t: Tensor) -> ArrayType {
        ArrayType::from(&t)
    }
}

/// Parameters and results of a graph.
pub(crate) fn signatures(f: &Function) -> (Vec<Signature>, Vec<Signature>) {
    let of = |name: &str, value: ValueId| Signature {
        name: name.to_owned(),
        ty: f.ty(value).clone(),
    };
    let inputs = f.params.iter().map(|p| of(&f.value(*p).name, *p));
    let outputs = f.results.iter().map(|(name, value)| of(name, *value));
    (inputs.collect(), outputs.collect())
}

/// Whether a step or a load whose worker is lost runs again on the workers that are left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Retry {
    /// The step or the load runs again, twice at most, and is planned anew each time. The results have the same bits.
    #[default]
    On,
    /// Nothing runs again: the loss is the call's error.
    Off,
}

/// The options of one call.
#[derive(Debug, Clone, Copy, Default)]
pub struct CallOptions {
    /// The time within which the call has to end, with the planning that it may need and all attempts. A call that has
    /// not ended by then fails, and its step is cancelled everywhere.
    pub deadline: Option<Duration>,
    /// What happens when a worker is lost.
    pub retry: Retry,
}

/// The results of a call by name, in the model's order. A sequence whose length the data decide appears as that many
/// results, `NAME[0]`, `NAME[1]` and so on, and an optional value that holds nothing gives no result.
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
    /// Panics where there is no such result; [`Outputs::get`] returns `None` instead.
    fn index(&self, name: &str) -> &Tensor {
        match self.get(name) {
            Some(t) => t,
            None => panic!("the model has no output '{name}'"),
        }
    }
}

impl Model {
    /// Plans and installs the model right away where every dynamic axis has its bound; else the first call does.
    pub(crate) async fn begin(inner: Inner) -> Result<Arc<Inner>> {
        if inner.unbounded(&inner.bounds).is_empty() {
            let mut attempts = inner.load_attempts();
            // Empty bindings are within any bounds.
            inner.ready(&Bindings::new(), &mut attempts).await?;
        }
        Ok(Arc::new(inner))
    }

    /// The model's parameters, in their order.
    pub fn inputs(&self) -> Vec<Signature> {
        signatures(&self.inner.function).0
    }

    /// The model's results, in their order. A sequence whose length the data decide has the type of all its elements as
    /// a list.
    pub fn outputs(&self) -> Vec<Signature> {
        let all = signatures(&self.inner.function).1;
        if self.inner.outputs.is_empty() {
            return all;
        }
        let mut all = all.into_iter();
        let forms = self.inner.outputs.iter().filter_map(|form| {
            let results: Vec<Signature> = all.by_ref().take(form.results()).collect();
            let held = results.into_iter().nth(usize::from(form.optional))?;
            Some(Signature {
                name: form.name.clone(),
                ty: held.ty,
            })
        });
        forms.collect()
    }

    /// Runs the model on inputs by name. Returns the results once all have arrived.
    pub async fn call<N: Into<String>>(
        &self,
        inputs: impl IntoIterator<Item = (N, Tensor)>,
    ) -> Result<Outputs> {
        self.call_with(inputs, CallOptions::default()).await
    }

    /// Runs the model like [`Model::call`], with options. Dropping the future cancels the step everywhere.
    pub async fn call_with<N: Into<String>>(
        &self,
        inputs: impl IntoIterator<Item = (N, Tensor)>,
        options: CallOptions,
    ) -> Result<Outputs> {
        self.run(inputs, options).await.map(Outputs)
    }

    /// Runs the model. Returns the results by name, each in the form that this kind of call gives.
    pub(crate) async fn run<N: Into<String>, R: CallResult>(
        &self,
        inputs: impl IntoIterator<Item = (N, Tensor)>,
        options: CallOptions,
    ) -> Result<Vec<(String, R)>> {
        let given: Vec<(String, Tensor)> = inputs.into_iter().map(|(n, t)| (n.into(), t)).collect();
        let (ordered, bindings) = self.inner.arrange(given, |t| ArrayType::from(t))?;
        let inner = self.inner.clone();
        // Boxed, so that every move of the future moves only a pointer.
        let call = Box::pin(async move { inner.call(ordered, bindings, options).await });
        let called = self.cluster.compute(call);
        let inner = &self.inner;
        inner.progress.awaiting(&self.cluster.net, called).await
    }

    /// Makes sure that a plan for inputs of these types is installed, and explains it. The inputs themselves are not
    /// needed: each is a tensor or an [`ArrayType`].
    ///
    /// # Errors
    /// Fails where an input is missing, unknown or of another dtype or shape than the model's, and where no plan can be
    /// made or installed.
    pub async fn prepare<N: Into<String>, T: Into<ArrayType>>(
        &self,
        inputs: impl IntoIterator<Item = (N, T)>,
    ) -> Result<PlanSummary> {
        let bindings = self.inner.sizes(inputs)?;
        let inner = self.inner.clone();
        let ready = self.cluster.net.run(async move {
            let mut attempts = inner.load_attempts();
            let held = inner.ready(&bindings, &mut attempts).await;
            Ok(held?.lease.planned.summary.clone())
        });
        self.inner.progress.awaiting(&self.cluster.net, ready).await
    }

    /// Returns the plan that is installed, if there is one.
    pub async fn plan(&self) -> Option<PlanSummary> {
        self.inner.lease().map(|l| l.planned.summary.clone())
    }

    /// Frees everything that the model holds on the workers. Calls that wait for the model to load fail.
    pub async fn unload(self) -> Result<()> {
        let inner = self.inner.clone();
        let unloaded = self
            .cluster
            .net
            .run(async move { inner.holder.unload().await });
        unloaded.await
    }
}
