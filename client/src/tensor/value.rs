//! How the values of tensors come to the program.

use convoke_common::error::Result;
use convoke_graph::Tensor as HostTensor;

use super::apply::apply;
use super::operand::Operand;
use super::{Handle, Tensor, TensorValue};
use crate::device::scope::enter;
use crate::eager::{PendingFetch, shut};
use crate::host::FromHost;

/// A value that was asked for.
enum RequestedValue {
    Here(HostTensor),
    Coming(PendingFetch),
}

impl Tensor {
    /// Fetches the value, in one round trip. An error names the op that failed and the line that issued it.
    pub async fn fetch<T: FromHost>(&self) -> Result<T> {
        T::from_host(self.value().await?)
    }

    async fn value(&self) -> Result<HostTensor> {
        let asked = self.ask()?;
        self.told(asked).await
    }

    /// Asks for the value.
    fn ask(&self) -> Result<RequestedValue> {
        let h = self.remote_for("fetched")?;
        match &h.value {
            TensorValue::Here(here) => match h.worker.lost_because() {
                None => Ok(RequestedValue::Here(here.tensor().clone())),
                Some(error) => Err(error),
            },
            TensorValue::There(there) => h.worker.fetch(there.id).map(RequestedValue::Coming),
        }
    }

    /// Awaits the value that was asked for.
    async fn told(&self, asked: RequestedValue) -> Result<HostTensor> {
        let mut fetching = match asked {
            RequestedValue::Here(tensor) => return Ok(tensor),
            RequestedValue::Coming(fetching) => fetching,
        };
        let answer = (&mut fetching.answer).await;
        let tensor = answer.unwrap_or_else(|_| Err(shut()))?;
        if let Some((_, shape)) = self.handle().and_then(Handle::late) {
            // The worker's report may have set the shape before.
            let _ = shape.set(tensor.shape().into());
        }
        Ok(tensor)
    }

    /// Returns once the value is there. Fails with the error that it failed with.
    pub async fn ready(&self) -> Result<()> {
        if self
            .remote_for("awaited")
            .is_ok_and(|h| matches!(h.value, TensorValue::Here(_)))
        {
            return self.value().await.map(drop);
        }
        // One element, or none, tells with the fewest bytes that the value is there.
        let rank = self.rank();
        if rank == 0 {
            return self.value().await.map(drop);
        }
        let zeros = HostTensor::from_slice(&[rank], &vec![0i64; rank])?;
        let ones = HostTensor::from_slice(&[rank], &vec![1i64; rank])?;
        let operands = [
            Operand::Tensor(self),
            Operand::Value(zeros),
            Operand::Value(ones),
        ];
        let first = {
            // The slice runs where the tensor is: a device scope of the task would have all of the tensor moved.
            let _here = self.device().map(|d| enter(&d));
            apply("Slice", Default::default(), &operands, 1)?
        };
        for t in first {
            t.value().await?;
        }
        if self.shape().is_none() {
            self.value().await?;
        }
        Ok(())
    }
}

/// Fetches the values of tensors. All are asked for at once, so they take one round trip, whichever devices they are
/// on. Fails with the error of the first tensor that failed.
pub async fn fetch_all<'a, T: FromHost>(
    tensors: impl IntoIterator<Item = &'a Tensor>,
) -> Result<Vec<T>> {
    let asked = tensors.into_iter().map(|t| Ok((t, t.ask()?)));
    let asked: Vec<(&Tensor, RequestedValue)> = asked.collect::<Result<_>>()?;
    let mut values = Vec::with_capacity(asked.len());
    for (t, asked) in asked {
        values.push(T::from_host(t.told(asked).await?)?);
    }
    Ok(values)
}
