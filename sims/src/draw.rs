//! Seeded choices, from which everything random about a scenario comes.

/// A stream of random choices that a seed determines.
#[derive(Debug, Clone)]
pub struct Draw(u64);

impl Draw {
    /// Starts the stream of `seed`.
    pub fn new(seed: u64) -> Draw {
        Draw(seed)
    }

    /// Derives a separate stream for the part called `label`, so that a change to one part leaves the others alone.
    pub fn fork(&self, label: &str) -> Draw {
        let hash = label.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
        });
        let mut forked = Draw(self.0 ^ hash);
        forked.word();
        forked
    }

    /// Draws 64 random bits (splitmix64).
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Draws a number below `n`, which is not 0. The bias of the remainder does not matter here.
    pub fn below(&mut self, n: u64) -> u64 {
        self.word() % n.max(1)
    }

    /// Draws a number in `low..=high`.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Draws a number whose logarithm is about normally distributed: half of them are below `median`, two thirds within a
    /// factor of five of it, and none beyond a factor of 256 or `most`. Made of integers, so that it is the same on every
    /// machine.
    pub fn spread(&mut self, median: u32, most: u32) -> u32 {
        const ONE: u64 = 1 << 10;
        // The sum of four even draws, from 0 to 4, becomes a power of two from 2^0 to 2^16.
        let sum: u64 = (0..4).map(|_| self.below(ONE)).sum();
        let (whole, part) = (sum * 4 / ONE, sum * 4 % ONE);
        let times = (1u64 << whole) * (ONE + part) / ONE;
        let drawn = (u64::from(median) * times) >> 8;
        u32::try_from(drawn).unwrap_or(u32::MAX).clamp(1, most)
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Draws an index below `len`; returns `None` if `len` is 0.
    pub fn index(&mut self, len: usize) -> Option<usize> {
        (len > 0).then(|| self.below(len as u64) as usize)
    }

    /// Draws one of `items`, which is not empty.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }

    /// Draws one of `items` with a probability in proportion to its weight.
    pub fn weighted<T: Copy>(&mut self, items: &[(u64, T)]) -> T {
        let mut at = self.below(items.iter().map(|(w, _)| w).sum());
        for (weight, item) in items {
            if at < *weight {
                return *item;
            }
            at -= weight;
        }
        items[items.len() - 1].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forks_differ_and_repeat() {
        let words = |label: &str| {
            let mut d = Draw::new(7).fork(label);
            (d.word(), d.word())
        };
        assert_eq!(words("a"), words("a"));
        assert_ne!(words("a"), words("b"));
    }

    #[test]
    fn spread_numbers_lie_around_their_median() {
        let mut d = Draw::new(1);
        let mut drawn: Vec<u32> = (0..1000).map(|_| d.spread(1000, 120_000)).collect();
        drawn.sort_unstable();
        assert!((800..1250).contains(&drawn[500]), "{}", drawn[500]);
        let near = drawn.iter().filter(|n| (200..5000).contains(*n)).count();
        assert!((600..750).contains(&near), "{near}");
        assert!(drawn[0] >= 1 && drawn[999] > 50_000 && drawn[999] <= 120_000);
    }

    #[test]
    fn weights_are_kept() {
        let mut d = Draw::new(1);
        let hits = (0..1000)
            .filter(|_| d.weighted(&[(1, false), (3, true)]))
            .count();
        assert!((650..850).contains(&hits), "{hits}");
    }
}
