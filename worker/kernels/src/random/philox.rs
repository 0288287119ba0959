//! Philox4x32-10: blocks of four words from a key and a counter.
//!
//! Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

use crate::multiversion::multiversion;

/// The seed of a draw. A different key or stream gives unrelated numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed {
    /// The key of the generator.
    pub key: u64,
    /// The upper half of the generator's counter.
    pub stream: u64,
}

/// Blocks that one call of [`blocks`] generates at most.
pub(super) const BLOCKS: usize = 256;

/// The words of [`BLOCKS`] blocks: `words[i][j]` is word i of block j.
pub(super) type Words = [[u32; BLOCKS]; 4];

/// Blocks that are generated together, one in each vector lane; divides [`BLOCKS`].
const LANES: usize = 16;

const ROUNDS: usize = 10;
const MULTIPLIERS: [u64; 2] = [0xd251_1f53, 0xcd9e_8d57];
/// The constants that are added to the key after each round.
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

#[inline(always)]
fn halves(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

/// Applies one round to a counter, with the key of that round.
#[inline(always)]
fn round([a, b, c, d]: [u32; 4], [k, l]: [u32; 2]) -> [u32; 4] {
    let [a_low, a_high] = halves(u64::from(a) * MULTIPLIERS[0]);
    let [c_low, c_high] = halves(u64::from(c) * MULTIPLIERS[1]);
    [c_high ^ b ^ k, c_low, a_high ^ d ^ l, a_low]
}

multiversion! {
    /// Generates the words of `count` blocks from block `first` on. Words of a few further blocks are overwritten, too.
    pub(super) fn blocks<>(seed: Seed, first: u64, count: usize, words: &mut Words) {
        let ([k, l], [stream_low, stream_high]) = (halves(seed.key), halves(seed.stream));
        for at in (0..count.min(BLOCKS)).step_by(LANES) {
            let (mut a, mut b) = ([0; LANES], [0; LANES]);
            let (mut c, mut d) = ([stream_low; LANES], [stream_high; LANES]);
            for j in 0..LANES {
                [a[j], b[j]] = halves(first.wrapping_add((at + j) as u64));
            }
            let (mut k, mut l) = (k, l);
            for _ in 0..ROUNDS {
                for j in 0..LANES {
                    [a[j], b[j], c[j], d[j]] = round([a[j], b[j], c[j], d[j]], [k, l]);
                }
                k = k.wrapping_add(WEYL[0]);
                l = l.wrapping_add(WEYL[1]);
            }
            for (words, lanes) in words.iter_mut().zip([a, b, c, d]) {
                words[at..at + LANES].copy_from_slice(&lanes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The block of words for `counter` and `key`.
    fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
        let wide = |x: u32, y: u32| u64::from(y) << 32 | u64::from(x);
        let [a, b, c, d] = counter;
        let seed = Seed {
            key: wide(key[0], key[1]),
            stream: wide(c, d),
        };
        let mut words = [[0; BLOCKS]; 4];
        blocks(seed, wide(a, b), 1, &mut words);
        words.map(|w| w[0])
    }

    /// The expected words are from `kat_vectors` of the authors' library, Random123.
    #[test]
    fn known_answers() {
        let check = |counter, key, want| assert_eq!(philox(counter, key), want);
        check(
            [0; 4],
            [0; 2],
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
        );
        check(
            [u32::MAX; 4],
            [u32::MAX; 2],
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
        );
        check(
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        );
    }

    #[test]
    fn blocks_are_numbered() {
        let seed = Seed {
            key: 0x299f_31d0_a409_3822,
            stream: 0x0370_7344_1319_8a2e,
        };
        let mut words = [[0; BLOCKS]; 4];
        // These block numbers carry from the counter's first word into its second.
        let first = 0x85a3_08d2_ffff_ff80;
        blocks(seed, first, BLOCKS, &mut words);
        for j in 0..BLOCKS {
            let number = first + j as u64;
            let counter = [
                number as u32,
                (number >> 32) as u32,
                0x1319_8a2e,
                0x0370_7344,
            ];
            let want = philox(counter, [0xa409_3822, 0x299f_31d0]);
            assert_eq!(words.map(|w| w[j]), want, "{j}");
        }
        let known = 0x85a3_08d3_243f_6a88;
        blocks(seed, known, 1, &mut words);
        assert_eq!(words.map(|w| w[0])[..2], [0xd16c_fe09, 0x94fd_cceb]);
    }
}
