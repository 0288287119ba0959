//! The order in which a load reads chunks; pure computation.
//!
//! ```text
//! literals in the order they are needed -> chunks, each with the small literals inside it that ride along
//! ```
//!
//! Invariants
//! 1. Neighbouring literals share the chunk that both touch.
//! 2. A literal rides along in the first chunk that holds all of it: models keep a layer's small weights beside its
//!    large ones, and would otherwise fetch a chunk for each. The bytes that ride are bounded.

use std::collections::{BTreeMap, BTreeSet};

use convoke_graph::artifact::{RIDES, chunks_of};
use convoke_graph::graph::Literal;

/// A range of bytes of an artifact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    pub artifact: u32,
    pub offset: u64,
    pub len: u64,
}

impl Range {
    /// The range that a literal refers to, if it is one.
    pub fn of(literal: &Literal) -> Option<Range> {
        match literal {
            Literal::Range {
                artifact,
                offset,
                len,
            } => Some(Range {
                artifact: *artifact,
                offset: *offset,
                len: *len,
            }),
            Literal::Inline(_) => None,
        }
    }

    /// The chunks that the range touches.
    pub fn chunks(&self) -> std::ops::Range<u64> {
        chunks_of(self.offset, self.len)
    }
}

/// A small literal that is copied from a chunk which is read for another literal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rider {
    pub value: u32,
    pub range: Range,
}

/// One chunk to read.
#[derive(Debug, PartialEq, Eq)]
pub struct Fetch {
    pub artifact: u32,
    pub index: u64,
    pub riders: Vec<Rider>,
}

/// Iterates over the chunks to read, as [`Fetch`]es.
pub struct Order {
    wanted: std::vec::IntoIter<u32>,
    /// The ranges of literals that are not read yet, by value.
    ranges: BTreeMap<u32, Range>,
    /// Small literals by the chunk that holds them.
    small: BTreeMap<(u32, u64), Vec<u32>>,
    artifact: u32,
    chunks: std::ops::Range<u64>,
    last: Option<(u32, u64)>,
    /// Bytes that may still ride along.
    ahead: u64,
}

impl Order {
    /// Orders the chunks of the values in `wanted`, which come in the order they are needed. A value that is no range
    /// needs no chunk.
    pub fn new(literals: &[(u32, Literal)], wanted: Vec<u32>, ahead: u64) -> Order {
        // Skip literals that nobody wants.
        let all: BTreeSet<u32> = wanted.iter().copied().collect();
        let ranges: BTreeMap<u32, Range> = literals
            .iter()
            .filter(|(v, _)| all.contains(v))
            .filter_map(|(v, l)| Some((*v, Range::of(l)?)))
            .collect();
        let mut small: BTreeMap<_, Vec<u32>> = BTreeMap::new();
        for (v, range) in &ranges {
            let chunks = range.chunks();
            if range.len <= RIDES && chunks.end - chunks.start == 1 {
                let at = (range.artifact, chunks.start);
                small.entry(at).or_default().push(*v);
            }
        }
        Order {
            wanted: wanted.into_iter(),
            ranges,
            small,
            artifact: 0,
            chunks: 0..0,
            last: None,
            ahead,
        }
    }

    /// Bytes of all literals that are not read yet.
    pub fn bytes(&self) -> u64 {
        let lengths = self.ranges.values().map(|r| r.len);
        lengths.fold(0, u64::saturating_add)
    }

    fn riders(&mut self, at: (u32, u64)) -> Vec<Rider> {
        let small = self.small.remove(&at).unwrap_or_default();
        let mut riders = Vec::new();
        for value in small {
            let fits = |r: &&Range| r.len <= self.ahead;
            if let Some(range) = self.ranges.get(&value).filter(fits).copied() {
                self.ahead -= range.len;
                self.ranges.remove(&value);
                riders.push(Rider { value, range });
            }
        }
        riders
    }
}

impl Iterator for Order {
    type Item = Fetch;

    fn next(&mut self) -> Option<Fetch> {
        loop {
            for index in self.chunks.by_ref() {
                let at = (self.artifact, index);
                if self.last.replace(at) != Some(at) {
                    let riders = self.riders(at);
                    return Some(Fetch {
                        artifact: at.0,
                        index,
                        riders,
                    });
                }
            }
            let v = self.wanted.next()?;
            if let Some(range) = self.ranges.remove(&v) {
                (self.artifact, self.chunks) = (range.artifact, range.chunks());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use convoke_graph::artifact::CHUNK;

    /// These ranges of artifact 0, as the literals of values 0, 1, 2…
    fn literals(ranges: &[(u64, u64)]) -> Vec<(u32, Literal)> {
        let literal = |((offset, len), v): (&(u64, u64), u32)| {
            let range = Literal::Range {
                artifact: 0,
                offset: *offset,
                len: *len,
            };
            (v, range)
        };
        ranges.iter().zip(0..).map(literal).collect()
    }

    fn check(ranges: &[(u64, u64)], wanted: &[u32], ahead: u64, expected: &[(u64, &[u32])]) {
        let order = Order::new(&literals(ranges), wanted.to_vec(), ahead);
        let values = |f: &Fetch| f.riders.iter().map(|r| r.value).collect();
        let found: Vec<(u64, Vec<u32>)> = order.map(|f| (f.index, values(&f))).collect();
        let expected: Vec<(u64, Vec<u32>)> =
            expected.iter().map(|(i, r)| (*i, r.to_vec())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn neighbours_share_a_chunk_and_others_do_not() {
        let ranges = [(0, CHUNK + 9), (CHUNK + 9, CHUNK), (0, CHUNK)];
        check(
            &ranges,
            &[0, 1, 2],
            0,
            &[(0, &[]), (1, &[]), (2, &[]), (0, &[])],
        );
        check(&ranges, &[2, 2], 0, &[(0, &[])]);
        check(&[(7, 0)], &[0], 0, &[]);
    }

    #[test]
    fn small_literals_ride_once_and_within_the_bound() {
        let ranges = [(0, CHUNK), (10, 60), (90, 50), (CHUNK - 5, 10)];
        check(&ranges, &[0, 1, 2], 110, &[(0, &[1, 2])]);
        check(&ranges, &[0, 1, 2], 70, &[(0, &[1])]);
        check(&ranges, &[2, 0, 1], 1000, &[(0, &[1])]);
        // A literal that nobody wants is not loaded along.
        check(&ranges, &[2, 0], 1000, &[(0, &[])]);
        // A literal that lies in two chunks does not ride.
        check(&ranges, &[0, 3, 1, 2], 1000, &[(0, &[1, 2]), (1, &[])]);
    }
}
