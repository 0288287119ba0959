//! The work of a session that its worker's device has: launched ops, and copies of values to the host.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use convoke_common::error::Result;
use convoke_graph::{Shape, Tensor};
use smallvec::SmallVec;

use super::super::Session;
use crate::device::{AHEAD, Device, DeviceQueue, DeviceStep, OwnedDevice, UnwatchedKernels};
use crate::eager::core::{Failure, Id};
use crate::eager::prepared::PreparedOp;
use crate::eager::value::DeviceValue;

/// Most predicted time of work that is enqueued ahead of the device.
pub(super) const MOST_AHEAD: Duration = Duration::from_nanos(AHEAD);
/// Most bytes of copies to the host that are under way at once, unless one has more: a device may keep as many in memory of
/// the host that nobody counts.
const COPYING: u64 = 64 << 20;

/// What a session has of its worker's device.
pub(in super::super) struct SessionDevice {
    pub(super) owned: OwnedDevice,
    /// The session's queue, opened for its first op that the device runs.
    pub(super) queue: OnceLock<Arc<dyn DeviceQueue>>,
    /// Set when the session ends.
    pub(super) stopped: Arc<AtomicBool>,
    /// The work of copying values to the host.
    pub(super) copies: Arc<DeviceStep>,
}

impl SessionDevice {
    pub fn new(owned: OwnedDevice) -> SessionDevice {
        let stopped = Arc::<AtomicBool>::default();
        SessionDevice {
            owned,
            queue: OnceLock::new(),
            copies: Arc::new(DeviceStep::new(stopped.clone(), Arc::new(UnwatchedKernels))),
            stopped,
        }
    }

    /// Ends all work that has not begun.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Lets the device end work at once that it has not begun, after [`SessionDevice::stop`].
    pub fn recall(&self) {
        if let Some(queue) = self.queue.get() {
            queue.recall();
        }
    }

    /// Whether a kernel of the session runs, or a value is copied to the host.
    pub fn at_work(&self, work: &DeviceWork) -> bool {
        work.runs_kernel() || self.copies.at_work().is_some()
    }

    pub fn device(&self) -> &dyn Device {
        &*self.owned.device
    }
}

/// An op that the device has.
pub(super) struct LaunchedOp {
    pub(super) first: Id,
    pub(super) prepared: Arc<PreparedOp>,
    pub(super) step: Arc<DeviceStep>,
    /// The shapes of the operands, for errors.
    pub(super) shapes: SmallVec<[Option<Shape>; 4]>,
    /// The values that it makes.
    pub(super) made: SmallVec<[Weak<DeviceValue>; 2]>,
    /// The values that were copied to the device for it.
    pub(super) copied: SmallVec<[Weak<DeviceValue>; 2]>,
    pub(super) predicted: Duration,
    /// Bytes that it counts for.
    pub(super) kept: u64,
    /// Its failure, where one of its readers met it before the op was known to have ended.
    pub(super) failure: Option<Arc<Failure>>,
}

/// A launch that has failed, until all launches have ended that may have read its results.
pub(super) struct FailedLaunch {
    pub(super) number: u64,
    pub(super) failure: Arc<Failure>,
    /// One more than the number of the last launch that may depend on its results.
    pub(super) until: u64,
}

/// Called with a value in the host's memory, or with the failure of the launch that should have made it.
pub(super) type BroughtCallback = Box<dyn FnOnce(&Session, Result<Tensor, Arc<Failure>>) + Send>;

/// A copy of a value to the host.
pub(in super::super) struct HostCopy {
    pub(super) value: Arc<DeviceValue>,
    pub(super) bytes: u64,
    /// Whether an op on the host reads the value.
    pub(super) is_read: bool,
    pub(super) then: SmallVec<[BroughtCallback; 1]>,
}

/// The work of a session that its worker's device has.
#[derive(Default)]
pub(in super::super) struct DeviceWork {
    /// How many launches and copies have got a number.
    pub(super) numbered: u64,
    pub(super) launched: BTreeMap<u64, LaunchedOp>,
    /// The copies to the host that are under way, or wait until fewer are.
    pub(super) copies: BTreeMap<u64, HostCopy>,
    /// Numbers of the copies that wait.
    pub(super) waiting: VecDeque<u64>,
    /// Number of the copies that are under way, and their bytes.
    pub(super) under_way: usize,
    pub(super) copying: u64,
    /// Whether a thread begins those that wait, until none can begin.
    pub(super) begins: bool,
    pub(super) failed: Vec<FailedLaunch>,
    /// Predicted time of what is launched.
    pub(super) ahead: Duration,
    /// Predicted time of what is launched and has no event behind it.
    pub(super) unmarked: Option<Duration>,
}

impl DeviceWork {
    /// Whether no further op may be enqueued before some have ended.
    pub fn is_full(&self) -> bool {
        self.ahead >= MOST_AHEAD
    }

    /// Whether the device has neither an op nor a copy of the session.
    pub fn is_idle(&self) -> bool {
        self.launched.is_empty() && self.under_way == 0
    }

    /// Whether a kernel of the session runs on the device.
    pub fn runs_kernel(&self) -> bool {
        let mut all = self.launched.values();
        all.any(|op| op.step.at_work().is_some())
    }

    /// The session has ended: what its ops took is counted no more, and copies that wait are not made. Returns these, to be
    /// dropped without the session's lock.
    pub fn end(&mut self) -> Vec<HostCopy> {
        self.launched.values_mut().for_each(|op| op.kept = 0);
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let copies = waiting.filter_map(|number| self.copies.remove(&number));
        copies.collect()
    }

    /// The number of the next copy that may begin.
    pub(super) fn next_copy(&mut self) -> Option<u64> {
        let next = *self.waiting.front()?;
        let bytes = self.copies.get(&next).map_or(0, |copy| copy.bytes);
        if self.copying > 0 && self.copying.saturating_add(bytes) > COPYING {
            return None;
        }
        self.copying += bytes;
        self.under_way += 1;
        self.waiting.pop_front()
    }

    pub(super) fn number(&mut self) -> u64 {
        self.numbered += 1;
        self.numbered - 1
    }

    /// The number of the launch or copy that devices know as `node`: the latest one.
    pub(super) fn number_of(&self, node: u32) -> Option<u64> {
        let latest = self.numbered.checked_sub(1)?;
        let number = latest - latest % NODES + u64::from(node);
        match number > latest {
            true => number.checked_sub(NODES),
            false => Some(number),
        }
    }
}

/// How many launches and copies devices can tell apart.
const NODES: u64 = u32::MAX as u64;

pub(super) fn node_of(number: u64) -> u32 {
    (number % NODES) as u32
}
