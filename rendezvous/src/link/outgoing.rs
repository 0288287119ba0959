//! A tensor to send over a link, and how it travels.

use convoke_common::ids::StepKey;
use convoke_graph::Tensor;
use tokio_util::sync::CancellationToken;

use crate::frame::Frame;

/// Called when the link has released a tensor.
pub type SentCallback = Box<dyn FnOnce() + Send>;

/// A tensor to send.
pub struct Outgoing {
    pub key: StepKey,
    /// The recv slot at the destination.
    pub slot: u32,
    pub tensor: Tensor,
    /// Tensors of higher priority are sent first.
    pub priority: u64,
    /// Cancelled when the step is aborted; it resets the tensor's stream.
    pub cancel: CancellationToken,
    pub sent: SentCallback,
}

impl Outgoing {
    /// Releases the tensor, and reports that.
    pub fn let_go(self) {
        let Outgoing { tensor, sent, .. } = self;
        drop(tensor);
        sent();
    }
}

/// How a tensor travels: a frame that lends it, or the tensor itself, to be sent over the wire.
pub(crate) type CarryResult = Result<Frame, Outgoing>;
