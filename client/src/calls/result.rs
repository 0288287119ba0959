//! What calls give for each result, and how a step with such results is run.

use std::time::Duration;

use convoke_common::error::{Error, Result};
use convoke_graph::{Printable, Tensor as HostTensor};
use convoke_models::onnx::OutputForm;
use convoke_rendezvous::driver::Driver;

use crate::tensor::Tensor;

/// What a call gives for each result: an ordinary call a tensor, a partial call a tensor or an error.
pub(crate) trait CallResult: Sized + Send + 'static {
    /// The same for a result that stays on its worker: a handle instead of a tensor.
    type Handle: Send;

    /// Runs a step.
    fn step(
        driver: &Driver,
        inputs: Vec<HostTensor>,
        axes: Vec<i64>,
        deadline: Option<Duration>,
    ) -> impl Future<Output = Result<Vec<Self>>> + Send;

    /// The tensors of an output that is made of several results.
    fn assembled(form: &OutputForm, results: Vec<Self>) -> Result<Vec<(String, Self)>>;

    /// Whether the result is a tensor, and not an error.
    fn is_there(&self) -> bool;

    /// Returns the handle of a result, which `filled` makes where the step has filled it.
    fn handle(self, filled: impl FnOnce() -> Tensor) -> Self::Handle;

    /// Converts the handles of a call in which nothing failed.
    fn handles(all: Vec<Tensor>) -> Vec<Self::Handle>;
}

impl CallResult for HostTensor {
    type Handle = Tensor;

    fn step(
        driver: &Driver,
        inputs: Vec<HostTensor>,
        axes: Vec<i64>,
        deadline: Option<Duration>,
    ) -> impl Future<Output = Result<Vec<HostTensor>>> + Send {
        driver.call(inputs, axes, deadline)
    }

    fn assembled(form: &OutputForm, results: Vec<Self>) -> Result<Vec<(String, Self)>> {
        let wrong =
            |reason| Error::internal(format!("output '{}': {reason}", Printable(&form.name)));
        form.tensors(results).map_err(wrong)
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

impl CallResult for Result<HostTensor> {
    type Handle = Result<Tensor>;

    fn step(
        driver: &Driver,
        inputs: Vec<HostTensor>,
        axes: Vec<i64>,
        deadline: Option<Duration>,
    ) -> impl Future<Output = Result<Vec<Result<HostTensor>>>> + Send {
        driver.call_partial(inputs, axes, deadline)
    }

    fn assembled(form: &OutputForm, results: Vec<Self>) -> Result<Vec<(String, Self)>> {
        match results.into_iter().collect() {
            Ok(there) => {
                let tensors = HostTensor::assembled(form, there)?.into_iter();
                Ok(tensors.map(|(name, t)| (name, Ok(t))).collect())
            }
            Err(e) => Ok(vec![(form.name.clone(), Err(e))]),
        }
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
