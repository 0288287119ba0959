//! The digest, and the input data of the kernels.

use convoke_kernels::element::Number;

/// FNV-1a hashes over bit patterns, in which all NaNs count as the same one.
pub struct Digest {
    pub all: u64,
    pub verbose: bool,
}

impl Digest {
    /// Adds one result to the digest.
    pub fn add<T: Number>(&mut self, what: &str, values: &[T]) {
        let mut own = 0xcbf2_9ce4_8422_2325u64;
        for &value in values {
            let bits = if value.is_nan() {
                u64::MAX
            } else {
                value.to_f64().to_bits()
            };
            own = (own ^ bits).wrapping_mul(0x100_0000_01b3);
        }
        if self.verbose {
            println!("{own:016x} {what} {}", std::any::type_name::<T>());
        }
        self.all = (self.all ^ own).wrapping_mul(0x100_0000_01b3);
    }
}

/// Fixed numbers, most of which lie within ±`scale`; some are huge, tiny or special.
pub fn data<T: Number>(n: usize, scale: f64, seed: u64) -> Vec<T> {
    let special = [
        0.0,
        -0.0,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        1e-45,
        -1e-40,
        3e38,
        -3e38,
        1e9,
        0.5,
        2.5,
    ];
    let mut state = seed | 1;
    (0..n)
        .map(|i| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let uniform = (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
            T::from_f64(if i % 97 == 13 && !T::INTEGER {
                special[i / 97 % special.len()]
            } else {
                uniform * scale
            })
        })
        .collect()
}

/// Fixed numbers within ±`scale`, without special values, which would make every sum NaN.
pub fn tame<T: Number>(n: usize, scale: f64, seed: u64) -> Vec<T> {
    data::<i32>(n, 1e6, seed)
        .into_iter()
        .map(|x| T::from_f64(f64::from(x) * 1e-6 * scale))
        .collect()
}
