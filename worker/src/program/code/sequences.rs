//! The grouping of nodes into sequences: nodes that wait for the same arrivals run one after the other.
//!
//! ```text
//! arrivals x, y:   a = f(x)   b = g(a)   c = h(b, y)   d = k(c)        {x}: a b     {x, y}: c d
//! ```
//! Within a sequence nothing is counted: once all that it waits for is there, its nodes run in their order.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

/// Most arrivals that a set lists one by one. A larger union becomes a set of its own, told apart by the sets that it
/// joins, so that its sequences may be smaller than they could be.
const MOST: usize = 64;

/// The number of a set of arrivals.
pub(super) type SetId = u32;

type StableHasher = BuildHasherDefault<std::collections::hash_map::DefaultHasher>;

/// The sets of arrivals, each once.
#[derive(Default)]
pub(super) struct Sets {
    sets: Vec<Box<[u32]>>,
    ids: HashMap<Box<[u32]>, SetId, StableHasher>,
    joined: HashMap<(SetId, SetId), SetId, StableHasher>,
    arrivals: u32,
}

impl Sets {
    /// The empty set.
    pub fn none(&mut self) -> SetId {
        self.id(Box::default())
    }

    /// The set of one new arrival.
    pub fn arrival(&mut self) -> SetId {
        self.arrivals += 1;
        self.id(Box::new([self.arrivals]))
    }

    fn id(&mut self, set: Box<[u32]>) -> SetId {
        if let Some(id) = self.ids.get(&set) {
            return *id;
        }
        let id = self.sets.len() as SetId;
        self.sets.push(set.clone());
        self.ids.insert(set, id);
        id
    }

    /// The set of the arrivals in either set.
    pub fn join(&mut self, a: SetId, b: SetId) -> SetId {
        if a == b {
            return a;
        }
        let pair = (a.min(b), a.max(b));
        if let Some(id) = self.joined.get(&pair) {
            return *id;
        }
        let [x, y] = [pair.0, pair.1].map(|i| &*self.sets[i as usize]);
        let mut both: Vec<u32> = x.iter().chain(y).copied().collect();
        both.sort_unstable();
        both.dedup();
        let id = match both.len() > MOST && both.len() > x.len().max(y.len()) {
            true => self.arrival(),
            false => self.id(both.into()),
        };
        self.joined.insert(pair, id);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sets_are_one() {
        let mut sets = Sets::default();
        let (none, x, y, z) = (sets.none(), sets.arrival(), sets.arrival(), sets.arrival());
        assert_eq!(sets.join(x, none), x);
        let (xy, yz) = (sets.join(x, y), sets.join(z, y));
        let xyz = sets.join(xy, z);
        assert_eq!(sets.join(x, yz), xyz);
        assert_eq!((sets.join(xyz, y), sets.join(xy, yz)), (xyz, xyz));
        assert_ne!(xy, yz);
    }

    #[test]
    fn large_sets_stay_small() {
        let mut sets = Sets::default();
        let mut all = sets.none();
        let (mut seen, mut first) = (vec![all], None);
        for _ in 0..10_000 {
            let next = sets.arrival();
            first.get_or_insert(next);
            all = sets.join(all, next);
            assert!(seen.len() > 100 || !seen.contains(&all));
            seen.push(all);
        }
        let held: usize = sets.sets.iter().map(|s| s.len()).sum();
        assert!(held <= 3 * MOST * 10_000);
        assert_eq!(sets.join(all, all), all);
    }
}
