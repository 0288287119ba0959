//! What a session keeps under its lock: the core, definitions and names, peers, and the state of its job.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

use convoke_common::grant::Participant;
use convoke_common::memory::Reservation;
use convoke_graph::Tensor;
use convoke_rendezvous::Link;

use super::super::core::{Core, CountedBytes, Failure, MOST_EARLY};
use super::super::prepared::PreparedOp;
use super::device::DeviceWork;
use crate::node::records::GrowingRecords;

/// A defined op. One that cannot be run is kept as well: every run of it fails with the reason.
#[derive(Clone)]
pub(super) enum DefinedOp {
    Ready(Arc<PreparedOp>),
    Refused(Arc<Refusal>),
}

/// Why a defined op cannot be run, and what is needed to fail its runs.
pub(super) struct Refusal {
    pub(super) operands: usize,
    pub(super) outputs: usize,
    pub(super) origin: u32,
    pub(super) error: Arc<Failure>,
}

/// The state of the session's job.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Runner {
    #[default]
    None,
    /// Compute has the job, but no thread has begun it.
    Queued,
    Active,
}

/// A definition or name that a session keeps, with the reservation of its memory.
pub(super) struct ChargedEntry<T> {
    pub(super) value: T,
    pub(super) _charge: Option<Reservation>,
}

/// The state of a session that changes, behind one lock.
#[derive(Default)]
pub(super) struct SessionState {
    pub(super) core: Core,
    pub(super) ops: BTreeMap<u32, ChargedEntry<DefinedOp>>,
    pub(super) origins: BTreeMap<u32, ChargedEntry<Arc<str>>>,
    pub(super) peers: BTreeMap<u32, NamedPeer>,
    /// What the worker's device has of the session.
    pub(super) work: DeviceWork,
    /// The reservation for handles, waiting ops and reports, until the session ends.
    pub(super) books: Option<GrowingRecords>,
    pub(super) runner: Runner,
    /// Numbers of the requests for an account that the client waits for.
    pub(super) asked: Vec<u64>,
    /// Whether the lane was told that there are reports.
    pub(super) reporting: bool,
    /// Whether a batch of commands came since the last period ended.
    pub(super) heard: bool,
}

impl SessionState {
    /// Whether a thread runs the session's job.
    pub(super) fn is_active(&self) -> bool {
        self.runner == Runner::Active
    }

    /// The name of a place in the client's program, if the client has told it.
    pub(super) fn origin(&self, index: u32) -> Option<Arc<str>> {
        self.origins.get(&index).map(|place| place.value.clone())
    }

    pub(super) fn place(&self, index: u32) -> Option<String> {
        self.origin(index).map(|place| place.to_string())
    }
}

/// A peer that the client has announced to the session.
pub(super) struct NamedPeer {
    pub(super) participant: Participant,
    /// Tensors that wait for a link to the peer; `None` unless a link is being made.
    pub(super) waiting: Option<Vec<Delivery>>,
    /// The latest transfers that were given to a link, as many as may be under way, each with its link.
    pub(super) given: VecDeque<(u64, Weak<Link>)>,
    /// The reservation for the peer's description.
    pub(super) _charge: Reservation,
}

/// A tensor for a peer.
pub(super) struct Delivery {
    pub(super) transfer: u64,
    pub(super) tensor: Tensor,
    pub(super) counted: CountedBytes,
}

impl NamedPeer {
    pub fn new(participant: Participant, charge: Reservation) -> NamedPeer {
        NamedPeer {
            _charge: charge,
            participant,
            waiting: None,
            given: VecDeque::new(),
        }
    }

    /// Lists a transfer as given to a link.
    pub fn give(&mut self, transfer: u64, link: &Arc<Link>) {
        if self.given.len() >= MOST_EARLY {
            self.given.pop_front();
        }
        self.given.push_back((transfer, Arc::downgrade(link)));
    }
}
