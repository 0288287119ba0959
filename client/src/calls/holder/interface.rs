//! The events that the core of a lease holder takes, and the commands that it gives.

use convoke_graph::dim::Bindings;
use convoke_graph::program::Axes;
use tokio::time::Instant;

use crate::calls::worker_process::WorkerProcess;

/// The most orders that are on their way to one caller: a task, and the news that the function was unloaded.
pub(crate) const MOST_ORDERS: usize = 2;

/// The number of a caller, from the moment it asks until it leaves. Later callers have higher numbers.
pub(crate) type CallerId = u64;

/// What the core asks of an installed lease. Clones are the same lease.
pub(crate) trait InstalledLease: Clone {
    /// Whether calls with axes of these sizes can succeed.
    fn holds(&self, sizes: &Bindings) -> bool;

    /// Whether no call can succeed any more.
    fn is_broken(&self) -> bool;
}

/// What a caller needs of a lease.
#[derive(Debug, Clone, Default)]
pub(crate) struct Request {
    /// The sizes of the dynamic axes.
    pub sizes: Bindings,
    /// The workers that a new plan should not use.
    pub avoid: Vec<WorkerProcess>,
    /// Until when the caller waits at most.
    pub deadline: Option<Instant>,
}

/// What a lease leaves to the one that replaces it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Predecessor {
    /// The bounds that calls had so far.
    pub axes: Axes,
    /// The workers that cannot be used any more.
    pub unusable: Vec<WorkerProcess>,
}

/// An event of a function's lease. `L` is a lease, `F` the failure of a turn, and `C` leads to a caller.
#[derive(Debug)]
pub(crate) enum Event<L, F, C> {
    /// A caller asks for the lease.
    Asked {
        id: CallerId,
        request: Request,
        caller: C,
    },
    /// The program unloads the function. Whoever waits for its lease gives up.
    Unloaded { id: CallerId, caller: C },
    /// A caller is done, with its call or with the release, or has given up.
    Left { id: CallerId },
    /// A [`Task::Release`] has ended. After a failure the lease is still to be released.
    Released {
        id: CallerId,
        outcome: Result<Predecessor, F>,
    },
    /// A [`Task::Plan`] has ended.
    Planned { id: CallerId, outcome: Result<L, F> },
}

/// A task of the caller that has the turn.
#[derive(Debug, PartialEq)]
pub(crate) enum Task<L> {
    /// Release this lease. Who asked for a lease says [`Event::Released`] then; who unloads the function leaves.
    Release(L),
    /// Plan and install a lease for the request, and say [`Event::Planned`].
    Plan(Predecessor),
}

/// Why a caller gets no lease.
#[derive(Debug, PartialEq)]
pub(crate) enum Refusal<F> {
    /// The turn that it waited for has failed.
    Failed(F),
    /// The function was unloaded. Whoever unloads it hears so where there is no lease to release.
    Unloaded,
}

/// What a caller is told.
#[derive(Debug, PartialEq)]
pub(crate) enum Order<L, F> {
    Task(Task<L>),
    /// The caller may call this lease until it leaves; or it gets none, and is to leave.
    Answer(Result<L, Refusal<F>>),
}

/// A command that responds to an event.
#[derive(Debug, PartialEq)]
pub(crate) enum Command<L, F, C> {
    Tell(C, Order<L, F>),
    /// Drop this lease, which is of no use any more.
    Discard(L),
}
