//! What the tests of several kernels share: executors, and data with awkward values.

use crate::Exec;
use crate::element::Number;
use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;

static RUNNING: AtomicBool = AtomicBool::new(false);

static POOLS: LazyLock<Vec<rayon::ThreadPool>> = LazyLock::new(|| {
    [2, 3, 7]
        .map(|n| {
            rayon::ThreadPoolBuilder::new()
                .num_threads(n)
                .build()
                .expect("threads start")
        })
        .into()
});

/// One thread, never cancelled.
pub fn exec() -> Exec<'static> {
    Exec::single(&RUNNING)
}

/// Calls `test` with executors of 1, 2, 3 and 7 threads.
pub fn each_exec(test: impl Fn(&Exec)) {
    test(&exec());
    for pool in POOLS.iter() {
        test(&Exec::pooled(pool, &RUNNING));
    }
}

/// Deterministic numbers, uniform in [-1, 1).
pub fn uniform(n: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1;
    (0..n)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        })
        .collect()
}

/// `n` elements spread over [-scale, scale), starting `skew` elements into their buffer by the caller's choice.
pub fn random<T: Number>(n: usize, scale: f64, seed: u64) -> Vec<T> {
    uniform(n, seed)
        .into_iter()
        .map(|x| T::from_f64(x * scale))
        .collect()
}

/// Bit patterns, with every NaN alike: payloads are not specified.
pub fn bits<T: Number>(values: &[T]) -> Vec<u64> {
    values
        .iter()
        .map(|&x| {
            if x.is_nan() {
                u64::MAX
            } else {
                x.to_f64().to_bits()
            }
        })
        .collect()
}
