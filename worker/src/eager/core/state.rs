//! What a session's core keeps, and how many bytes all of it takes besides tensors.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use convoke_common::actor;
use convoke_common::error::{Code, Error, Result};
use convoke_graph::Tensor;
use convoke_rendezvous::Peer;
use convoke_rendezvous::eager::wire::{MOST_HANDLES, Report};
use rustc_hash::FxHashMap;
use slab::Slab;
use smallvec::SmallVec;

use super::super::value::{DeviceValue, Value};
use super::failure::{CountedBytes, Failure};
use super::run::{Run, WaitingRun};
use super::transfers::{EarlyTransfer, ExpectedTransfer};

/// Most transfers that may come before they are announced: as many as a client may have under way.
pub(in crate::eager) const MOST_EARLY: usize = 1024;
/// Most reports that wait for the client to read them: several for each handle that it may have.
const MOST_REPORTS: usize = 4 * MOST_HANDLES;

/// Most bytes that a handle takes besides its tensor: itself, its place in a table, and the list of its waiters.
const HANDLE: u64 = 256;
/// Most bytes that a value takes besides its elements where the worker has a device.
const DEVICE_VALUE: u64 = 384;
/// Bytes of an announced transfer, and of a tensor on its way to a peer.
const TRANSFER: u64 = 256;

/// The number of a handle.
pub(in crate::eager) type Id = u64;

/// The state of a handle.
pub(super) enum HandleState {
    Pending {
        waiters: SmallVec<[Waiter; 1]>,
        dropped: bool,
    },
    Ready(Value),
    Failed(Arc<Failure>),
}

/// A handle, with the place in the client's program that issued it.
pub(super) struct Handle {
    pub(super) state: HandleState,
    pub(super) origin: u32,
}

/// A command that waits for a handle to resolve.
pub(super) enum Waiter {
    /// The op at this entry, unless another op has the entry by now.
    Run {
        op: usize,
        first: Id,
        operand: usize,
    },
    Give {
        peer: u32,
        transfer: u64,
    },
    /// A step that reads the handle.
    Step(TensorCallback),
}

/// How a step uses a handle's tensor once it has resolved.
pub(crate) type TensorCallback = Box<dyn FnOnce(HandleOutcome) + Send>;

/// A command that must be carried out outside the session.
pub(in crate::eager) enum Effect {
    Send {
        peer: u32,
        transfer: u64,
        value: Value,
        /// Counts the tensor's place in queues, until the link has let go of it.
        counted: CountedBytes,
    },
    Abort {
        peer: u32,
        transfer: u64,
        error: Arc<Failure>,
    },
    /// A step that waited for a handle goes on.
    Step(TensorCallback, Result<Value, Arc<Error>>),
}

/// The handles, ops and transfers of a session.
#[derive(Default)]
pub(in crate::eager) struct Core {
    pub(super) handles: FxHashMap<Id, Handle>,
    /// Whether the worker has a device with memory of its own.
    pub(super) has_device: bool,
    pub(super) next: Id,
    pub(super) waiting: Slab<WaitingRun>,
    pub(super) ready: BinaryHeap<Reverse<Run>>,
    pub(super) expected: BTreeMap<u64, ExpectedTransfer>,
    pub(super) early: BTreeMap<(u64, String), (Peer, EarlyTransfer)>,
    /// Requests of steps for handles that are not made yet, by handle and in their order: a step's command may overtake
    /// the session's.
    pub(super) ahead: BTreeMap<Id, SmallVec<[HandleUse; 1]>>,
    /// Number of these requests.
    pub(super) wanted: usize,
    /// One more than the highest transfer that was announced so far.
    pub(super) announced: u64,
    pub(super) effects: VecDeque<Effect>,
    /// Handles made and resolved since the last report to the client.
    pub(super) resolved: u64,
    pub(super) reports: Vec<Report>,
    pub(super) failures: usize,
    /// Bytes of the errors in the reports.
    pub(super) reported: u64,
    /// Bytes of the errors that handles have, and of tensors on their way to peers.
    pub(super) counted: Arc<AtomicU64>,
    /// Bytes of the ops that wait or are ready, of the sends that wait for their tensors, and of the errors in the reports.
    pub(super) kept: u64,
}

/// A request of a step for a handle that is not made yet.
pub(super) enum HandleUse {
    Lend(bool, TensorCallback),
    Fill(Tensor),
}

/// A handle's tensor, or the error that explains its absence, for a step.
pub(crate) type HandleOutcome = Result<Tensor, Arc<Error>>;

/// The same for what the session keeps.
pub(super) type HandleResult = Result<Value, Arc<Failure>>;

impl actor::Core for Core {
    type Command = Effect;

    fn next_command(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    fn commands(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects).into()
    }
}

impl Core {
    /// The core of a session at a worker that has a device with memory of its own, or none.
    pub fn new(has_device: bool) -> Core {
        Core {
            has_device,
            ..Core::default()
        }
    }

    /// The value of a handle whose tensor came to the host, or was made there.
    pub(super) fn value_of(&self, tensor: Tensor) -> Value {
        match self.has_device {
            false => Value::Host(tensor),
            true => Value::Device(Arc::new(DeviceValue::of_host(tensor))),
        }
    }

    /// The number of the next handle.
    pub fn next(&self) -> Id {
        self.next
    }

    /// Number of handles that have a tensor or will have one.
    pub fn handles(&self) -> usize {
        self.handles.len()
    }

    /// Bytes that handles, ops, transfers and reports take, without the tensors in counted memory.
    pub fn footprint(&self) -> u64 {
        let reports = self.reports.len() * size_of::<Report>();
        let handle = match self.has_device {
            false => HANDLE,
            true => HANDLE + DEVICE_VALUE,
        };
        self.handles.len() as u64 * handle
            + self.expected.len() as u64 * TRANSFER
            + reports as u64
            + self.counted.load(Ordering::Relaxed)
            + self.kept
    }

    /// Makes an error that handles may share.
    pub fn failure(&self, error: Error) -> Arc<Failure> {
        Failure::new(error, &self.counted)
    }

    /// Counts a tensor that is on its way to a peer, until what this returns is dropped.
    pub fn on_its_way(&self) -> CountedBytes {
        CountedBytes::new(TRANSFER, &self.counted)
    }

    /// Fails where the session has more handles or unread reports than a client may cause.
    pub fn check_bounds(&self) -> Result<()> {
        let msg = match (self.handles.len(), self.reports.len()) {
            (handles, _) if handles > MOST_HANDLES => "a session has more handles than it may",
            (_, reports) if reports > MOST_REPORTS => "a client does not read what it is told",
            _ => return Ok(()),
        };
        Err(Error::new(Code::ProtocolViolation, msg))
    }

    /// A handle's tensor, if it is there, and in the host's memory.
    pub fn value(&self, id: Id) -> Option<Tensor> {
        match &self.handles.get(&id)?.state {
            HandleState::Ready(Value::Host(tensor)) => Some(tensor.clone()),
            HandleState::Ready(Value::Device(value)) => value.host(),
            _ => None,
        }
    }

    /// Number of handles and bytes of their tensors, by the place in the client's program that issued them.
    pub fn held(&self) -> BTreeMap<u32, (u64, u64)> {
        let mut held: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for handle in self.handles.values() {
            let entry = held.entry(handle.origin).or_default();
            entry.0 += 1;
            if let HandleState::Ready(value) = &handle.state {
                entry.1 += value.byte_len() as u64;
            }
        }
        held
    }
}
