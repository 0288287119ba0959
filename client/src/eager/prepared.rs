//! The ops that a worker has prepared: a cache of bounded size, with those that were used last.

use std::hash::{Hash, Hasher};
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

use convoke_graph::DType;
use convoke_graph::graph::Attrs;
use convoke_graph::ops::OpDef;
use convoke_rendezvous::eager::wire::MOST_PREPARED;
use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;

/// The key of a prepared op: all that its preparation depends on.
#[derive(Clone)]
pub(crate) struct Key {
    pub op: &'static OpDef,
    pub attrs: Attrs,
    pub operands: SmallVec<[Option<DType>; 4]>,
    pub outputs: u8,
    /// Whether the worker reports the outputs' shapes.
    pub report: bool,
    /// The line of the program that issues the op.
    pub origin: &'static Location<'static>,
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        std::ptr::eq(self.op, other.op)
            && self.origin == other.origin
            && self.operands == other.operands
            && (self.outputs, self.report) == (other.outputs, other.report)
            && self.attrs == other.attrs
    }
}

impl Key {
    fn hash(&self) -> u64 {
        let mut h = FxHasher::default();
        std::ptr::from_ref(self.op).hash(&mut h);
        // One place in the program has one line and column, though its `Location` may lie at several addresses.
        (self.origin.line(), self.origin.column()).hash(&mut h);
        self.operands.hash(&mut h);
        self.attrs.0.len().hash(&mut h);
        h.finish()
    }
}

struct Entry {
    key: Key,
    hash: u64,
    used: u64,
    /// The count of the cache's clock when the entry was made, which no other entry has.
    made: u64,
    /// Whether the worker knows the op.
    told: bool,
}

/// Remembers the place of an op in the cache, so that the op need not be looked for by its key as long as it is there.
#[derive(Default)]
pub(crate) struct RememberedPlace(AtomicU64);

/// The ops that a worker has prepared, as its client knows them.
pub(super) struct PreparedOps {
    /// The entries, by place.
    entries: Vec<Entry>,
    /// The places of the entries whose keys have a hash.
    places: FxHashMap<u64, SmallVec<[u32; 1]>>,
    most: u32,
    clock: u64,
    hits: u64,
    misses: u64,
}

impl Default for PreparedOps {
    fn default() -> PreparedOps {
        PreparedOps::of(MOST_PREPARED)
    }
}

impl PreparedOps {
    fn of(most: u32) -> PreparedOps {
        PreparedOps {
            entries: Vec::new(),
            places: FxHashMap::default(),
            most,
            clock: 0,
            hits: 0,
            misses: 0,
        }
    }

    /// Returns the op's place, and whether the op has to be defined there first, which is so until
    /// [`PreparedOps::told`] is called.
    pub fn find(&mut self, key: &Key) -> (u32, bool) {
        self.clock += 1;
        let hash = key.hash();
        let places = self.places.get(&hash).into_iter().flatten();
        let known = places
            .copied()
            .find(|i| self.entries[*i as usize].key == *key);
        if let Some(index) = known {
            let entry = &mut self.entries[index as usize];
            entry.used = self.clock;
            match entry.told {
                true => self.hits += 1,
                false => self.misses += 1,
            }
            return (index, !entry.told);
        }
        self.misses += 1;
        let entry = Entry {
            key: key.clone(),
            hash,
            used: self.clock,
            made: self.clock,
            told: false,
        };
        let index = match self.entries.len() < self.most as usize {
            true => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
            false => self.replace(entry),
        };
        self.places.entry(hash).or_default().push(index);
        (index, true)
    }

    /// Notes that the op was defined, and lets `slot` remember its place.
    pub fn told(&mut self, index: u32, slot: Option<&RememberedPlace>) {
        if let Some(entry) = self.entries.get_mut(index as usize) {
            entry.told = true;
            if let Some(slot) = slot {
                let place = entry.made * u64::from(self.most) + u64::from(index);
                slot.0.store(place, Ordering::Relaxed);
            }
        }
    }

    /// Returns the place that `slot` remembers, if its op is still there.
    pub fn again(&mut self, slot: &RememberedPlace) -> Option<u32> {
        let place = slot.0.load(Ordering::Relaxed);
        let (made, index) = (place / u64::from(self.most), place % u64::from(self.most));
        let entry = self.entries.get_mut(index as usize)?;
        if entry.made != made || !entry.told {
            return None;
        }
        self.clock += 1;
        self.hits += 1;
        entry.used = self.clock;
        Some(index as u32)
    }

    /// Replaces the entry that was not used for longest. Returns its place.
    fn replace(&mut self, entry: Entry) -> u32 {
        let all = self.entries.iter_mut().enumerate();
        let Some((index, oldest)) = all.min_by_key(|(_, e)| e.used) else {
            return 0;
        };
        let (index, out) = (index as u32, std::mem::replace(oldest, entry));
        if let Some(places) = self.places.get_mut(&out.hash) {
            places.retain(|i| *i != index);
            if places.is_empty() {
                self.places.remove(&out.hash);
            }
        }
        index
    }

    /// How often an op was prepared already, and how often not.
    pub fn hits_and_misses(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }
}

#[cfg(test)]
mod tests {
    use convoke_graph::ops;

    use super::*;

    fn key(op: &str, dtype: DType) -> Key {
        Key {
            op: ops::lookup(op).unwrap(),
            attrs: Attrs::default(),
            operands: [Some(dtype)].into_iter().collect(),
            outputs: 1,
            report: false,
            origin: Location::caller(),
        }
    }

    #[test]
    fn the_one_not_used_for_longest_makes_room() {
        let mut p = PreparedOps::of(2);
        let [relu, relu64, neg] = [
            key("Relu", DType::F32),
            key("Relu", DType::F64),
            key("Neg", DType::F32),
        ];
        let mut check = |key: &Key, want: (u32, bool)| {
            let found = p.find(key);
            assert_eq!(found, want);
            p.told(found.0, None);
        };
        check(&relu, (0, true));
        check(&relu64, (1, true));
        check(&relu, (0, false));
        check(&neg, (1, true));
        check(&relu, (0, false));
        check(&relu64, (1, true));
        assert_eq!(p.hits_and_misses(), (2, 4));
    }

    #[test]
    fn what_could_not_be_defined_is_defined_when_it_is_next_used() {
        let mut p = PreparedOps::of(2);
        let relu = key("Relu", DType::F32);
        assert_eq!([p.find(&relu), p.find(&relu)], [(0, true); 2]);
        p.told(0, None);
        assert_eq!(p.find(&relu), (0, false));
        assert_eq!(p.hits_and_misses(), (1, 2));
    }

    #[test]
    fn a_slot_finds_its_op_until_another_is_in_its_place() {
        let mut p = PreparedOps::of(1);
        let (relu, neg) = (key("Relu", DType::F32), key("Neg", DType::F32));
        let slot = RememberedPlace::default();
        assert_eq!(p.again(&slot), None);
        p.find(&relu);
        p.told(0, Some(&slot));
        assert_eq!(p.again(&slot), Some(0));
        p.find(&neg);
        p.told(0, None);
        assert_eq!(p.again(&slot), None);
        assert_eq!(p.hits_and_misses(), (1, 2));
    }
}
