//! Predicts what a placement needs of each member's memory.
//!
//! Invariants
//! 1. Loading runs the init nodes in order: a raw operand is there from its first use until its last, unless
//!    the step reads it too.
//! 2. `needed` = max(loading, weights + steps in flight × activations): what the worker reserves, and no process
//!    takes more of the memory that it offers.
//! 3. The peak of a process is less where axes stay below their bounds, and more by what is on its way: weights, for
//!    which a worker keeps a window aside, and tensors that cross.

use std::collections::BTreeSet;

use convoke_common::artifact::{CHUNK, RIDES, chunks_of, coming};
use convoke_common::block::touched;

use super::activations::activations;
use super::cluster::Team;
use super::work::{NONE, Stored, Work};

/// Most bytes that the transport holds of tensors that cross, each way; measured over loopback.
const IN_TRANSIT: u64 = 4 << 20;

/// Bytes that a placement needs of one member.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Constants that steps read, in the form they read them.
    pub weights: u64,
    /// Constants as read from files.
    pub artifacts: u64,
    /// The chunks that are asked for on their account, whole.
    pub chunks: u64,
    /// Most bytes while loading.
    pub loading: u64,
    /// Most bytes of one step's tensors at once, at the axes' bounds.
    pub activations: u64,
    pub needed: u64,
}

/// Predicts the usage of each member. `order`: positions in the order they run; `homes`: the member that
/// holds each of [`Work::const_results`].
pub fn usage(
    work: &Work,
    team: &Team,
    member: &[u16],
    order: &[u32],
    homes: &[u16],
    in_flight: u32,
) -> Vec<Usage> {
    let activations = activations(work, &work.bound_bytes, team.size(), member, order);
    let each = activations
        .into_iter()
        .zip(retained(work, team, member, homes));
    each.map(|(activations, retained)| {
        let weights = sum(&retained, &work.const_bytes);
        let loading = Loading::new(work, &retained);
        let steps = activations.saturating_mul(u64::from(in_flight.max(1)));
        Usage {
            weights,
            artifacts: loading.artifacts,
            chunks: loading.chunks,
            loading: loading.peak,
            activations,
            needed: loading.peak.max(weights.saturating_add(steps)),
        }
    })
    .collect()
}

/// Predicts the peak of each member's process above its base footprint, with the axes as expected.
pub fn peaks(
    work: &Work,
    team: &Team,
    member: &[u16],
    order: &[u32],
    in_flight: u32,
    usage: &[Usage],
) -> Vec<u64> {
    let expected = activations(work, &work.flow_bytes, team.size(), member, order);
    let crossing = crossing(work, team.size(), member);
    let each = expected.into_iter().zip(crossing).zip(usage);
    let each = each.zip(&team.workers);
    each.map(|(((expected, crossing), usage), worker)| {
        let all = |bytes: u64| bytes.saturating_mul(u64::from(in_flight.max(1)));
        let [come, go] = crossing.map(|bytes| all(bytes).min(IN_TRANSIT));
        let steps = touched(all(usage.activations), all(expected)).saturating_add(come + go);
        // Buffers of chunks stay until all is loaded.
        let coming = usage.chunks.min(coming(usage.artifacts, worker.window));
        // What the transport holds of weights is little beside the chunks' own buffers.
        let coming = coming + (coming / 4).min(IN_TRANSIT);
        let loading = usage.loading.saturating_add(coming);
        loading.max(usage.weights.saturating_add(steps))
    })
    .collect()
}

/// Bytes of tensors that come to each member and that leave it in a step, with the axes as expected.
fn crossing(work: &Work, members: usize, member: &[u16]) -> Vec<[u64; 2]> {
    let mut all = vec![[0u64; 2]; members];
    for (v, bytes) in work.flow_bytes.iter().enumerate() {
        let writer = work.writer[v];
        let from = (writer != NONE).then(|| usize::from(member[writer as usize]));
        let readers = work.readers.row(v).iter();
        let mut to: Vec<usize> = readers.map(|p| usize::from(member[*p as usize])).collect();
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

/// The constants that each member keeps.
fn retained(work: &Work, team: &Team, member: &[u16], homes: &[u16]) -> Vec<Vec<bool>> {
    let mut all = vec![vec![false; work.const_value.len()]; team.size()];
    for (p, m) in member.iter().enumerate() {
        let mine = &mut all[usize::from(*m)];
        work.weights
            .row(p)
            .iter()
            .for_each(|c| mine[*c as usize] = true);
    }
    for (c, home) in work.const_results.iter().zip(homes) {
        all[usize::from(*home)][*c as usize] = true;
    }
    all
}

fn sum(of: &[bool], bytes: &[u64]) -> u64 {
    let each = of.iter().zip(bytes).filter(|(of, _)| **of);
    each.fold(0u64, |sum, (_, b)| sum.saturating_add(*b))
}

/// What the init part does to memory.
struct Loading {
    /// Bytes read from files.
    artifacts: u64,
    /// Bytes of the chunks asked for.
    chunks: u64,
    /// Most bytes of constants at once.
    peak: u64,
}

impl Loading {
    /// Loads what `retained` constants depend on.
    fn new(work: &Work, retained: &[bool]) -> Loading {
        let needed = needed(work, retained);
        let mut uses = vec![0u32; retained.len()];
        let nodes = || needed.nodes.iter().enumerate().filter(|(_, n)| **n);
        for (i, _) in nodes() {
            let reads = work.init_reads.row(i).iter();
            reads.for_each(|c| uses[*c as usize] += 1);
        }
        let mut loaded = vec![false; retained.len()];
        let mut asked = Asked::default();
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
        // What steps read as it is comes last.
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

/// The chunks that a worker asks for, which reads literals in the order it needs them: neighbours share the chunk that
/// both touch, small ones ride along with what lies beside them, and others ask for a chunk again.
#[derive(Default)]
struct Asked {
    bytes: u64,
    chunks: u64,
    last: Option<(u32, u64)>,
    seen: BTreeSet<(u32, u64)>,
}

impl Asked {
    fn read(&mut self, stored: Option<Stored>) {
        let Some(Stored {
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
        // Those between are full of one literal.
        self.seen.extend([first, last]);
    }
}

/// Init nodes and constants that `wanted` constants depend on.
pub struct Needed {
    pub nodes: Vec<bool>,
    pub constants: Vec<bool>,
}

/// The closure of `wanted` constants over init nodes.
pub fn needed(work: &Work, wanted: &[bool]) -> Needed {
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
    Needed { nodes, constants }
}
