//! Tensors that are made on a device: of a value of the program, or by an op without operands there.

use std::panic::Location;

use convoke_common::error::{Error, Result};
use convoke_graph::graph::Attrs;
use convoke_rendezvous::eager::wire::INLINE;

use super::apply::apply;
use super::operand::Operand;
use super::{PlacedBy, Tensor};
use crate::device::Device;
use crate::device::scope::enter;
use crate::host::ToHost;

impl Device {
    /// Copies a value to the device. Returns at once, or as soon as less than 256 MiB wait to be sent, see
    /// [`Cluster::fail_when_full`](crate::Cluster::fail_when_full).
    #[track_caller]
    pub fn put(&self, value: impl ToHost) -> Result<Tensor> {
        let tensor = value.to_host()?;
        let at = Location::caller();
        let small = tensor.byte_len() <= INLINE;
        let line = self.0.line().filter(|_| small);
        if let Some(here) = line.and_then(|line| line.put(&tensor, at)) {
            return Ok(Tensor::made_here(&self.0, here, PlacedBy::Explicit, at));
        }
        let id = self.0.put(&tensor, at)?;
        let ty = (tensor.dtype(), tensor.shape().into());
        Ok(Tensor::remote(&self.0, id, ty, PlacedBy::Explicit, at))
    }

    /// Issues an op of the registry that has no operand on a device, such as one that makes a tensor from its shape.
    #[track_caller]
    pub(crate) fn create(
        &self,
        op: &str,
        attrs: Attrs,
        operands: &[Operand<'_>],
    ) -> Result<Tensor> {
        // With `with_device` the closure would be the caller that the op's line names.
        let _entered = enter(self);
        let made = apply(op, attrs, operands, 1)?;
        let none = || Error::internal("an op without outputs");
        made.into_iter().next().ok_or_else(none)
    }
}
