//! The rendezvous: where sends meet recvs.
//!
//! ```text
//! driver ── Start/Abort/Done, feeds ──> lane ──> hub ──> lease ──> step table ──> executor
//! worker ── cut edges ────────────────> link ──> hub ──> lease ──> step table ──> executor or driver
//! ```
//!
//! Invariants
//! 1. A tensor is delivered at most once, to the step, edge and incarnation it was sent for.
//! 2. A recv resolves: with its value, in a partial step with the error in its place, or by the abort of its step.
//! 3. Of the crates that production runs, only this one and `common` depend on quinn; the others name its types through
//!    `common::world::quic`.

pub mod artifacts;
pub mod driver;
pub mod eager;
pub mod frame;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod hub;
pub mod lease;
pub mod link;
mod primitives;
pub mod probe;
mod refusal;
pub mod sharing;
pub mod step;
pub mod step_events;

pub use hub::Hub;
pub use lease::{Lease, Peer, RecvSpec, StepHandler};
pub use link::{Link, Outgoing, remote};
pub use refusal::FrameRefusal;
pub use step::table::Delivery;
