//! Predicts how much memory of each participant one step's tensors take, with the allocator that the workers' pools
//! use.
//!
//! Invariant: a fed tensor exists from the start of the step; a received tensor from the time it was written until its
//! last reader on the participant; a sent tensor until the end, since its link may still be reading it. A tensor that
//! the caller's session lends takes no memory of the step on its own worker.

use convoke_graph::offsets::Offsets;

use crate::place::work::{NONE, SizesInBytes, Work};

/// The offset of a flow that takes no memory.
const NOWHERE: u64 = u64::MAX;

/// Returns the most bytes of one step's tensors at once on each participant, including gaps between them. `order` has
/// the positions in the order in which they run.
pub fn activations(
    work: &Work,
    bytes: SizesInBytes<'_>,
    participants: usize,
    participant: &[u16],
    order: &[u32],
) -> Vec<u64> {
    let mut step = Step::new(work, bytes, participants, participant);
    for v in (0..work.flow_value.len()).filter(|v| work.writer[*v] == NONE) {
        for at in step.copies(v) {
            step.allocate(v, at);
        }
    }
    order.iter().for_each(|p| step.run(*p as usize));
    step.memory.iter().map(Memory::most).collect()
}

/// The predicted memory of one participant.
#[derive(Clone)]
struct Memory {
    offsets: Offsets,
    /// Whether a request exceeded any possible memory.
    absurd: bool,
}

impl Memory {
    fn most(&self) -> u64 {
        match self.absurd {
            true => u64::MAX,
            false => self.offsets.most(),
        }
    }

    fn take(&mut self, bytes: u64) -> u64 {
        self.offsets.take(bytes).unwrap_or_else(|| {
            self.absurd = true;
            NOWHERE
        })
    }

    fn give(&mut self, offset: u64, bytes: u64) {
        if offset != NOWHERE {
            self.offsets.give(offset, bytes);
        }
    }
}

/// The copy of a flow at a participant that reads it.
struct Copy {
    participant: u16,
    /// Number of readers that have not run yet.
    reads: u32,
    offset: u64,
}

struct Step<'a> {
    work: &'a Work,
    bytes: SizesInBytes<'a>,
    participant: &'a [u16],
    memory: Vec<Memory>,
    /// The copies of flow `v` are `copies[first[v]..first[v + 1]]`.
    copies: Vec<Copy>,
    first: Vec<usize>,
}

impl<'a> Step<'a> {
    fn new(
        work: &'a Work,
        bytes: SizesInBytes<'a>,
        participants: usize,
        participant: &'a [u16],
    ) -> Step<'a> {
        let mut first = Vec::with_capacity(work.flow_value.len() + 1);
        let mut copies: Vec<Copy> = Vec::new();
        first.push(0);
        for v in 0..work.flow_value.len() {
            let start = copies.len();
            for reader in work.readers.row(v) {
                let m = participant[*reader as usize];
                match copies[start..].iter_mut().find(|c| c.participant == m) {
                    Some(c) => c.reads += 1,
                    None => copies.push(Copy {
                        participant: m,
                        reads: 1,
                        offset: NOWHERE,
                    }),
                }
            }
            first.push(copies.len());
        }
        let memory = Memory {
            offsets: Offsets::new(u64::MAX),
            absurd: false,
        };
        Step {
            work,
            bytes,
            participant,
            memory: vec![memory; participants],
            copies,
            first,
        }
    }

    /// Returns the indices of a flow's copies.
    fn copies(&self, v: usize) -> std::ops::Range<usize> {
        self.first[v]..self.first[v + 1]
    }

    fn take(&mut self, v: usize, participant: u16) -> u64 {
        self.memory[usize::from(participant)].take(self.bytes.flows[v])
    }

    fn give(&mut self, v: usize, participant: u16, offset: u64) {
        self.memory[usize::from(participant)].give(offset, self.bytes.flows[v]);
    }

    fn allocate(&mut self, v: usize, copy: usize) {
        self.copies[copy].offset = self.take(v, self.copies[copy].participant);
    }

    fn run(&mut self, p: usize) {
        let (work, here) = (self.work, self.participant[p]);
        let donor = work.donor(p).map(|v| v as usize).filter(|v| {
            let last = |c: &Copy| c.participant == here && c.reads == 1;
            self.copies[self.copies(*v)].iter().any(last) && !self.is_sent(*v, here)
        });
        let mut inherited = NOWHERE;
        let writes = || work.writes.row(p).iter().map(|v| *v as usize);
        // The operands still exist while the outputs are made, except one that donates its memory.
        let mut made = Vec::with_capacity(work.writes.row(p).len());
        for (i, v) in writes().enumerate() {
            made.push(match work.is_lent[p] || i == 0 && donor.is_some() {
                true => NOWHERE,
                false => self.take(v, here),
            });
        }
        let (inner, memory) = (self.bytes.inner[p], &mut self.memory[usize::from(here)]);
        if inner > 0 {
            let offset = memory.take(inner);
            memory.give(offset, inner);
        }
        for v in work.reads.row(p).iter().map(|v| *v as usize) {
            let sent = self.is_sent(v, here);
            let Some(at) = self.copies(v).find(|c| self.copies[*c].participant == here) else {
                continue;
            };
            self.copies[at].reads -= 1;
            let offset = self.copies[at].offset;
            if donor == Some(v) {
                inherited = offset;
            } else if self.copies[at].reads == 0 && !sent {
                self.give(v, here, offset);
            }
        }
        for (i, v) in writes().enumerate() {
            let offset = match i == 0 && donor.is_some() {
                true => inherited,
                false => made[i],
            };
            let mut used = work.flow_is_result[v];
            for at in self.copies(v) {
                used = true;
                match self.copies[at].participant == here {
                    true => self.copies[at].offset = offset,
                    false => self.allocate(v, at),
                }
            }
            if !used {
                self.give(v, here, offset);
            }
        }
    }

    /// Returns whether `v` was written on participant `here` and is sent to others.
    fn is_sent(&self, v: usize, here: u16) -> bool {
        let writer = self.work.writer[v];
        let written_here = writer != NONE && self.participant[writer as usize] == here;
        let elsewhere = || {
            let copies = &self.copies[self.copies(v)];
            copies.iter().any(|c| c.participant != here)
        };
        written_here && (self.work.flow_is_result[v] || elsewhere())
    }
}
