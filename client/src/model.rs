//! A model as a function that the cluster runs.

use std::sync::Arc;
use std::time::Duration;

use convoke_common::dim::Bindings;
use convoke_common::error::Result;
use convoke_common::graph::{Function, TensorType, ValueId};
use convoke_common::rpc::PlanSummary;
use convoke_common::{DType, Shape, Tensor};

use crate::cluster::Cluster;
use crate::function::Inner;
use crate::partial::Given;

/// A loaded model. Dropping the last clone unloads it.
#[derive(Clone)]
pub struct Model {
    pub(crate) inner: Arc<Inner>,
    pub(crate) cluster: Cluster,
}

/// A parameter or result: its name and type.
#[derive(Debug, Clone, PartialEq)]
pub struct Signature {
    /// Name as in the model.
    pub name: String,
    /// dtype and shape; dynamic axes by their symbols.
    pub ty: TensorType,
}

/// The dtype and shape of an array, which itself need not be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrayType {
    /// Its elements' type.
    pub dtype: DType,
    /// Its sizes.
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

/// Whether a step or a load whose worker is lost runs again on the workers that are there then.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Retry {
    /// Twice at most, planned anew each time. The results have the same bits.
    #[default]
    On,
    /// Never: the loss is the call's error.
    Off,
}

/// How one call is to run.
#[derive(Debug, Clone, Copy, Default)]
pub struct CallOptions {
    /// The call fails, and its step is cancelled everywhere, when it has not ended by then: the planning that it may
    /// need and all attempts included.
    pub deadline: Option<Duration>,
    /// What happens when a worker is lost.
    pub retry: Retry,
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
            let mut attempts = inner.load_attempts();
            // Within any bounds.
            inner.ready(&Bindings::new(), &mut attempts).await?;
        }
        Ok(Arc::new(inner))
    }

    /// Parameters, in the model's order.
    pub fn inputs(&self) -> Vec<Signature> {
        signatures(&self.inner.function).0
    }

    /// Results, in the model's order.
    pub fn outputs(&self) -> Vec<Signature> {
        signatures(&self.inner.function).1
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
        self.run(inputs, options).await.map(Outputs)
    }

    /// Results by name, each as the kind of call gives it.
    pub(crate) async fn run<N: Into<String>, R: Given>(
        &self,
        inputs: impl IntoIterator<Item = (N, Tensor)>,
        options: CallOptions,
    ) -> Result<Vec<(String, R)>> {
        let given: Vec<(String, Tensor)> = inputs.into_iter().map(|(n, t)| (n.into(), t)).collect();
        let (ordered, bindings) = self.inner.arrange(given, |t| ArrayType::from(t))?;
        let inner = self.inner.clone();
        // Boxed, so that it is not moved from hand to hand.
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
        let ready = self
            .cluster
            .net
            .run(async move { inner.ready(&bindings, &mut inner.load_attempts()).await });
        let ready = self.inner.progress.awaiting(&self.cluster.net, ready);
        Ok(ready.await?.lease.planned.summary.clone())
    }

    /// The plan that is installed, where there is one already.
    pub async fn plan(&self) -> Option<PlanSummary> {
        self.inner.lease().map(|l| l.planned.summary.clone())
    }

    /// Frees everything that the model holds on the workers. Calls for which it is being loaded fail.
    pub async fn unload(self) -> Result<()> {
        let inner = self.inner.clone();
        let unloaded = self.cluster.net.run(async move {
            inner.unloading.notify_waiters();
            let _turn = inner.loading.lock().await;
            match inner.put_lease(None) {
                Some(lease) => lease.unload().await,
                None => Ok(()),
            }
        });
        unloaded.await
    }
}
