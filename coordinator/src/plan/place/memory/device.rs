//! Predicts how much memory of a participant's device a placement needs, where the device has memory of its own.
//!
//! Invariants
//! 1. The device takes as much for steps as the host does, where it runs any node at all.
//! 2. It keeps a copy of each constant that nodes read which it runs. Nothing is loaded there: constants are copied once
//!    the host has them in their final form.

use super::model::{Need, Presence};
use crate::place::bytes::sum;
use crate::place::device_nodes::DeviceNodes;

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
    pub fn of(nodes: &DeviceNodes, presence: &Presence, read: &[bool], steps: u64) -> DeviceUsage {
        let bytes = nodes.constant_bytes();
        let beside = steps.saturating_add(nodes.unfilled());
        let (lacks, unpaid) = presence.absent(read);
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
