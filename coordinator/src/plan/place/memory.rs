//! Predicts how much memory of each participant a placement needs.
//!
//! Invariants
//! 1. Loading runs the init nodes in order: a raw operand exists from its first use until its last, unless the step
//!    reads it too.
//! 2. `needed` = max(loading, weights + steps in flight × activations). The worker reserves that much, and no process
//!    takes more of the memory that it offers.
//! 3. The peak of a process is lower if axes stay below their bounds, and higher by the bytes in transit: weights, for
//!    which a worker reserves a load buffer, and tensors that cross.

use std::collections::{BTreeMap, BTreeSet};

use convoke_graph::artifact::{CHUNK, RIDES, chunks_of, coming};
use convoke_graph::block::touched;
use convoke_graph::program::ConstantId;

use super::activations::activations;
use super::cluster::Team;
use super::device_usage::{DeviceUsage, on_devices};
use super::memory_model::{Presence, PresentConstants};
use super::work::{ArtifactBytes, NONE, Work};

/// Most bytes of crossing tensors that the transport holds in each direction; measured over loopback.
const IN_TRANSIT: u64 = 4 << 20;

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

/// The cost of loading constants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Loading {
    /// Bytes read from files.
    pub artifacts: u64,
    /// Bytes of the requested chunks, whole.
    pub chunks: u64,
    /// Most bytes of constants at once.
    pub peak: u64,
}

/// What a part needs of one memory of its worker, without the constants that are there already.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Need {
    /// Bytes of the memory.
    pub memory: u64,
    /// Bytes that the client's token is charged for: also those of constants that only others have paid for.
    pub budget: u64,
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

/// Returns which of the constants `kept` are not there, and which are there without being charged to the client's token.
pub(super) fn absent(presence: &Presence, kept: &[bool]) -> (Vec<bool>, Vec<bool>) {
    let each = || kept.iter().copied().enumerate();
    let lacks = each().map(|(c, kept)| kept && !presence.has(c));
    let unpaid = each().map(|(c, kept)| kept && presence.has(c) && !presence.is_paid(c));
    (lacks.collect(), unpaid.collect())
}

/// Returns the need without the constants that the worker has, the part of it that is kept, the bytes of the constants
/// in `retained` that the worker lacks, and the cost of loading them.
fn beyond(
    work: &Work,
    presence: &Presence,
    retained: &[bool],
    steps: u64,
) -> (Need, Need, u64, Loading) {
    let (lacks, unpaid) = absent(presence, retained);
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

/// Returns for each participant which constants it keeps: those that its steps read, and those that it is the home of.
pub fn retained(work: &Work, read: &[Vec<bool>], homes: &[u16]) -> Vec<Vec<bool>> {
    let mut all = read.to_vec();
    for (c, home) in work.const_results.iter().zip(homes) {
        all[usize::from(*home)][*c as usize] = true;
    }
    all
}

pub(super) fn sum(of: &[bool], bytes: &[u64]) -> u64 {
    let each = of.iter().zip(bytes).filter(|(of, _)| **of);
    each.fold(0u64, |sum, (_, b)| sum.saturating_add(*b))
}

impl Loading {
    /// Predicts the loading of everything that the `retained` constants depend on.
    fn of(work: &Work, retained: &[bool]) -> Loading {
        let needed = needed(work, retained);
        let mut uses = vec![0u32; retained.len()];
        let nodes = || needed.nodes.iter().enumerate().filter(|(_, n)| **n);
        for (i, _) in nodes() {
            let reads = work.init_reads.row(i).iter();
            reads.for_each(|c| uses[*c as usize] += 1);
        }
        let mut loaded = vec![false; retained.len()];
        let mut asked = ChunkRequests::default();
        let (mut now, mut peak) = (0u64, 0u64);
        for (i, _) in nodes() {
            let (reads, writes) = (work.init_reads.row(i), work.init_writes.row(i));
            let both = || reads.iter().chain(writes).map(|c| *c as usize);
            for c in both() {
                if !std::mem::replace(&mut loaded[c], true) {
                    now = now.saturating_add(work.const_bytes[c]);
                    asked.read(work.const_stored[c]);
                }
            }
            peak = peak.max(now);
            reads.iter().for_each(|c| uses[*c as usize] -= 1);
            for c in both().filter(|c| uses[*c] == 0 && !retained[*c]) {
                now -= work.const_bytes[c].min(now);
            }
        }
        // Constants that steps read in their stored form are loaded last.
        for c in (0..loaded.len()).filter(|c| retained[*c] && !loaded[*c]) {
            asked.read(work.const_stored[c]);
        }
        Loading {
            artifacts: asked.bytes,
            chunks: asked.chunks.saturating_mul(CHUNK),
            peak: peak.max(sum(retained, &work.const_bytes)),
        }
    }
}

/// Counts the chunks that a worker requests while it reads literals in the order in which it needs them. Neighbours
/// share the chunk that both touch, small literals come with a chunk that was requested before, and others request a
/// chunk again.
#[derive(Default)]
struct ChunkRequests {
    bytes: u64,
    chunks: u64,
    last: Option<(u32, u64)>,
    seen: BTreeSet<(u32, u64)>,
}

impl ChunkRequests {
    fn read(&mut self, stored: Option<ArtifactBytes>) {
        let Some(ArtifactBytes {
            artifact,
            offset,
            len,
        }) = stored.filter(|s| s.len > 0)
        else {
            return;
        };
        self.bytes = self.bytes.saturating_add(len);
        let chunks = chunks_of(offset, len);
        let (first, last) = ((artifact, chunks.start), (artifact, chunks.end - 1));
        if len <= RIDES && first == last && self.seen.contains(&first) {
            return;
        }
        let shared = u64::from(self.last == Some(first));
        self.chunks = self
            .chunks
            .saturating_add(chunks.end - chunks.start - shared);
        self.last = Some(last);
        // The chunks in between belong to this literal alone.
        self.seen.extend([first, last]);
    }
}

/// The init nodes and constants that `wanted` constants depend on.
pub struct InitDependencies {
    pub nodes: Vec<bool>,
    pub constants: Vec<bool>,
}

/// Returns the init nodes and constants that the `wanted` constants depend on, directly or not.
pub fn needed(work: &Work, wanted: &[bool]) -> InitDependencies {
    let mut constants = wanted.to_vec();
    let mut nodes = vec![false; work.inits.len()];
    for i in (0..work.inits.len()).rev() {
        nodes[i] = work
            .init_writes
            .row(i)
            .iter()
            .any(|c| constants[*c as usize]);
        if nodes[i] {
            work.init_reads
                .row(i)
                .iter()
                .for_each(|c| constants[*c as usize] = true);
        }
    }
    InitDependencies { nodes, constants }
}
