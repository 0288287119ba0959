//! The settings that a scenario changes on a host while it runs.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use convoke_graph::ids::FunctionId;
use tokio::sync::Notify;

/// Which unsynced writes survive a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SurvivingWrites {
    /// No unsynced write survives.
    None,
    /// All unsynced writes survive.
    All,
    /// The earlier writes of each file survive, and perhaps a part of the next one.
    Prefix,
}

/// A node that ends the process that runs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeadlyNode {
    /// The next node of a function, whichever it is.
    Next,
    /// The node of this name in this function.
    Named(FunctionId, String),
}

/// The settings of one host. Each may be changed at any time.
#[derive(Debug)]
pub struct Knobs {
    job_ms: [AtomicU64; 2],
    slow: AtomicU32,
    hang: AtomicBool,
    unhang: Notify,
    refuse: AtomicBool,
    panics: Mutex<Vec<(String, u32)>>,
    deadly: Mutex<Option<DeadlyNode>>,
    died: Mutex<Option<(FunctionId, String)>>,
    clock_off: AtomicI64,
    cut_after: AtomicI64,
    disk_full: AtomicBool,
    disk_fails: AtomicBool,
    disk_slow: AtomicU64,
    disk_flips: AtomicU32,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Knobs {
    fn default() -> Knobs {
        Knobs {
            job_ms: [AtomicU64::new(0), AtomicU64::new(2)],
            slow: AtomicU32::new(1),
            hang: AtomicBool::new(false),
            unhang: Notify::new(),
            refuse: AtomicBool::new(false),
            panics: Mutex::default(),
            deadly: Mutex::default(),
            died: Mutex::default(),
            clock_off: AtomicI64::new(0),
            cut_after: AtomicI64::new(-1),
            disk_full: AtomicBool::new(false),
            disk_fails: AtomicBool::new(false),
            disk_slow: AtomicU64::new(0),
            disk_flips: AtomicU32::new(0),
        }
    }
}

impl Knobs {
    /// Sets the range from which the milliseconds that a kernel takes are drawn; it is 0 to 2 at first.
    pub fn set_job_ms(&self, least: u64, most: u64) {
        self.job_ms[0].store(least.min(most), Ordering::Relaxed);
        self.job_ms[1].store(most, Ordering::Relaxed);
    }

    pub(super) fn job_ms(&self) -> (u64, u64) {
        let [least, most] = [0, 1].map(|i| self.job_ms[i].load(Ordering::Relaxed));
        let slow = u64::from(self.slow.load(Ordering::Relaxed));
        // The bounds may be in the wrong order if they were changed between the two reads.
        (least.min(most) * slow, most * slow)
    }

    /// Makes kernels take this many times as long.
    pub fn set_slow(&self, factor: u32) {
        self.slow.store(factor.max(1), Ordering::Relaxed);
    }

    /// Makes kernels hang: they do not return until this is unset.
    pub fn set_hang(&self, hang: bool) {
        self.hang.store(hang, Ordering::Relaxed);
        if !hang {
            self.unhang.notify_waiters();
        }
    }

    pub(super) async fn while_hung(&self) {
        loop {
            let unhung = self.unhang.notified();
            if !self.hang.load(Ordering::Relaxed) {
                return;
            }
            unhung.await;
        }
    }

    /// Whether kernels hang.
    pub fn hangs(&self) -> bool {
        self.hang.load(Ordering::Relaxed)
    }

    /// Makes the compute pool refuse every job.
    pub fn set_refuse(&self, refuse: bool) {
        self.refuse.store(refuse, Ordering::Relaxed);
    }

    pub(super) fn refuses(&self) -> bool {
        self.refuse.load(Ordering::Relaxed)
    }

    /// Cancels all panics that are still to come.
    pub fn calm(&self) {
        locked(&self.panics).clear();
    }

    /// Makes the next `count` launches of nodes called `node` panic; `*` stands for any node.
    pub fn panic_at(&self, node: impl Into<String>, count: u32) {
        let mut panics = locked(&self.panics);
        panics.push((node.into(), count));
    }

    /// Whether this launch has to panic. If so, it is counted.
    pub(super) fn panics(&self, node: &str) -> bool {
        let mut panics = locked(&self.panics);
        let due = panics
            .iter_mut()
            .find(|(at, left)| *left > 0 && (at == "*" || at == node));
        let Some((_, left)) = due else { return false };
        *left -= 1;
        panics.retain(|(_, left)| *left > 0);
        true
    }

    /// Makes a node end the process that runs it, or none any more.
    pub fn set_deadly(&self, node: Option<DeadlyNode>) {
        *locked(&self.deadly) = node;
    }

    /// Whether the process ends in this node. If so, the death is noted, and nothing runs in that process any more.
    pub(super) fn dies_in(&self, function: &FunctionId, node: &str) -> bool {
        let dies = match &*locked(&self.deadly) {
            None => false,
            Some(DeadlyNode::Next) => *function != FunctionId::default(),
            Some(DeadlyNode::Named(of, name)) => of == function && name == node,
        };
        if dies {
            locked(&self.died).get_or_insert_with(|| (*function, node.to_owned()));
        }
        dies
    }

    /// Whether a node has ended the process, which is still to be taken away.
    pub(super) fn has_died(&self) -> bool {
        locked(&self.died).is_some()
    }

    /// Takes the node that has ended the process, if one has.
    pub fn take_death(&self) -> Option<(FunctionId, String)> {
        locked(&self.died).take()
    }

    /// Sets by how many seconds the calendar is off.
    pub fn set_clock_off(&self, seconds: i64) {
        self.clock_off.store(seconds, Ordering::Relaxed);
    }

    pub(super) fn clock_off(&self) -> i64 {
        self.clock_off.load(Ordering::Relaxed)
    }

    /// Makes the disk full, or no longer full.
    pub fn set_disk_full(&self, full: bool) {
        self.disk_full.store(full, Ordering::Relaxed);
    }

    pub(super) fn disk_is_full(&self) -> bool {
        self.disk_full.load(Ordering::Relaxed)
    }

    /// Makes all reads and writes of the disk fail, or work again.
    pub fn set_disk_fails(&self, fails: bool) {
        self.disk_fails.store(fails, Ordering::Relaxed);
    }

    pub(super) fn disk_fails(&self) -> bool {
        self.disk_fails.load(Ordering::Relaxed)
    }

    /// Makes each job at the disk take up to this many milliseconds more.
    pub fn set_disk_slow(&self, most: u64) {
        self.disk_slow.store(most, Ordering::Relaxed);
    }

    pub(super) fn disk_slow(&self) -> u64 {
        self.disk_slow.load(Ordering::Relaxed)
    }

    /// Makes this many of a million reads of the disk give a wrong bit.
    pub fn set_disk_flips(&self, rate: u32) {
        self.disk_flips.store(rate, Ordering::Relaxed);
    }

    pub(super) fn disk_flips(&self) -> u32 {
        self.disk_flips.load(Ordering::Relaxed)
    }

    /// Makes the host's power fail in the `n`th change of its disk from now, where 0 is the next one.
    pub fn cut_power_after(&self, n: u32) {
        self.cut_after.store(i64::from(n), Ordering::Relaxed);
    }

    /// Counts a change of the disk. Returns whether the power fails in it.
    pub(super) fn cuts_power(&self) -> bool {
        let left = self.cut_after.load(Ordering::Relaxed);
        if left >= 0 {
            self.cut_after.store(left - 1, Ordering::Relaxed);
        }
        left == 0
    }
}
