//! Loaded models: functions that the cluster runs, with named inputs and outputs.

pub(crate) mod builder;
pub(crate) mod explain;
pub(crate) mod outputs;
pub(crate) mod phase;
pub(crate) mod signature;

use std::sync::Arc;

use convoke_common::error::Result;
use convoke_common::rpc::PlanSummary;
use convoke_graph::Tensor;
use convoke_graph::dim::Bindings;

use crate::calls::function::Inner;
use crate::calls::options::CallOptions;
use crate::calls::result::CallResult;
use crate::cluster::Cluster;
use crate::model::outputs::Outputs;
use crate::model::signature::{ArrayType, Signature, signatures};

/// A loaded model. Dropping the last clone unloads it.
#[derive(Clone)]
pub struct Model {
    pub(crate) inner: Arc<Inner>,
    pub(crate) cluster: Cluster,
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
