//! A tensor on its way into a slot of a step, or to an eager session.

use std::sync::Arc;
use std::time::Duration;

use convoke_common::error::{Code, Error};
use convoke_common::ids::StepKey;
use convoke_graph::Tensor;

use crate::eager::EagerService;
use crate::lease::{Lease, Peer};
use crate::refusal::FrameRefusal;
use crate::step::slot::PublishOutcome;
use crate::{step_event, step_events};

/// A tensor that begins to arrive: its slot is claimed, and its bytes are still to come. If it is dropped unfinished,
/// it gives the claim back.
pub struct Incoming {
    to: Destination,
    tensor: Option<Tensor>,
}

/// Where a tensor arrives.
pub(super) enum Destination {
    Slot {
        lease: Arc<Lease>,
        n: u64,
        slot: u32,
    },
    Session {
        eager: Arc<dyn EagerService>,
        from: Peer,
        key: StepKey,
    },
}

impl Destination {
    /// Reports that the tensor does not arrive.
    pub(super) fn fail(&self, error: Error) {
        match self {
            Destination::Slot { lease, n, .. } => lease.handler.abort(*n, error, lease.me),
            Destination::Session { eager, from, key } => eager.failed(from, *key, error),
        }
    }
}

impl Incoming {
    /// A tensor whose place `to` is claimed.
    pub(super) fn new(to: Destination, tensor: Tensor) -> Incoming {
        let tensor = Some(tensor);
        Incoming { to, tensor }
    }

    /// The buffer into which the tensor is received.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.tensor
            .as_mut()
            .and_then(Tensor::bytes_mut)
            .unwrap_or(&mut [])
    }

    /// Fails the step because the sender stopped in the middle of the tensor.
    pub fn stalled(self, from: &Peer, bound: Duration) {
        let why = format!("it stopped in the middle of a tensor, for {bound:?}");
        self.to.fail(Error::lost(&from.name, why));
    }

    /// Delivers the tensor if the received bytes are valid for its dtype; fails the step otherwise.
    pub fn finish(self) -> Result<(), FrameRefusal> {
        match self.tensor.as_ref().map(Tensor::check_elements) {
            Some(Err(e)) => {
                self.to
                    .fail(Error::new(Code::ProtocolViolation, e.to_string()));
                Err(FrameRefusal::WrongTensor)
            }
            _ => {
                self.publish();
                Ok(())
            }
        }
    }

    /// Delivers the tensor without a check of its bytes.
    pub fn publish(mut self) {
        let Some(tensor) = self.tensor.take() else {
            return;
        };
        let (lease, n, slot) = match &self.to {
            Destination::Slot { lease, n, slot } => (lease, *n, *slot),
            Destination::Session { eager, from, key } => return eager.arrived(from, *key, tensor),
        };
        let Ok(cell) = lease.table.slot(n, slot) else {
            return;
        };
        let sum = step_events::listening().then(|| step_events::checksum(&tensor));
        let published = cell.publish(n, Ok(tensor));
        if let Some(sum) = sum
            && !matches!(published, PublishOutcome::Refused(_))
        {
            let lease = lease.id;
            step_event!("filled", StepKey { lease, n }, slot = slot, checksum = sum);
        }
        if published == PublishOutcome::Awaited {
            lease.handler.arrived(n, slot);
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if self.tensor.is_none() {
            return;
        }
        match &self.to {
            Destination::Slot { lease, n, slot } => {
                if let Ok(cell) = lease.table.slot(*n, *slot) {
                    cell.unclaim(*n);
                }
            }
            // If the link was lost, that loss is reported with a better reason; in all other cases nothing else would
            // end the transfer.
            Destination::Session { eager, from, key } => {
                let why = "it broke off in the middle of a tensor";
                eager.failed(from, *key, Error::lost(&from.name, why));
            }
        }
    }
}
