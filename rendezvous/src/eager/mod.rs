//! Eager work at the rendezvous: batches of commands and reports on the lanes of links, and tensors that are keyed by
//! session and transfer instead of lease and step.
//!
//! ```text
//! client ── commands ──> lane ──> Eager at the worker ── reports ──> lane ──> Eager at the client
//! tensor, its own stream or lane ──> hub ──> Eager: begin, arrived
//! ```
//!
//! A session is one client at one worker. Its id follows from the client's incarnation, so that no other incarnation of
//! the client, and no other client, can name anything in it.

mod batch;
pub mod direct;
pub mod wire;

use std::sync::Arc;

use convoke_common::error::{Error, Result};
use convoke_common::ids::StepKey;
use convoke_graph::Tensor;
use tokio::sync::oneshot;

use crate::frame::TensorHeader;
use crate::lease::Peer;
use crate::link::LinkId;
use crate::refusal::FrameRefusal;

pub(crate) use batch::bodies;
pub use batch::{Batch, Batches};
pub use direct::DirectSession;

/// The eager work of a process. Calls come from network tasks and, over local links, from the sender's thread; none may
/// block.
pub trait EagerService: Send + Sync {
    /// Takes a batch: commands at a worker, reports at a client. It came over the link `over`, or within this process.
    /// An error ends the link, since what follows cannot be understood.
    fn batch(&self, from: &Peer, over: Option<LinkId>, batch: &[u8]) -> Result<()>;
    /// Admits a transfer that begins to arrive, or refuses it. A transfer that was admitted either arrives or fails.
    fn claim(&self, from: &Peer, h: &TensorHeader) -> Result<(), FrameRefusal>;
    /// Allocates the buffer of an admitted transfer.
    fn buffer(&self, h: &TensorHeader) -> Result<Tensor>;
    /// Takes over the tensor of an admitted transfer that comes by reference, over a local link: its memory is counted
    /// here from now on.
    fn adopt(&self, h: &TensorHeader, tensor: Tensor) -> Result<Tensor>;
    /// A receiver that is answered once [`EagerService::claim`] can decide whether a transfer is expected, and dropped
    /// if it never will; `None` if it can decide now.
    fn foreseen(&self, from: &Peer, h: &TensorHeader) -> Option<oneshot::Receiver<()>>;
    /// Takes a transfer that has arrived.
    fn arrived(&self, from: &Peer, key: StepKey, tensor: Tensor);
    /// Reports that a transfer does not arrive.
    fn failed(&self, from: &Peer, key: StepKey, error: Error);
    /// Reports that a link to a peer has ended, and with it everything that was on its way to the peer.
    fn lost(&self, peer: &Peer, error: &Error);
    /// The direct execution of brief ops of a client in the same process; `None` in a process that runs no kernels.
    fn direct(&self, _from: &Peer) -> Option<Arc<dyn DirectSession>> {
        None
    }
}
