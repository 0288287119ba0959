//! Eager work at the rendezvous: batches of commands and reports on the lanes of links, and tensors that are keyed by
//! session and transfer instead of lease and step.
//!
//! ```text
//! client ── commands ──> lane ──> Eager at the worker ── reports ──> lane ──> Eager at the client
//! tensor, its own stream or lane ──> hub ──> Eager: begin, arrived
//! ```
//!
//! A session is one client at one worker. Its id follows from the client's incarnation, so that no other life of the
//! client, and nobody else, can name anything in it.

mod batch;
pub mod direct;
pub mod wire;

use std::sync::Arc;

use convoke_common::Tensor;
use convoke_common::error::{Error, Result};
use convoke_common::ids::StepKey;
use tokio::sync::oneshot;

use crate::frame::TensorHeader;
use crate::hub::Refused;
use crate::lease::Peer;

pub use batch::Batch;
pub(crate) use batch::bodies;
pub use direct::Direct;

/// What a process does with eager work. Calls come from network tasks and, over local links, from the sender's thread;
/// none may block.
pub trait Eager: Send + Sync {
    /// A batch: commands at a worker, reports at a client. An error ends the link: what follows cannot be understood.
    fn batch(&self, from: &Peer, batch: &[u8]) -> Result<()>;
    /// A transfer begins to arrive: fails where it may not. What is accepted here either arrives or fails.
    fn claim(&self, from: &Peer, h: &TensorHeader) -> Result<(), Refused>;
    /// Where the bytes of a claimed transfer go.
    fn buffer(&self, h: &TensorHeader) -> Result<Tensor>;
    /// Takes over a claimed transfer that comes by reference, over a local link: its memory is counted here from now on.
    fn adopt(&self, h: &TensorHeader, tensor: Tensor) -> Result<Tensor>;
    /// Answered once [`Eager::claim`] can say of a transfer whether it is expected; dropped where it never will.
    fn foreseen(&self, from: &Peer, h: &TensorHeader) -> Option<oneshot::Receiver<()>>;
    /// A transfer has arrived.
    fn arrived(&self, from: &Peer, key: StepKey, tensor: Tensor);
    /// A transfer does not arrive.
    fn failed(&self, from: &Peer, key: StepKey, error: Error);
    /// A link to a peer has ended, and with it what was on its way there.
    fn lost(&self, peer: &Peer, error: &Error);
    /// Brief ops of a client in the same process, on its own thread; a process that runs no kernels has none.
    fn direct(&self, _from: &Peer) -> Option<Arc<dyn Direct>> {
        None
    }
}

/// What a lane asks for its next bytes, once it can send them.
pub trait Batches: Send + Sync {
    /// Appends whole frames, and forgets them.
    fn take(&self, out: &mut Vec<u8>);
}
