//! Calls that give each result by itself: what fails in a node reaches the results that depend on it, and no others.

use std::panic::Location;
use std::time::Duration;

use convoke_common::Tensor as HostTensor;
use convoke_common::error::{Error, Result};
use convoke_rendezvous::driver::Driver;

use crate::model::{CallOptions, Model, Outputs};
use crate::tensor::Tensor;
use crate::traced::Function;

/// A model or a function whose calls give each result by itself, made by [`Model::partial`] or [`Function::partial`].
/// It shares all that the model or the function has; cloning shares it as well.
///
/// **An error of one result** is of the node that failed on the way to it: the node's kernel returned an error or panicked, or
/// there was no memory for what it makes. The error follows the data from node to node and from worker to worker, and names
/// the node and the worker that failed in each result that it reaches. Where several reach a node, its results have that of
/// its first operand. What fails in the body of a branch or a loop is a failure of the node that runs the body. An operand of
/// a function whose own op failed counts as a node that did. All other results arrive, with the bits that they have in any
/// other call.
///
/// **An error of the whole call** is everything else, as in other calls: inputs that do not fit; a plan that cannot be made or
/// installed, with what the model computes of its weights alone; memory that is refused to a tensor on its way; a worker
/// that is lost, once the call has run again as often as it may; the deadline; and a dropped future, which cancels the step.
///
/// Kernels' errors are final: a call in which some results failed does not run again because of them.
#[derive(Clone)]
pub struct Partial<F>(F);

/// What a partial call of a model gave: by name, in the model's order, each result or why there is none.
#[derive(Debug, Clone, PartialEq)]
pub struct PartialOutputs(pub Vec<(String, Result<HostTensor>)>);

impl PartialOutputs {
    /// The result of this name, or its error; `None` where the model has no such result.
    pub fn get(&self, name: &str) -> Option<&Result<HostTensor>> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, r)| r)
    }

    /// Names and errors of the results that failed, in the model's order.
    pub fn failed(&self) -> impl Iterator<Item = (&str, &Error)> {
        let all = self.0.iter();
        all.filter_map(|(name, r)| Some((name.as_str(), r.as_ref().err()?)))
    }

    /// All results.
    ///
    /// # Errors
    /// The error of the first that failed.
    pub fn complete(self) -> Result<Outputs> {
        let all = self.0.into_iter().map(|(name, r)| Ok((name, r?)));
        all.collect::<Result<_>>().map(Outputs)
    }
}

impl std::ops::Index<&str> for PartialOutputs {
    type Output = Result<HostTensor>;

    /// # Panics
    /// When there is no such result; [`PartialOutputs::get`] does not.
    fn index(&self, name: &str) -> &Result<HostTensor> {
        match self.get(name) {
            Some(r) => r,
            None => panic!("the model has no output '{name}'"),
        }
    }
}

impl Model {
    /// The model, whose calls give each result by itself: what fails on the way to one is its error, and the others arrive.
    /// See [`Partial`] for which errors are of one result, and which still end the whole call.
    ///
    /// ```no_run
    /// # async fn run(model: convoke::Model, x: convoke::HostTensor) -> convoke::Result<()> {
    /// let out = model.partial().call([("x", x)]).await?;
    /// for (name, result) in &out.0 {
    ///     match result {
    ///         Ok(t) => println!("{name}: {}", t.signature()),
    ///         Err(e) => eprintln!("{name} failed: {e}"),
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn partial(&self) -> Partial<Model> {
        Partial(self.clone())
    }
}

impl Function {
    /// The function, whose calls give each result by itself: what fails on the way to one is its error, and the others
    /// arrive. See [`Partial`] for which errors are of one result, and which still end the whole call.
    ///
    /// Operands that are donated are gone whatever the results are; those of [`Function::donate_retain`] once no result failed.
    pub fn partial(&self) -> Partial<Function> {
        Partial(self.clone())
    }
}

impl Partial<Model> {
    /// Runs the model. Parameters by name; results once each has arrived or failed.
    ///
    /// # Errors
    /// Those of the whole call, see [`Partial`].
    pub async fn call<N: Into<String>>(
        &self,
        inputs: impl IntoIterator<Item = (N, HostTensor)>,
    ) -> Result<PartialOutputs> {
        self.call_with(inputs, CallOptions::default()).await
    }

    /// As [`Partial::call`], with options. Dropping the future cancels the step everywhere.
    ///
    /// # Errors
    /// Those of the whole call, see [`Partial`].
    pub async fn call_with<N: Into<String>>(
        &self,
        inputs: impl IntoIterator<Item = (N, HostTensor)>,
        options: CallOptions,
    ) -> Result<PartialOutputs> {
        self.0.run(inputs, options).await.map(PartialOutputs)
    }
}

impl Partial<Function> {
    /// The function called with these operands: each result stays on the worker that computes it, or is why there is none.
    /// Returns once each is there or has failed. Dropping the future cancels the step everywhere.
    ///
    /// # Errors
    /// Those of the whole call, see [`Partial`].
    #[track_caller]
    pub fn call(
        &self,
        operands: &[Tensor],
    ) -> impl Future<Output = Result<Vec<Result<Tensor>>>> + use<> {
        self.0
            .start::<Result<HostTensor>>(operands, Location::caller())
    }
}

/// What a call gives for each result: a tensor in all of them, or in a partial call a tensor or an error.
pub(crate) trait Given: Sized + Send + 'static {
    /// The same of a result that stays on its worker.
    type Handle: Send;

    /// Runs a step.
    fn step(
        driver: &Driver,
        inputs: Vec<HostTensor>,
        axes: Vec<i64>,
        deadline: Option<Duration>,
    ) -> impl Future<Output = Result<Vec<Self>>> + Send;

    /// Whether it is a tensor.
    fn is_there(&self) -> bool;

    /// The handle in place of what says that it was filled.
    fn handle(self, filled: impl FnOnce() -> Tensor) -> Self::Handle;

    /// Handles of a call in which nothing failed.
    fn handles(all: Vec<Tensor>) -> Vec<Self::Handle>;
}

impl Given for HostTensor {
    type Handle = Tensor;

    fn step(
        driver: &Driver,
        inputs: Vec<HostTensor>,
        axes: Vec<i64>,
        deadline: Option<Duration>,
    ) -> impl Future<Output = Result<Vec<HostTensor>>> + Send {
        driver.call(inputs, axes, deadline)
    }

    fn is_there(&self) -> bool {
        true
    }

    fn handle(self, filled: impl FnOnce() -> Tensor) -> Tensor {
        filled()
    }

    fn handles(all: Vec<Tensor>) -> Vec<Tensor> {
        all
    }
}

impl Given for Result<HostTensor> {
    type Handle = Result<Tensor>;

    fn step(
        driver: &Driver,
        inputs: Vec<HostTensor>,
        axes: Vec<i64>,
        deadline: Option<Duration>,
    ) -> impl Future<Output = Result<Vec<Result<HostTensor>>>> + Send {
        driver.call_partial(inputs, axes, deadline)
    }

    fn is_there(&self) -> bool {
        self.is_ok()
    }

    fn handle(self, filled: impl FnOnce() -> Tensor) -> Result<Tensor> {
        self.map(|_| filled())
    }

    fn handles(all: Vec<Tensor>) -> Vec<Result<Tensor>> {
        all.into_iter().map(Ok).collect()
    }
}
