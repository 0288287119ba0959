//! The memory that a placement needs of one participant, and the memory that several parts need on one worker.

use std::collections::BTreeMap;

use convoke_graph::program::ConstantId;

use super::device::DeviceUsage;
use super::loading::Loading;
use super::model::{Need, PresentConstants};

/// Bytes that a placement needs of one participant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of the constants that steps read, in the form in which they read them.
    pub weights: u64,
    /// Bytes of constants as they are read from files.
    pub artifacts: u64,
    /// Bytes of the whole chunks that are requested for these constants.
    pub chunks: u64,
    /// Most bytes at once while loading.
    pub loading: u64,
    /// Most bytes of one step's tensors at once, at the axes' bounds.
    pub activations: u64,
    /// Bytes in all, where the worker has none of the constants.
    pub needed: u64,
    /// The need without the constants that the worker has already.
    pub beyond: Need,
    /// The part of `beyond` that stays taken when all is loaded.
    pub kept: Need,
    /// Bytes of the constants that the worker lacks.
    pub missing: u64,
    /// The cost of loading those constants.
    pub lacking: Loading,
    /// The need of a device that has memory of its own.
    pub device: DeviceUsage,
}

/// The memory that several parts need on one worker. The worker loads them one after the other, each beside the memory
/// that the earlier ones keep.
#[derive(Debug, Clone, Default)]
pub struct PartsUsage {
    pub total: Usage,
    /// Predicted peak of the process above its base footprint.
    pub peak: u64,
    /// The constants of the parts.
    pub constants: PresentConstants,
    /// Bytes that the parts keep, where the worker has none of their constants.
    kept: u64,
}

impl PartsUsage {
    /// Adds a part that is loaded next. `alone` is its need on a worker that has the constants of the parts before it
    /// and no others; `there` is its need on the worker as it is then.
    pub fn add(
        &mut self,
        alone: &Usage,
        there: &Usage,
        peak: u64,
        constants: &BTreeMap<ConstantId, u64>,
    ) {
        let add = |a: &mut u64, b: u64| *a = a.saturating_add(b);
        let total = &mut self.total;
        let beside = |kept: u64, part: u64, before: u64| before.max(kept.saturating_add(part));
        self.peak = beside(self.kept, peak, self.peak);
        total.needed = beside(self.kept, alone.beyond.memory, total.needed);
        let (kept, beyond) = (&mut total.kept, &mut total.beyond);
        beyond.memory = beside(kept.memory, there.beyond.memory, beyond.memory);
        beyond.budget = beside(kept.budget, there.beyond.budget, beyond.budget);
        add(&mut self.kept, alone.kept.memory);
        add(&mut kept.memory, there.kept.memory);
        add(&mut kept.budget, there.kept.budget);
        add(&mut total.weights, alone.missing);
        add(&mut total.missing, there.missing);
        add(&mut total.artifacts, alone.lacking.artifacts);
        add(&mut total.chunks, alone.lacking.chunks);
        add(&mut total.activations, alone.activations);
        total.loading = total.loading.max(alone.lacking.peak);
        let device = &mut total.device;
        add(&mut device.needed, there.device.needed);
        add(&mut device.beyond.memory, there.device.beyond.memory);
        add(&mut device.beyond.budget, there.device.beyond.budget);
        self.constants.add(constants);
    }
}
