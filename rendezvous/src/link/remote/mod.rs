//! A remote link: one QUIC connection with an ordered lane on a bidirectional stream, and a unidirectional stream for
//! each large tensor.
//!
//! ```text
//! send ──> queue ──> lane writer task ──> lane       (frames, tensors up to LANE_LIMIT)
//!                          └──> stream task ──> uni  (header, raw bytes)
//!       └─> shared memory, on one host: frames say where the bytes lie
//! lane reader task, stream acceptor task ──> hub
//! ```
//!
//! Invariants
//! 1. The queue holds no more than the steps in flight may send: each sends an edge once, and does not retire before
//!    the link has released its tensor. The bytes of frames are bounded as well: a peer that does not read them loses
//!    the link.
//! 2. Payloads are not copied on their way to a stream, and are received straight into their tensor.
//! 3. When any task ends, the connection is closed and the hub is told once, with the reason; if the peer was lost, the
//!    reason is that of failure detection.
//! 4. A tensor whose sender stalls fails its step: nothing waits for ever for bytes that do not arrive.

mod dialler;
mod errors;
mod greeting;
mod lane;
mod link_end;
mod queue;
mod reader;
mod stall;
mod streams;
mod tasks;
mod writer;

pub use dialler::Dialler;
pub use greeting::{accept_lane, dial_lane};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use greeting::{hello_head, hello_peer};
pub(crate) use lane::LaneSender;
pub use link_end::Remote;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use reader::take_frame;
pub(crate) use stall::stalled;
pub use stall::{LEAST_BYTES, STALL_BOUND};
