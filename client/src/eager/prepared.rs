//! Which ops a worker has ready: a cache of bounded size, of what was used last.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::Location;

use convoke_common::DType;
use convoke_common::graph::Attrs;
use convoke_common::ops::OpDef;
use convoke_rendezvous::eager::wire::MOST_PREPARED;
use smallvec::SmallVec;

/// What an op is prepared for.
#[derive(Clone)]
pub(crate) struct Key {
    pub op: &'static OpDef,
    pub attrs: Attrs,
    pub operands: SmallVec<[Option<DType>; 4]>,
    pub outputs: u8,
    /// Whether the worker is to tell the outputs' shapes.
    pub report: bool,
    /// Where the program issues it.
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
        let mut h = DefaultHasher::new();
        std::ptr::from_ref(self.op).hash(&mut h);
        // One place has one file name and line, though perhaps at several addresses.
        (self.origin.line(), self.origin.column()).hash(&mut h);
        self.operands.hash(&mut h);
        self.attrs.0.len().hash(&mut h);
        h.finish()
    }
}

struct Entry {
    key: Key,
    index: u32,
    used: u64,
    /// Whether the worker knows it.
    told: bool,
}

/// See the module.
pub(super) struct Prepared {
    entries: HashMap<u64, SmallVec<[Entry; 1]>>,
    most: u32,
    count: u32,
    clock: u64,
    hits: u64,
    misses: u64,
}

impl Default for Prepared {
    fn default() -> Prepared {
        Prepared::of(MOST_PREPARED)
    }
}

impl Prepared {
    fn of(most: u32) -> Prepared {
        Prepared {
            entries: HashMap::new(),
            most,
            count: 0,
            clock: 0,
            hits: 0,
            misses: 0,
        }
    }

    /// Where the op is, and whether it has to be defined there first: until [`Prepared::told`] says that it is.
    pub fn find(&mut self, key: &Key) -> (u32, bool) {
        self.clock += 1;
        let hash = key.hash();
        let known = self.entries.get_mut(&hash);
        if let Some(entry) = known.and_then(|e| e.iter_mut().find(|e| e.key == *key)) {
            entry.used = self.clock;
            match entry.told {
                true => self.hits += 1,
                false => self.misses += 1,
            }
            return (entry.index, !entry.told);
        }
        self.misses += 1;
        let index = match self.count < self.most {
            true => {
                self.count += 1;
                self.count - 1
            }
            false => self.evict(),
        };
        let entry = Entry {
            key: key.clone(),
            index,
            used: self.clock,
            told: false,
        };
        self.entries.entry(hash).or_default().push(entry);
        (index, true)
    }

    /// The op was defined.
    pub fn told(&mut self, key: &Key) {
        let known = self.entries.get_mut(&key.hash());
        if let Some(entry) = known.and_then(|e| e.iter_mut().find(|e| e.key == *key)) {
            entry.told = true;
        }
    }

    /// Forgets what was not used for longest, and gives its place.
    fn evict(&mut self) -> u32 {
        let all = self
            .entries
            .iter()
            .flat_map(|(hash, of_hash)| of_hash.iter().map(|e| (e.used, e.index, *hash)));
        let Some((_, index, hash)) = all.min() else {
            return 0;
        };
        if let Some(of_hash) = self.entries.get_mut(&hash) {
            of_hash.retain(|e| e.index != index);
            if of_hash.is_empty() {
                self.entries.remove(&hash);
            }
        }
        index
    }

    /// How often an op was there already, and how often not.
    pub fn hits_and_misses(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }
}

#[cfg(test)]
mod tests {
    use convoke_common::ops;

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
        let mut p = Prepared::of(2);
        let [relu, relu64, neg] = [
            key("Relu", DType::F32),
            key("Relu", DType::F64),
            key("Neg", DType::F32),
        ];
        let mut check = |key: &Key, want: (u32, bool)| {
            assert_eq!(p.find(key), want);
            p.told(key);
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
        let mut p = Prepared::of(2);
        let relu = key("Relu", DType::F32);
        assert_eq!([p.find(&relu), p.find(&relu)], [(0, true); 2]);
        p.told(&relu);
        assert_eq!(p.find(&relu), (0, false));
        assert_eq!(p.hits_and_misses(), (1, 2));
    }
}
