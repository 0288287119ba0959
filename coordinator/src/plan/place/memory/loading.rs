//! Predicts what a worker loads for the constants that it keeps: the bytes of files, and the most bytes at once.
//!
//! Invariant: loading runs the init nodes in order. A raw operand exists from its first use until its last, unless the
//! step reads it too.

use std::collections::BTreeSet;

use convoke_graph::artifact::{CHUNK, RIDES, chunks_of};

use crate::place::bytes::sum;
use crate::place::work::{ArtifactBytes, Work};

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

impl Loading {
    /// Predicts the loading of everything that the `retained` constants depend on.
    pub fn of(work: &Work, retained: &[bool]) -> Loading {
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
