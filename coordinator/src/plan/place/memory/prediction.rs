//! Predicts how much memory of each participant a placement needs.
//!
//! Invariants
//! 1. `needed` = max(loading, weights + steps in flight × activations). The worker reserves that much, and no process
//!    takes more of the memory that it offers.
//! 2. The peak of a process is lower if axes stay below their bounds, and higher by the bytes in transit: weights, for
//!    which a worker reserves a load buffer, and tensors that cross.

use convoke_graph::artifact::coming;
use convoke_graph::block::touched;

use super::activations::activations;
use super::device::DeviceUsage;
use super::loading::Loading;
use super::model::{Need, Presence};
use super::usage::Usage;
use crate::place::bytes::sum;
use crate::place::cluster::Team;
use crate::place::work::{NONE, Work};

/// Most bytes of crossing tensors that the transport holds in each direction; measured over loopback.
const IN_TRANSIT: u64 = 4 << 20;

/// Predicts the usage of each participant. `order` has the positions in the order in which they run, and `homes` the
/// participant that holds each of [`Work::const_results`].
pub fn usage(
    work: &Work,
    team: &Team,
    participant: &[u16],
    order: &[u32],
    homes: &[u16],
    in_flight: u32,
) -> Vec<Usage> {
    let activations = activations(work, work.at_bounds(), team.size(), participant, order);
    let read = read_by_steps(work, team.size(), participant);
    let on_device = on_devices(work, team, participant);
    let each = activations
        .into_iter()
        .zip(retained(work, &read, homes))
        .zip(on_device);
    each.zip(&team.workers)
        .map(|(((activations, retained), on_device), worker)| {
            let weights = sum(&retained, &work.const_bytes);
            let loading = Loading::of(work, &retained);
            let steps = activations.saturating_mul(u64::from(in_flight.max(1)));
            let needed = loading.peak.max(weights.saturating_add(steps));
            let both = |bytes: u64| Need {
                memory: bytes,
                budget: bytes,
            };
            let device = worker.device_memory.as_ref();
            let device = device.zip(on_device.as_ref());
            let nodes = &worker.on_device;
            let device =
                device.map(|(own, read)| DeviceUsage::of(nodes, &own.presence, read, steps));
            let presence = &worker.host.presence;
            let (beyond, kept, missing, lacking) = match presence.is_empty() {
                true => {
                    let kept = weights.saturating_add(steps);
                    (both(needed), both(kept), weights, loading)
                }
                false => beyond(work, presence, &retained, steps),
            };
            Usage {
                weights,
                artifacts: loading.artifacts,
                chunks: loading.chunks,
                loading: loading.peak,
                activations,
                needed,
                beyond,
                kept,
                missing,
                lacking,
                device: device.unwrap_or_default(),
            }
        })
        .collect()
}

/// Returns the need without the constants that the worker has, the part of it that is kept, the bytes of the constants
/// in `retained` that the worker lacks, and the cost of loading them.
fn beyond(
    work: &Work,
    presence: &Presence,
    retained: &[bool],
    steps: u64,
) -> (Need, Need, u64, Loading) {
    let (lacks, unpaid) = presence.absent(retained);
    let missing = sum(&lacks, &work.const_bytes);
    let loading = Loading::of(work, &lacks);
    let unpaid = sum(&unpaid, &work.const_bytes);
    let need = |memory: u64| Need {
        memory,
        budget: memory.saturating_add(unpaid),
    };
    let kept = missing.saturating_add(steps);
    let all = need(loading.peak.max(kept));
    (all, need(kept), missing, loading)
}

/// Predicts the peak of each participant's process above its base footprint, with the axes at their expected sizes.
pub fn peaks(
    work: &Work,
    team: &Team,
    participant: &[u16],
    order: &[u32],
    in_flight: u32,
    usage: &[Usage],
) -> Vec<u64> {
    let expected = activations(work, work.at_expected(), team.size(), participant, order);
    let crossing = crossing(work, team.size(), participant);
    let each = expected.into_iter().zip(crossing).zip(usage);
    let each = each.zip(&team.workers);
    each.map(|(((expected, crossing), usage), worker)| {
        let all = |bytes: u64| bytes.saturating_mul(u64::from(in_flight.max(1)));
        let [come, go] = crossing.map(|bytes| all(bytes).min(IN_TRANSIT));
        let steps = touched(all(usage.activations), all(expected)).saturating_add(come + go);
        // The buffers of chunks stay until all weights are loaded.
        let coming = usage
            .chunks
            .min(coming(usage.artifacts, worker.load_buffer));
        // Most bytes of weights in transit are in the chunk buffers; the transport itself adds little.
        let coming = coming + (coming / 4).min(IN_TRANSIT);
        let loading = usage.loading.saturating_add(coming);
        loading.max(usage.weights.saturating_add(steps))
    })
    .collect()
}

/// Returns the bytes of tensors that each participant receives and sends in a step, with the axes at their expected
/// sizes.
fn crossing(work: &Work, participants: usize, participant: &[u16]) -> Vec<[u64; 2]> {
    let mut all = vec![[0u64; 2]; participants];
    for (v, bytes) in work.flow_bytes.iter().enumerate() {
        let writer = work.writer[v];
        let from = (writer != NONE).then(|| usize::from(participant[writer as usize]));
        let readers = work.readers.row(v).iter();
        let mut to: Vec<usize> = readers
            .map(|p| usize::from(participant[*p as usize]))
            .collect();
        to.sort_unstable();
        to.dedup();
        to.retain(|m| Some(*m) != from);
        for m in &to {
            all[*m][0] = all[*m][0].saturating_add(*bytes);
        }
        if let Some(from) = from {
            let times = to.len() as u64 + u64::from(work.flow_is_result[v]);
            all[from][1] = all[from][1].saturating_add(bytes.saturating_mul(times));
        }
    }
    all
}

/// Returns for each participant which constants its steps read.
pub fn read_by_steps(work: &Work, participants: usize, participant: &[u16]) -> Vec<Vec<bool>> {
    let mut all = vec![vec![false; work.const_value.len()]; participants];
    for (p, m) in participant.iter().enumerate() {
        let mine = &mut all[usize::from(*m)];
        work.weights
            .row(p)
            .iter()
            .for_each(|c| mine[*c as usize] = true);
    }
    all
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

/// Returns for each participant which constants it keeps: those that its steps read, and those that it is the home of.
pub fn retained(work: &Work, read: &[Vec<bool>], homes: &[u16]) -> Vec<Vec<bool>> {
    let mut all = read.to_vec();
    for (c, home) in work.const_results.iter().zip(homes) {
        all[usize::from(*home)][*c as usize] = true;
    }
    all
}
