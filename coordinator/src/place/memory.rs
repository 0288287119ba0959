//! Predicts what a placement needs of each member's memory.
//!
//! Invariants
//! 1. Loading runs the init nodes in order: a raw operand is there from its first use until its last, unless
//!    the step reads it too.
//! 2. In a step, fed tensors are there from the start; a received tensor from when it was written until
//!    its last reader here; a sent tensor, which its link may still be reading, until the end.
//! 3. `peak` = max(loading, weights + steps in flight × activations).

use super::cluster::Team;
use super::work::{NONE, Work};

/// Bytes that a placement needs of one member.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Constants that steps read, in the form they read them.
    pub weights: u64,
    /// Constants as read from files.
    pub artifacts: u64,
    /// Most bytes while loading.
    pub loading: u64,
    /// Most bytes of one step's tensors at once.
    pub activations: u64,
    pub peak: u64,
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
    let activations = activations(work, team.size(), member, order);
    let mut positions = vec![Vec::new(); team.size()];
    member
        .iter()
        .enumerate()
        .for_each(|(p, m)| positions[*m as usize].push(p));
    let each = activations.into_iter().zip(positions).enumerate();
    each.map(|(m, (activations, positions))| {
        let mut retained = vec![false; work.const_value.len()];
        let weights = positions.iter().flat_map(|p| work.weights.row(*p));
        weights.for_each(|c| retained[*c as usize] = true);
        for (c, home) in work.const_results.iter().zip(homes) {
            retained[*c as usize] |= usize::from(*home) == m;
        }
        let (weights, artifacts, loading) = loading(work, &retained);
        let steps = activations.saturating_mul(u64::from(in_flight.max(1)));
        let peak = loading.max(weights.saturating_add(steps));
        Usage {
            weights,
            artifacts,
            loading,
            activations,
            peak,
        }
    })
    .collect()
}

/// Bytes retained, bytes read from files, and most bytes at once while the init part runs.
fn loading(work: &Work, retained: &[bool]) -> (u64, u64, u64) {
    let needed = needed(work, retained);
    let mut uses = vec![0u32; retained.len()];
    for (i, _) in needed.nodes.iter().enumerate().filter(|(_, n)| **n) {
        work.init_reads
            .row(i)
            .iter()
            .for_each(|c| uses[*c as usize] += 1);
    }
    let mut loaded = vec![false; retained.len()];
    let (mut now, mut peak) = (0u64, 0u64);
    for (i, _) in needed.nodes.iter().enumerate().filter(|(_, n)| **n) {
        let (reads, writes) = (work.init_reads.row(i), work.init_writes.row(i));
        for c in reads.iter().chain(writes) {
            if !std::mem::replace(&mut loaded[*c as usize], true) {
                now = now.saturating_add(work.const_bytes[*c as usize]);
            }
        }
        peak = peak.max(now);
        reads.iter().for_each(|c| uses[*c as usize] -= 1);
        for c in reads.iter().chain(writes).map(|c| *c as usize) {
            if uses[c] == 0 && !retained[c] {
                now -= work.const_bytes[c].min(now);
            }
        }
    }
    let sum = |of: &[bool], bytes: &[u64]| {
        let each = of.iter().zip(bytes).filter(|(of, _)| **of);
        each.fold(0u64, |sum, (_, b)| sum.saturating_add(*b))
    };
    let weights = sum(retained, &work.const_bytes);
    let artifacts = sum(&needed.constants, &work.const_file_bytes);
    (weights, artifacts, peak.max(weights))
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

/// Most bytes of one step's tensors at once on each member.
fn activations(work: &Work, members: usize, member: &[u16], order: &[u32]) -> Vec<u64> {
    // Reads that each (flow, member) still waits for: one entry per pair, found from the flow.
    let mut first = Vec::with_capacity(work.flow_value.len() + 1);
    let mut pending: Vec<(u16, u32)> = Vec::new();
    first.push(0);
    for v in 0..work.flow_value.len() {
        let start = pending.len();
        for reader in work.readers.row(v) {
            let m = member[*reader as usize];
            match pending[start..].iter_mut().find(|(at, _)| *at == m) {
                Some((_, n)) => *n += 1,
                None => pending.push((m, 1)),
            }
        }
        first.push(pending.len());
    }

    let mut live = vec![0u64; members];
    let mut peak = vec![0u64; members];
    let mut grow = |live: &mut [u64], m: usize, bytes: u64| {
        live[m] = live[m].saturating_add(bytes);
        peak[m] = peak[m].max(live[m]);
    };
    for v in (0..work.flow_value.len()).filter(|v| work.writer[*v] == NONE) {
        for (m, _) in &pending[first[v]..first[v + 1]] {
            grow(&mut live, *m as usize, work.block_bytes[v]);
        }
    }
    for p in order.iter().map(|p| *p as usize) {
        let here = member[p];
        let donor = work.donor(p).filter(|v| {
            let mut at = pending[first[*v as usize]..first[*v as usize + 1]].iter();
            at.any(|(m, n)| *m == here && *n == 1)
                && !is_sent(work, *v, here, &pending, &first, member)
        });
        for (i, v) in work.writes.row(p).iter().enumerate() {
            if i > 0 || donor.is_none() {
                grow(&mut live, here as usize, work.block_bytes[*v as usize]);
            }
        }
        for v in work.reads.row(p) {
            let sent = is_sent(work, *v, here, &pending, &first, member);
            let entries = &mut pending[first[*v as usize]..first[*v as usize + 1]];
            let Some((_, n)) = entries.iter_mut().find(|(m, _)| *m == here) else {
                continue;
            };
            *n -= 1;
            if *n == 0 && donor != Some(*v) && !sent {
                live[here as usize] -= work.block_bytes[*v as usize].min(live[here as usize]);
            }
        }
        for v in work.writes.row(p) {
            let entries = &pending[first[*v as usize]..first[*v as usize + 1]];
            for (m, _) in entries.iter().filter(|(m, _)| *m != here) {
                grow(&mut live, *m as usize, work.block_bytes[*v as usize]);
            }
            if entries.is_empty() && !work.flow_is_result[*v as usize] {
                live[here as usize] -= work.block_bytes[*v as usize].min(live[here as usize]);
            }
        }
    }
    peak
}

/// Whether `v` was written on member `here` and leaves it.
fn is_sent(
    work: &Work,
    v: u32,
    here: u16,
    pending: &[(u16, u32)],
    first: &[usize],
    member: &[u16],
) -> bool {
    let v = v as usize;
    let writer = work.writer[v];
    let written_here = writer != NONE && member[writer as usize] == here;
    let elsewhere = || {
        pending[first[v]..first[v + 1]]
            .iter()
            .any(|(m, _)| *m != here)
    };
    written_here && (work.flow_is_result[v] || elsewhere())
}
