//! Partial calls, which give a result or an error for each output: a failure in a node reaches the results that depend
//! on it, and no others.

use std::panic::Location;

use convoke_common::error::{Error, Result};
use convoke_graph::Tensor as HostTensor;

use crate::calls::options::CallOptions;
use crate::model::Model;
use crate::model::outputs::Outputs;
use crate::tensor::Tensor;
use crate::trace::traced::Function;

/// A model or a function whose calls give a result or an error for each output, made by [`Model::partial`] or
/// [`Function::partial`]. It shares everything with the model or the function, and its clones do as well.
///
/// **An error of one result** comes from a node that failed on the way to it: the node's kernel returned an error or
/// panicked, or there was no memory for the node's results. The error follows the data from node to node and from
/// worker to worker, and names the node and the worker that failed in each result that it reaches. Where several errors
/// reach a node, its results get that of its first failed operand. A failure in the body of a branch or a loop is a
/// failure of the node that runs the body. An operand of a function whose own op failed counts as a failed node. All
/// other results arrive, with the bits that they have in any other call.
///
/// **An error of the whole call** is any other error, as in other calls: inputs that do not fit; a plan that cannot be
/// made or installed, which includes what the model computes from its weights alone; no memory for a tensor that is on
/// its way; a worker that is lost, once the call has run again as often as it may; the deadline; and a dropped future,
/// which cancels the step.
///
/// Kernels' errors are final: a call in which some results failed does not run again because of them.
#[derive(Clone)]
pub struct Partial<F>(F);

/// The results of a partial call of a model: by name, in the model's order, each result or its error.
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

    /// Returns all results, as those of an ordinary call.
    ///
    /// # Errors
    /// Fails with the error of the first result that failed.
    pub fn complete(self) -> Result<Outputs> {
        let all = self.0.into_iter().map(|(name, r)| Ok((name, r?)));
        all.collect::<Result<_>>().map(Outputs)
    }
}

impl std::ops::Index<&str> for PartialOutputs {
    type Output = Result<HostTensor>;

    /// # Panics
    /// Panics where there is no such result; [`PartialOutputs::get`] returns `None` instead.
    fn index(&self, name: &str) -> &Result<HostTensor> {
        match self.get(name) {
            Some(r) => r,
            None => panic!("the model has no output '{name}'"),
        }
    }
}

impl Model {
    /// Returns the model in a form whose calls give a result or an error for each output. See [`Partial`] for which
    /// errors are of one result, and which still end the whole call.
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
    /// Returns the function in a form whose calls give a result or an error for each output. See [`Partial`] for which
    /// errors are of one result, and which still end the whole call.
    ///
    /// Operands of [`Function::donate`] are gone whatever the results are; those of [`Function::donate_retain`] are
    /// gone only where no result failed.
    pub fn partial(&self) -> Partial<Function> {
        Partial(self.clone())
    }
}

impl Partial<Model> {
    /// Runs the model on inputs by name. Returns once each result has arrived or failed.
    ///
    /// # Errors
    /// Fails with the errors of the whole call, see [`Partial`].
    pub async fn call<N: Into<String>>(
        &self,
        inputs: impl IntoIterator<Item = (N, HostTensor)>,
    ) -> Result<PartialOutputs> {
        self.call_with(inputs, CallOptions::default()).await
    }

    /// Runs the model like [`Partial::call`], with options. Dropping the future cancels the step everywhere.
    ///
    /// # Errors
    /// Fails with the errors of the whole call, see [`Partial`].
    pub async fn call_with<N: Into<String>>(
        &self,
        inputs: impl IntoIterator<Item = (N, HostTensor)>,
        options: CallOptions,
    ) -> Result<PartialOutputs> {
        self.0.run(inputs, options).await.map(PartialOutputs)
    }
}

impl Partial<Function> {
    /// Calls the function with these operands. Each result is a tensor, which stays on the worker that computes it, or
    /// an error. Returns once each result is there or has failed. Dropping the future cancels the step everywhere.
    ///
    /// # Errors
    /// Fails with the errors of the whole call, see [`Partial`].
    #[track_caller]
    pub fn call(
        &self,
        operands: &[Tensor],
    ) -> impl Future<Output = Result<Vec<Result<Tensor>>>> + use<> {
        self.0
            .start::<Result<HostTensor>>(operands, Location::caller())
    }
}
