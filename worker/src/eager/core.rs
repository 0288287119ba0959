//! The dataflow of a session: which handles have their tensors, which ops wait for them, and which ops may run.
//!
//! ```text
//! run ──operands there──> ready (in issue order) ──finished──> handle ──> ops, sends that wait for it
//!  └──some missing──> waiting ──last one arrives──┘    failed operand ──> every output fails, with the same error
//! take ──> expected ──claim, arrived──> handle         a tensor that is early waits for its take
//! ```
//!
//! Invariants
//! 1. A handle resolves once: with its tensor, or with the error of the op or transfer that it depends on and that
//!    failed by itself.
//! 2. Ready ops are handed out in the order they were issued; an op that waits holds up no op that was issued after it.
//! 3. A dropped handle frees its tensor as soon as no op that was issued before the drop needs it.
//! 4. The bytes that all of this takes besides tensors are known at any time, see [`Core::footprint`].
//! 5. Transfers that arrive without having been announced are bounded, in number and by the size of tensors that travel
//!    on a lane.

mod device;
mod failure;
mod handles;
mod ops;
mod reports;
mod run;
mod state;
mod steps;
mod transfers;

pub(super) use self::failure::{CountedBytes, Failure};
pub(super) use self::run::Run;
pub(super) use self::state::{Core, Effect, Id, MOST_EARLY};
pub(crate) use self::state::{HandleOutcome, TensorCallback};
