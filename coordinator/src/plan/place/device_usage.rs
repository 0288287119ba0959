//! Predicts how much memory of a participant's device a placement needs, where the device has memory of its own.
//!
//! Invariants
//! 1. The device takes as much for steps as the host does, where it runs any node at all.
//! 2. It keeps a copy of each constant that nodes read which it runs. Nothing is loaded there: constants are copied once
//!    the host has them in their final form.

use super::cluster::Team;
use super::device_nodes::DeviceNodes;
use super::memory::{Need, absent, sum};
use super::memory_model::Presence;
use super::work::Work;

/// Bytes that a placement needs of one participant's device; none where the device is the host itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceUsage {
    /// Bytes in all, where the device has none of the constants.
    pub needed: u64,
    /// The need without the constants that the device has already, all of which stays taken.
    pub beyond: Need,
}

impl DeviceUsage {
    /// Predicts the need of a device that keeps the constants `read`, beside `steps` bytes of tensors.
    pub(super) fn of(
        nodes: &DeviceNodes,
        presence: &Presence,
        read: &[bool],
        steps: u64,
    ) -> DeviceUsage {
        let bytes = nodes.constant_bytes();
        let beside = steps.saturating_add(nodes.unfilled());
        let (lacks, unpaid) = absent(presence, read);
        let missing = sum(&lacks, bytes).saturating_add(beside);
        DeviceUsage {
            needed: sum(read, bytes).saturating_add(beside),
            beyond: Need {
                memory: missing,
                budget: missing.saturating_add(sum(&unpaid, bytes)),
            },
        }
    }
}

/// Returns for each participant which constants its device copies into memory of its own: those that nodes read which it
/// runs. `None` where the device is the host itself, or runs none of the nodes and reserves nothing.
pub fn on_devices(work: &Work, team: &Team, participant: &[u16]) -> Vec<Option<Vec<bool>>> {
    let mut all: Vec<Option<Vec<bool>>> = vec![None; team.size()];
    for (p, m) in participant.iter().enumerate() {
        let worker = &team.workers[usize::from(*m)];
        if worker.device_memory.is_none() || !worker.on_device.runs(p) {
            continue;
        }
        let none = || vec![false; work.const_value.len()];
        let read = all[usize::from(*m)].get_or_insert_with(none);
        let weights = work.weights.row(p).iter();
        weights.for_each(|c| read[*c as usize] = true);
    }
    all
}
