//! Graphs within a model's graph: model-local functions, and the bodies of control flow.
//!
//! ```text
//! call of a function, branch that is known to be taken ──inline──> the function under construction
//! modifier of FlexAttention ──flex──> the function under construction
//! other branch, body of Loop and Scan ──control──> a function of its own, an attribute of the node
//! sequence, optional value ──sequences──> the tensors that it holds
//! loop over sequences whose iterations are known ──unrolled──> the function under construction
//! the same, where the run decides what it holds ──forms, loops, packed──> tensors for all that it may hold
//! ```
//!
//! Invariants
//! 1. Each value that a body reads from outside is an operand of its node, or a copy of a small constant. Content that
//!    lies in files belongs to the outermost function.
//! 2. A body is imported with types that hold in each of its iterations.

mod branches;
mod control;
mod flex;
mod forms;
mod inline;
mod loops;
mod packed;
mod scan;
mod sequences;
mod single;
mod unrolled;

pub(super) use packed::Packed;
pub(super) use single::{REASON, Reads, reads};
