//! The files of the module `sharing` that are modelled, and what they use of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use convoke_common::ids::{LeaseId, StepKey};
use convoke_graph::Tensor;

use crate::link::Outgoing;

#[path = "../../src/sharing/buffers.rs"]
pub(crate) mod buffers;
// In models the peer keeps every segment.
#[allow(dead_code)]
#[path = "../../src/sharing/lending.rs"]
pub(crate) mod lending;
#[path = "../../src/sharing/loan.rs"]
pub(crate) mod loan;
#[path = "../../src/sharing/staging.rs"]
pub(crate) mod staging;
#[path = "../../src/sharing/violation.rs"]
pub(crate) mod violation;

mod lending_model;
mod loan_model;
mod staging_model;

/// A tensor to send, and how often the link has let go of it.
struct SentTensor {
    sent: Arc<AtomicUsize>,
}

impl SentTensor {
    /// Sends `tensor`, whose slot tells it from others.
    fn new(slot: u32, tensor: Tensor) -> (SentTensor, Outgoing) {
        let sent = Arc::<AtomicUsize>::default();
        let count = sent.clone();
        let lease = LeaseId(1);
        let out = Outgoing {
            key: StepKey { lease, n: 0 },
            slot,
            tensor,
            priority: 0,
            cancel: Default::default(),
            sent: Box::new(move || {
                count.fetch_add(1, Ordering::Relaxed);
            }),
        };
        (SentTensor { sent }, out)
    }

    /// How often the link has let go of the tensor.
    fn times(&self) -> usize {
        self.sent.load(Ordering::Relaxed)
    }
}
