//! Why a frame is refused.

use crate::step::slot::FillFailure;
use crate::step::table::FenceReason;

/// Why a frame was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FrameRefusal {
    /// The lease is not here, or not any more.
    UnknownLease,
    /// The sender does not take part in the lease, or is another incarnation.
    Stranger,
    /// The frame is one that only a driver may send, or only a driver may receive.
    NotDriver,
    /// The step is below the window: it is over.
    StaleStep,
    /// The step is above the window.
    AheadOfWindow,
    /// The step was aborted.
    AbortedStep,
    /// The edge already carried its value, or the step was already started.
    Duplicate,
    /// The edge is to be filled by another participant.
    WrongSource,
    /// The tensor has the wrong dtype, shape or length, or bytes that are no values of the dtype.
    WrongTensor,
    /// The program has no such edge.
    NoSuchEdge,
    /// The bytes are not a frame.
    Malformed,
    /// The sender stopped in the middle of a tensor.
    Stalled,
    /// The tensor does not fit into the memory that is left.
    OverBudget,
}

impl FrameRefusal {
    /// The name under which the refusal is counted in `status`.
    pub fn name(self) -> &'static str {
        match self {
            FrameRefusal::UnknownLease => "unknown_lease",
            FrameRefusal::Stranger => "stranger",
            FrameRefusal::NotDriver => "not_driver",
            FrameRefusal::StaleStep => "stale_step",
            FrameRefusal::AheadOfWindow => "ahead_of_window",
            FrameRefusal::AbortedStep => "aborted_step",
            FrameRefusal::Duplicate => "duplicate",
            FrameRefusal::WrongSource => "wrong_source",
            FrameRefusal::WrongTensor => "wrong_tensor",
            FrameRefusal::NoSuchEdge => "no_such_edge",
            FrameRefusal::Malformed => "malformed",
            FrameRefusal::Stalled => "stalled",
            FrameRefusal::OverBudget => "over_budget",
        }
    }
}

impl From<FenceReason> for FrameRefusal {
    fn from(f: FenceReason) -> FrameRefusal {
        match f {
            FenceReason::Stale => FrameRefusal::StaleStep,
            FenceReason::Ahead => FrameRefusal::AheadOfWindow,
            FenceReason::NoSuchSlot => FrameRefusal::NoSuchEdge,
        }
    }
}

impl From<FillFailure> for FrameRefusal {
    fn from(u: FillFailure) -> FrameRefusal {
        match u {
            FillFailure::Duplicate => FrameRefusal::Duplicate,
            FillFailure::Aborted => FrameRefusal::AbortedStep,
            FillFailure::Stale => FrameRefusal::StaleStep,
        }
    }
}
